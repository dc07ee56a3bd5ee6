"""Documentation of tools in prompts: one line per function, and which of them a user turn is shown.

A line is ``name(parameter: type, other?: type = default) first sentence of the description``. A parameter that may be
left out has a question mark, one with documented values shows them in place of its type, an object with documented
fields shows those in braces, and a list ends in ``[]``. The sentence that all tools of a group share is left out.
``highest_ranked`` ranks functions by BM25 (library bm25s) over their names, descriptions and parameters, and over the
user turns of training tasks that ask for them, split into stems (``environments.words``). Formats and ranking are ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from environments.base import Parameter, TaskSpec, ToolSpec
from environments.words import first_sentence, with_own_descriptions, words


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


Requests = Mapping[str, Sequence[str]]
"""The user turns that asked for each function."""


def requests_in(tasks: Iterable[TaskSpec], before: Requests) -> dict[str, tuple[str, ...]]:
    """Return the user turns of ``tasks`` by the functions that their reference calls, each once, after those before."""
    found = {name: dict.fromkeys(texts) for name, texts in before.items()}
    for task in tasks:
        for text, calls in zip(task.turns, task.reference, strict=True):
            for call in calls:
                found.setdefault(call.name, {}).setdefault(text)
    return {name: tuple(texts) for name, texts in found.items()}


def highest_ranked(
    text: str, tools: Sequence[ToolSpec], count: int, requests: Requests = MappingProxyType({})
) -> frozenset[str]:
    """Return the names of the ``count`` tools whose documentation and ``requests`` BM25 ranks highest for ``text``.

    A request with the words of ``text`` does not count: it would name the functions of a training task's reference.
    Of tools with equal scores, which share no word with the text for one, earlier ones rank higher.
    """
    asked = words(text)
    documents = [
        [*_document(tool), *(word for one in requests.get(tool.name, ()) if words(one) != asked for word in words(one))]
        for tool in with_own_descriptions(tools)
    ]
    if count >= len(tools) or not any(set(asked) & set(document) for document in documents):
        return frozenset(tool.name for tool in tools[:count])
    from bm25s import BM25

    index = BM25()
    index.index(documents, show_progress=False)
    scores = index.get_scores(list(asked)).tolist()
    ranked = sorted(range(len(tools)), key=lambda place: (-scores[place], place))
    return frozenset(tools[place].name for place in ranked[:count])


def _document(tool: ToolSpec) -> list[str]:
    of_parameters = (text for parameter in tool.parameters for text in (parameter.name, parameter.description))
    return [word for text in (tool.name, tool.description, *of_parameters) for word in words(text)]
