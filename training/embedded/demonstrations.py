"""Demonstrations: references of verified tasks, replayed in the environment and rendered for a policy to learn from.

Tasks of other splits than train and tasks of a held-out set are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from environments.base import (
    Action,
    Environment,
    InputError,
    Observation,
    ToolCall,
    ToolSpec,
    UserTurn,
)
from environments.registry import benchmark_of
from environments.verification.canonical import canonical
from memory.records import Task
from memory.run import read_jsonl
from training.embedded.compact import CompactRendering
from training.embedded.compact_text import CompactText
from training.rendering.base import EndTurn

LEARNABLE = frozenset({"seed", "evolved", "given", "official"})
"""Origins of tasks whose references may be learnt from: verified ones, and a benchmark's own of its training split."""


class Shown(NamedTuple):
    """An action of the reference with its observation."""

    action: Action
    observation: Observation


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A task's replayed reference: its user turns with their tools and actions."""

    task: Task
    turns: tuple[tuple[UserTurn, tuple[ToolSpec, ...], tuple[Shown, ...]], ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A rendered demonstration; ``mask`` is 1 on the policy's own tokens, ``tools`` names the functions it calls."""

    ids: list[int]
    mask: list[int]
    tools: frozenset[str]


def read_tasks(path: Path) -> list[Task]:
    """Read the tasks to learn from. Raises InputError naming the first that must not be learnt from, and why."""
    tasks = read_jsonl(path, Task)
    if len(tasks) < 2:
        raise InputError(f"{path} holds {len(tasks)} tasks: give 2 or more, one is held out")
    for number, task in enumerate(tasks, start=1):
        if task.split != "train":
            raise InputError(f"{path}, line {number}: task {task.id} is of the {task.split} split: give train only")
    return tasks


def refuse_held_out(path: Path, tasks: Iterable[Task], environment: Environment) -> None:
    """Raise InputError naming the first task of ``path`` whose content is that of a held-out task."""
    sets = benchmark_of(environment).held_out()
    for task in tasks:
        try:
            same = sets.match(task, canonical(environment, task))
        except RecursionError:
            same = "Its state contains itself."
        if same is not None:
            raise InputError(f"{path}: task {task.id} is held out: {same} Remove it")


def demonstrate(environment: Environment, task: Task, *, verified: bool = True) -> Demonstration:
    """Replay the reference. Raises InputError when that of a ``verified`` task does not run without an error."""
    turns = []
    with closing(environment.open(task)) as episode:
        turn: UserTurn | None = episode.start()
        for calls in task.reference:
            if turn is None:
                break
            tools = environment.tools(turn.tools)
            steps: list[Shown] = []
            for call in in_order(calls, tools):
                steps.append(Shown(call, episode.step(call)))
                if verified and steps[-1].observation.failed:
                    raise InputError(f"task {task.id}: its reference fails at {call.name}: give verified tasks")
            turns.append((turn, tools, tuple(steps)))
            turn = episode.end_turn()
    return Demonstration(task, tuple(turns))


def in_order(calls: Iterable[ToolCall], tools: Sequence[ToolSpec]) -> Iterator[ToolCall]:
    """Yield the calls with every list of documented choices in the order of the documentation.

    Explorers draw such lists in any order; demonstrations with one order are easier to learn from.
    """
    choices = {(tool.name, parameter.name): parameter.choices for tool in tools for parameter in tool.parameters}
    for call in calls:
        arguments = dict(call.arguments)
        for name, value in arguments.items():
            documented = choices.get((call.name, name), ())
            if isinstance(value, list) and all(item in documented for item in value):
                arguments[name] = sorted(value, key=documented.index)
        yield call.model_copy(update={"arguments": arguments})


def lines(demonstration: Demonstration, text: CompactText) -> Iterator[tuple[str, bool]]:
    """Yield the demonstration as compact lines of a new ``text``, and whether the policy learns to write the line."""
    for turn, tools, steps in demonstration.turns:
        own = turn.index >= demonstration.task.played
        text.know(tools)
        yield text.user(turn), False
        for action, observation in steps:
            yield text.action(action), own
            yield text.observation(observation), False
        yield text.action(EndTurn()), own


def example(demonstration: Demonstration, rendering: CompactRendering) -> Example:
    """Render the demonstration as the tokens of one episode."""
    ids: list[int] = []
    mask: list[int] = []
    for line, taught in lines(demonstration, CompactText(rendering.settings)):
        new = rendering.encode(line)
        ids.extend(new)
        mask.extend([int(taught)] * len(new))
    called = (step.action for _, _, steps in demonstration.turns for step in steps)
    return Example(ids, mask, frozenset(call.name for call in called if isinstance(call, ToolCall)))
