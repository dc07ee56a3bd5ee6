"""Calls of the official classes made from their documentation alone: one of each shape, and random ones.

``TOOLS`` are those of the first two classes that had wordings, ``WORLD_TOOLS`` those of all eight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import product

from hypothesis import strategies as st
from pydantic import JsonValue

from environments.base import Parameter, ToolCall, ToolSpec
from environments.bfcl.official import CLASSES, tool_specs

TEMPLATED_CLASSES = ("GorillaFileSystem", "VehicleControlAPI")
TOOLS: tuple[ToolSpec, ...] = tuple(tool for name in TEMPLATED_CLASSES for tool in tool_specs(name))
FORBIDDEN = {tool.name.casefold() for tool in TOOLS} | {p.name.casefold() for tool in TOOLS for p in tool.parameters}
WORLD_TOOLS: tuple[ToolSpec, ...] = tuple(tool for name in CLASSES for tool in tool_specs(name))
OTHER_TOOLS = tuple(tool for tool in WORLD_TOOLS if tool not in TOOLS)
LONG_NAMES = {
    name.casefold()
    for tool in WORLD_TOOLS
    for name in (tool.name, *(parameter.name for parameter in tool.parameters))
    if "_" in name or name != name.casefold()
}
LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
ABSENT = object()


def words_outside_quotes(text: str) -> set[str]:
    return {word.casefold() for word in re.findall(r"\w+", LITERAL.sub(" ", text))}


def quoted(text: str) -> list[str]:
    return [json.loads(literal) for literal in LITERAL.findall(text)]


def numbers(text: str) -> list[int | float]:
    return [json.loads(number) for number in NUMBER.findall(LITERAL.sub(" ", text))]


def forbidden(function: str) -> set[str]:
    """The names that no wording of ``function`` holds: see ``environments.bfcl.templated.wordings``."""
    return FORBIDDEN if any(tool.name == function for tool in TOOLS) else {*LONG_NAMES, function.casefold()}


def shapes(tools: Sequence[ToolSpec] = TOOLS) -> Iterator[ToolCall]:
    """A call of every shape: optional parameters given or not, each documented constant, both booleans."""
    for tool in tools:
        options = [[*_examples(p), *([] if p.required else [ABSENT])] for p in tool.parameters]
        for values in product(*options):
            given = zip((p.name for p in tool.parameters), values, strict=True)
            yield ToolCall(name=tool.name, arguments={name: value for name, value in given if value is not ABSENT})


def _examples(parameter: Parameter) -> list[JsonValue]:
    if parameter.type == "boolean":
        return [True, False]
    if parameter.type == "array":
        return [list(parameter.choices[:2]) or ([1.5, 2.0] if parameter.items == "float" else ["one", "two"])]
    if parameter.type == "dict":
        return [{"status": "open", "priority": 3}]
    if parameter.choices:
        return list(parameter.choices)
    return [{"integer": 7, "float": 2.5}.get(parameter.type, "value")]


def values_of(parameter: Parameter) -> st.SearchStrategy[JsonValue]:
    """Any value that the documentation of ``parameter`` allows."""
    if parameter.type == "boolean":
        return st.booleans()
    free: dict[str, st.SearchStrategy[JsonValue]] = {
        "integer": st.integers(-(10**20), 10**20),
        "float": st.one_of(st.integers(-500, 500), st.floats(allow_nan=False, allow_infinity=False)),
    }
    if parameter.type == "dict":
        keys = st.sampled_from(("title", "status", "priority"))
        return st.dictionaries(keys, st.one_of(st.text(max_size=20), st.integers(-500, 500)))
    kind = parameter.items or "string" if parameter.type == "array" else parameter.type
    single = st.sampled_from(parameter.choices) if parameter.choices else free.get(kind, st.text(max_size=20))
    return st.lists(single, max_size=5) if parameter.type == "array" else single


@st.composite
def documented_calls(draw: st.DrawFn, tools: Sequence[ToolSpec] = TOOLS) -> ToolCall:
    tool = draw(st.sampled_from(tools))
    given = [p for p in tool.parameters if p.required or draw(st.booleans())]
    return ToolCall(name=tool.name, arguments={p.name: draw(values_of(p)) for p in given})
