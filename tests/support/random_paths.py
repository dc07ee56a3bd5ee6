"""Random tasks over the training starts: calls that the explorer draws, cut into short references after a setup."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

from pydantic import JsonValue

from agents.scripted.arguments import UniformArguments
from agents.scripted.values import Sightings
from environments.base import Environment, StartState, TaskSpec
from environments.registry import benchmark_of
from environments.verification.replay import bare_task


def random_tasks(environment: Environment, start: StartState, calls: int, rng: random.Random) -> Iterator[TaskSpec]:
    """Textless tasks cut from one random episode: 1-3 calls after a setup of what came before, in 1 or 2 turns."""
    tools, path, sightings = environment.tools(start.tools), [], Sightings()
    sightings.see_state(start.initial_state)
    for one in benchmark_of(environment).known_values(environment):
        sightings.see_for(one.tool, one.parameter, one.value, one.near)
    arguments = UniformArguments(sightings, rng, tools)
    with closing(environment.open(bare_task(start))) as episode:
        episode.start()
        for _ in range(calls):
            call = arguments.draw(rng.choice(tools))
            if call is not None and not episode.step(call).failed:
                path.append(call)
    position = 0
    while position < len(path):
        length = rng.randint(1, 3)
        reference = [tuple(path[position : position + length])]
        if length > 1 and rng.random() < 0.3:
            reference = [reference[0][:1], reference[0][1:]]
        kept = tuple(turn for turn in reference if turn)
        setup = tuple(path[:position][-8:])
        yield bare_task(start, len(kept)).model_copy(update={"setup": setup, "reference": kept})
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
