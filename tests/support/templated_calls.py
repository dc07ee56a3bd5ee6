"""Calls of the templated classes made from their documentation alone: one of each shape, and random ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product

from hypothesis import strategies as st
from pydantic import JsonValue

from environments.base import Parameter, ToolCall, ToolSpec
from environments.bfcl.docs import tool_specs
from environments.bfcl.templated.slices import TEMPLATED_CLASSES

TOOLS: tuple[ToolSpec, ...] = tuple(tool for name in TEMPLATED_CLASSES for tool in tool_specs(name))
FORBIDDEN = {tool.name.casefold() for tool in TOOLS} | {p.name.casefold() for tool in TOOLS for p in tool.parameters}
LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
ABSENT = object()


def words_outside_quotes(text: str) -> set[str]:
    return {word.casefold() for word in re.findall(r"\w+", LITERAL.sub(" ", text))}


def quoted(text: str) -> list[str]:
    return [json.loads(literal) for literal in LITERAL.findall(text)]


def numbers(text: str) -> list[int | float]:
    return [json.loads(number) for number in NUMBER.findall(LITERAL.sub(" ", text))]


def shapes() -> Iterator[ToolCall]:
    """A call of every shape: optional parameters given or not, each documented constant, both booleans."""
    for tool in TOOLS:
        options = [[*_examples(p), *([] if p.required else [ABSENT])] for p in tool.parameters]
        for values in product(*options):
            given = zip((p.name for p in tool.parameters), values, strict=True)
            yield ToolCall(name=tool.name, arguments={name: value for name, value in given if value is not ABSENT})


def _examples(parameter: Parameter) -> list[JsonValue]:
    if parameter.type == "boolean":
        return [True, False]
    if parameter.type == "array":
        return [list(parameter.choices[:2]) or ["one", "two"]]
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
    single = st.sampled_from(parameter.choices) if parameter.choices else free.get(parameter.type, st.text(max_size=20))
    return st.lists(single, max_size=5) if parameter.type == "array" else single


@st.composite
def documented_calls(draw: st.DrawFn) -> ToolCall:
    tool = draw(st.sampled_from(TOOLS))
    given = [p for p in tool.parameters if p.required or draw(st.booleans())]
    return ToolCall(name=tool.name, arguments={p.name: draw(values_of(p)) for p in given})
