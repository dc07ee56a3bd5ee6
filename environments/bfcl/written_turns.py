"""Read user turns that people wrote, with the calls that answer them: what the local roles are taught on.

Two sources. The turns of the 45 training tasks of the category base, each behind the reference's earlier ones, with the
answers that the simulators give. And BFCL's single-turn questions with their documentation and accepted answers, of
which a tenth of the functions, drawn by name, is held out to measure the roles. A policy that was taught with them
cannot claim BFCL's single-turn score.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

from pydantic import JsonValue

from environments.base import Environment, Parameter, ToolCall, ToolSpec
from environments.benchmark import HumanTurn
from environments.bfcl.official import load_category, read_single_turn
from environments.task_text import with_own_descriptions

SINGLE_TURN = ("live_simple", "live_multiple", "simple_python", "multiple", "parallel", "parallel_multiple")
"""The official single-turn categories whose functions are documented in Python's types."""

HELD_OUT = 10
"""One function in so many is held out, with every question that it answers."""

_LONGEST = 400  # characters of a question (ours)


def single_turns() -> tuple[HumanTurn, ...]:
    """Return the single-turn questions of up to 400 characters, each with the first accepted value of each argument."""
    return tuple(_single_turns())


def _single_turns() -> Iterator[HumanTurn]:
    for category in SINGLE_TURN:
        for entry, answer in read_single_turn(category):
            messages = entry["question"][0]
            words = messages[-1]["content"]
            if len(messages) != 1 or len(words) > _LONGEST:
                continue
            tools = {document["name"]: _tool(document) for document in entry["function"]}
            calls = [_call(name, given) for one in answer for name, given in one.items()]
            wanted = {name for one in answer for name in one}
            if not wanted <= tools.keys():
                continue
            yield HumanTurn(
                source="single",
                tools=tuple(tools[name] for name in sorted(wanted)),
                others=tuple(tool for name, tool in tools.items() if name not in wanted),
                state={},
                done=(),
                calls=tuple(calls),
                answers=("",) * len(calls),
                words=words,
                held_out=any(_is_held_out(name) for name in wanted),
            )


def human_turns(environment: Environment) -> tuple[HumanTurn, ...]:
    """Return the user turns of the training tasks of the category base that ask for calls."""
    return tuple(turn for task in load_category("base", ("train",)) for turn in _turns(environment, task.spec))


def _turns(environment: Environment, spec: Any) -> Iterator[HumanTurn]:  # noqa: ANN401
    tools = {tool.name: tool for tool in with_own_descriptions(environment.tools(spec.tools))}
    done: list[tuple[ToolCall, str]] = []
    with closing(environment.open(spec)) as episode:
        episode.start()
        for number, (words, calls) in enumerate(zip(spec.turns, spec.reference, strict=True)):
            if number:
                episode.end_turn()
            answers = tuple(episode.step(call).text for call in calls)
            if calls:
                wanted = {call.name for call in calls}
                yield HumanTurn(
                    source="turns",
                    tools=tuple(tools[name] for name in sorted(wanted)),
                    others=tuple(tool for name, tool in tools.items() if name not in wanted),
                    state=spec.initial_state,
                    done=tuple(done),
                    calls=calls,
                    answers=answers,
                    words=words,
                )
            done += zip(calls, answers, strict=True)


def _is_held_out(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % HELD_OUT == 0


def _name(name: str) -> str:
    """Return a name that calls can have: official functions are written with dots in them."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _call(name: str, given: dict[str, list[Any]]) -> ToolCall:
    values = {parameter: _first(accepted) for parameter, accepted in given.items()}
    return ToolCall(name=_name(name), arguments={key: value for key, value in values.items() if value is not None})


def _first(accepted: Any) -> JsonValue:  # noqa: ANN401 - as the package has it
    """Return the first accepted value; None for one that may be left out. Fields of objects list their own values."""
    if not isinstance(accepted, list):
        return cast(JsonValue, accepted)
    value = next((one for one in accepted if one != ""), None)
    if isinstance(value, dict):
        fields = {key: _first(inner) for key, inner in value.items()}
        return {key: inner for key, inner in fields.items() if inner is not None}
    if isinstance(value, list):
        return [_first([inner]) if isinstance(inner, dict) else inner for inner in value]
    return cast(JsonValue, value)


def _tool(document: dict[str, Any]) -> ToolSpec:
    schema = document["parameters"]
    required = schema.get("required", [])
    return ToolSpec(
        name=_name(document["name"]),
        group="",
        description=document["description"],
        parameters=tuple(
            Parameter(
                name=name,
                type=one.get("type", "string"),
                description=one.get("description", ""),
                required=name in required,
                choices=tuple(one.get("enum") or ()),
                items=(one.get("items") or {}).get("type"),
            )
            for name, one in schema.get("properties", {}).items()
        ),
    )
