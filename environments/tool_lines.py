"""Documentation of tools in prompts: one line per function, and which of them a user turn is shown (ours).

A line is ``name(parameter: type, other?: type = default) first sentence of the description``. A parameter that may be
left out has a question mark, one with documented values shows them in place of its type, an object shows its fields in
braces, and a list ends in ``[]``. ``highest_ranked`` ranks functions by BM25 over stems of their documentation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from environments.base import Parameter, ToolSpec
from environments.task_text import first_sentence, with_own_descriptions, words


def tool_line(tool: ToolSpec) -> str:
    """Return the documentation of a tool as one line; of its description the first sentence."""
    listed = ", ".join(map(_parameter, tool.parameters))
    return " ".join(f"{tool.name}({listed}) {first_sentence(tool.description)}".split())


def _parameter(parameter: Parameter) -> str:
    default = "" if parameter.default is None else f" = {json.dumps(parameter.default, ensure_ascii=False)}"
    return f"{parameter.name}{'' if parameter.required else '?'}: {_kind(parameter)}{default}"


def _kind(parameter: Parameter) -> str:
    kind = parameter.items or "any" if parameter.type == "array" else parameter.type
    if parameter.choices:
        kind = "|".join(json.dumps(choice, ensure_ascii=False) for choice in parameter.choices)
    if parameter.item:
        kind = _kind(parameter.item)
    if parameter.type == "array":
        return f"({kind})[]" if "|" in kind and not parameter.item else f"{kind}[]"
    return f"{{{', '.join(map(_parameter, parameter.fields))}}}" if parameter.fields else kind


def highest_ranked(
    text: str, tools: Sequence[ToolSpec], count: int, requests: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> frozenset[str]:
    """Return the names of the ``count`` tools whose documentation BM25 ranks highest for ``text``.

    ``requests`` are texts that ask for a tool, by its name: they count as its documentation. Of tools with equal
    scores, which share no word with the text for one, earlier ones rank higher.
    """
    asked = words(text)
    documents = []
    for tool in with_own_descriptions(tools):
        of_parameters = (text for parameter in tool.parameters for text in (parameter.name, parameter.description))
        texts = (tool.name, tool.description, *of_parameters, *requests.get(tool.name, ()))
        documents.append([word for text in texts for word in words(text)])
    if count >= len(tools) or not any(set(asked) & set(document) for document in documents):
        return frozenset(tool.name for tool in tools[:count])
    from bm25s import BM25

    index = BM25()
    index.index(documents, show_progress=False)
    scores = index.get_scores(list(asked)).tolist()
    ranked = sorted(range(len(tools)), key=lambda place: (-scores[place], place))
    return frozenset(tools[place].name for place in ranked[:count])
