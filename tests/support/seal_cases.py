"""Seeded trajectories and profiles, to compare SEAL here with what its released code computes from the same input.

``tests/training/seal/released_code.json.gz`` holds the released code's answers, in the order of these cases. A policy's
messages are texts, so that what is compared begins with the reading of a message. Draws use ``Random.random`` alone,
whose values do not depend on the version of Python.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from environments.base import TaskSpec, ToolCall
from environments.bfcl.official import tool_names
from support.bfcl_tasks import CAR, DARK, FILES, FUEL, LIGHTS, LOCK, MKDIR, PRESS, START, STARTS, TOOLS, call
from training.seal.diagnosis import TurnLabel

One = TypeVar("One")

SEED = 2605
TRAJECTORIES = 600
RUNS = 24
STEPS = 25
"""Of each run: two epochs of twelve steps, and the first step of a third."""

CALLS = {
    CAR: (LOCK, PRESS, START, LIGHTS, DARK, FUEL, call("fillFuelTank", fuelAmount=5.0), call("check_tire_pressure")),
    FILES: (
        MKDIR,
        call("mkdir", dir_name="b"),
        call("touch", file_name="f"),
        call("echo", content='it\'s "1"', file_name="f"),
        call("cat", file_name="f"),
        call("ls"),
        call("cd", folder="a"),
        call("pwd"),
        call("cp", source="a", destination="a"),
        call("rm", file_name="f"),
    ),
}
"""Calls that references and policies draw from; many are refused where they come too early or twice."""

WITHHELD = {CAR: "setHeadlights", FILES: "ls"}

BROKEN = (
    '{"name": "ls", "arguments": {}',
    '{"name": "ls", "arguments": [1]}',
    '{"arguments": {}}',
    '{"name": "ls", "arguments": {"a": tru}}',
)
"""Calls that both readers refuse."""

END = "That is all."
"""A message without a call, which ends the turn."""


class Case(NamedTuple):
    """A task, the messages of each user turn, and whether a limit ended the episode in the last of them."""

    task: TaskSpec
    turns: tuple[tuple[str, ...], ...]
    cut_off: bool


class Rollout(NamedTuple):
    """The labels of a trajectory, and whether it succeeded."""

    labels: tuple[TurnLabel, ...]
    success: bool


class Draws:
    """Draws that are equal in every version of Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, number: int) -> int:
        return int(self._random.random() * number)

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def one(self, of: Sequence[One]) -> One:
        return of[self.below(len(of))]


def cases() -> Iterator[Case]:
    draws = Draws(SEED)
    for _ in range(TRAJECTORIES):
        yield _case(draws)


def _case(draws: Draws) -> Case:
    home = draws.one((CAR, FILES))
    classes = (CAR, FILES) if draws.chance(0.25) else (home,)
    pool = [one for name in classes for one in CALLS[name]]
    reference = tuple(
        () if draws.chance(0.25) else tuple(draws.one(pool) for _ in range(1 + draws.below(3)))
        for _ in range(1 + draws.below(5))
    )
    withheld = {draws.below(len(reference)): (WITHHELD[home],)} if draws.chance(0.3) else {}
    task = TaskSpec(
        environment="bfcl",
        split="train",
        classes=classes,
        turns=tuple(f"turn {number}" for number in range(len(reference))),
        initial_state={name: STARTS[name] for name in classes},
        tools=tool_names(classes),
        reference=reference,
        withheld={turn: names for turn, names in withheld.items() if turn},
    )
    faithful = draws.chance(0.5)  # half of the policies do mostly what is asked
    reached = len(reference) if draws.chance(0.7) else 1 + draws.below(len(reference))
    cut_off = reached < len(reference) or draws.chance(0.05)
    played = []
    for number in range(reached):
        messages = _messages(draws, reference[number], pool, 0.85 if faithful else 0.3)
        played.append(messages if cut_off and number == reached - 1 else (*messages, END))
    return Case(task, tuple(played), cut_off)


def _messages(draws: Draws, wanted: Sequence[ToolCall], pool: Sequence[ToolCall], right: float) -> tuple[str, ...]:
    """The calls of one turn, one or two in a message, with faults."""
    calls = [one if draws.chance(right) else draws.one(pool) for one in wanted if draws.chance(0.95)]
    if draws.chance((1.0 - right) / 2):
        calls.append(draws.one(pool))
    written = [json.dumps({"name": one.name, "arguments": one.arguments}) for one in calls]
    if draws.chance(0.15):
        name = draws.one(("lightUp", WITHHELD[CAR], WITHHELD[FILES], "start_engine"))
        fault = draws.one((*BROKEN, json.dumps({"name": name, "arguments": {}})))
        written.insert(draws.below(len(written) + 1), fault)
    messages = []
    while written:
        size = 1 + draws.below(2)
        messages.append("\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in written[:size]))
        del written[:size]
    return tuple(messages)


def runs() -> Iterator[list[list[Rollout]]]:
    """The rollouts of each step of each run; policies get better, and labels change with the epoch."""
    draws = Draws(SEED + 1)
    for _ in range(RUNS):
        favourite, skill = draws.one(tuple(TurnLabel)), draws.below(3) * 0.3
        steps = []
        for step in range(STEPS):
            if step == 12:
                favourite = draws.one(tuple(TurnLabel))
            steps.append([_rollout(draws, favourite, skill + 0.02 * step) for _ in range(1 + draws.below(24))])
        yield steps


def _rollout(draws: Draws, favourite: TurnLabel, skill: float) -> Rollout:
    kinds = (favourite, TurnLabel.PASS, *TurnLabel)
    labels = tuple(draws.one(kinds) for _ in range(1 + draws.below(5)))
    return Rollout(labels, draws.chance(skill))


def documents(task: TaskSpec) -> list[dict[str, object]]:
    """The tools that a task offers at its beginning, as little as the released code reads of them."""
    later = {name for names in task.withheld.values() for name in names}
    return [document(name) for name in task.tools if name not in later]


def document(name: str) -> dict[str, object]:
    return {
        "name": name,
        "description": TOOLS[name].description,
        "parameters": {"type": "dict", "properties": {}, "required": []},
    }
