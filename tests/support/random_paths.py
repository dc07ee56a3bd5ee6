"""Random tasks over the training starts: schema-valid random calls, cut into short references after a setup."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

from pydantic import JsonValue

from environments.base import Environment, Parameter, StartState, TaskSpec, ToolCall, ToolSpec


def strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str) and 0 < len(value) < 80:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)


def random_value(parameter: Parameter, pool: list[str], rng: random.Random) -> JsonValue:
    if parameter.type == "array":
        items = list(parameter.choices) or pool
        return rng.sample(items, rng.randint(1, min(2, len(items))))
    if parameter.choices:
        return rng.choice(parameter.choices)
    match parameter.type:
        case "boolean":
            return rng.random() < 0.5
        case "integer":
            return rng.randint(1, 9)
        case "float":
            return float(rng.choice((1, 5, 12, 25, 30)))
        case _:
            return rng.choice(pool)


def random_call(tools: tuple[ToolSpec, ...], pool: list[str], rng: random.Random) -> ToolCall:
    tool = rng.choice(tools)
    arguments = {p.name: random_value(p, pool, rng) for p in tool.parameters if p.required or rng.random() < 0.3}
    return ToolCall(name=tool.name, arguments=arguments)


def random_tasks(environment: Environment, start: StartState, calls: int, rng: random.Random) -> Iterator[TaskSpec]:
    """Textless tasks cut from one random episode: 1-3 calls after a setup of what came before, in 1 or 2 turns."""
    tools = environment.tools(start.tools)
    pool = sorted(set(strings(start.initial_state))) or ["notes"]
    fields = start.model_dump(include={"environment", "split", "classes", "initial_state", "tools"})
    path: list[ToolCall] = []
    with closing(environment.open(TaskSpec(**fields, turns=("",), reference=((),)))) as episode:
        episode.start()
        for _ in range(calls):
            call = random_call(tools, pool, rng)
            if not episode.step(call).failed:
                path.append(call)
    position = 0
    while position < len(path):
        length = rng.randint(1, 3)
        reference = [tuple(path[position : position + length])]
        if length > 1 and rng.random() < 0.3:
            reference = [reference[0][:1], reference[0][1:]]
        kept = tuple(turn for turn in reference if turn)
        yield TaskSpec(**fields, turns=("",) * len(kept), setup=tuple(path[:position][-8:]), reference=kept)
        position += length


def with_placeholder_text(task: TaskSpec) -> TaskSpec:
    """The task with turns that name every call and quote its values: grounded, though no user would write so."""

    def quote(value: JsonValue) -> str:
        if isinstance(value, list):
            return " ".join(quote(item) for item in value)
        return f'"{value}"' if isinstance(value, str) else f"{value}"

    turns = tuple(
        "please: " + ", ".join(" ".join((call.name, *map(quote, call.arguments.values()))) for call in turn)
        for turn in task.reference
    )
    return task.model_copy(update={"turns": turns})
