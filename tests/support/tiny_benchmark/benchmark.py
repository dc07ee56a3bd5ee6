"""The benchmark: a recipe names it ``support.tiny_benchmark.benchmark:BENCHMARK``."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from environments.base import Environment, TaskSpec, ToolCall
from environments.benchmark import Benchmark, EvaluationSet, EvaluationTask, ExplorationHints, Limits, Options
from environments.metrics import Attempted
from environments.python_class.environment import PythonEnvironment, ToolRefused
from environments.verification.canonical import fingerprint
from environments.verification.decontamination import HeldOut

ROOMS = ("attic", "cellar", "kitchen", "hall", "study", "porch")
FIRST = {"dev": 1000, "test": 2000}
"""Where the start states of each evaluation set are counted from; training has those below."""

Room = Annotated[str, "name of the room"]
Level = Annotated[int, "brightness, between 1 and 3"]


class House:
    """Rooms with a lamp each, at a level from 0 (off) to 3."""

    def __init__(self, lamps: dict[str, int]) -> None:
        self.lamps = dict(lamps)

    def list_rooms(self) -> list[str]:
        """List the rooms of the house."""
        return sorted(self.lamps)

    def switch_off(self, room: Room) -> str:
        """Switch off the lamp of one room."""
        if not self._level(room):
            raise ToolRefused(f"the lamp of {room} is off already")
        self.lamps[room] = 0
        return f"{room} is dark"

    def set_lamp(self, room: Room, level: Level) -> str:
        """Set the lamp of one room."""
        self._level(room)
        self.lamps[room] = level
        return f"{room} is at {level}"

    def _level(self, room: str) -> int:
        if room not in self.lamps:
            raise ToolRefused(f"there is no room {room!r}: list the rooms first")
        return self.lamps[room]


class LampOptions(Options):
    """The benchmark's own options."""

    houses: int = Field(8, ge=1, le=50, description="start states of training")


def whole_houses(attempts: Sequence[Attempted]) -> float:
    """The share of houses of which every task was solved."""
    houses: dict[str | None, list[bool]] = defaultdict(list)
    for one in attempts:
        houses[one.group].append(one.success)
    return sum(map(all, houses.values())) / len(houses)


class Lamps(Benchmark[LampOptions]):
    """Two tasks per house; test houses open for a ledger."""

    name = "lamps"
    options_type = LampOptions
    limits = Limits(batch=4)
    exploration = ExplorationHints(seed_chunk=4)
    evaluation_sets = {"dev": False, "test": True}
    metrics = {"whole_houses": whole_houses}

    def open(self, options: LampOptions) -> Environment:
        """Open the environment with ``houses`` start states."""
        return PythonEnvironment(self.name, House, [{"lamps": lamps(number)} for number in range(options.houses)])

    def evaluation_options(self, options: LampOptions) -> dict[str, JsonValue]:
        """Return the number of houses."""
        return options.model_dump()

    def held_out(self) -> HeldOut:
        """Return the fingerprints of both sets."""
        return HeldOut(frozenset(fingerprint(one.spec) for name in FIRST for one in self._tasks(name)))

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Describe a set by the fingerprints of its tasks."""
        tasks = self._tasks(name)
        text = "\n".join(fingerprint(one.spec) for one in tasks)
        return EvaluationSet(
            name=name,
            held_out=self.evaluation_sets[name],
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            tasks=len(tasks),
        )

    def open_evaluation_set(self, name: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
        """Return the tasks of a set."""
        return self._tasks(name)[:limit]

    def _tasks(self, name: str) -> tuple[EvaluationTask, ...]:
        environment = self.open(LampOptions())
        return tuple(
            EvaluationTask(
                id=f"{name}-{number}-{call.name}",
                origin="panel",
                spec=self.render(environment, _task(name, number, call), random.Random(number)),
                cluster=str(number),
                reference_calls=1,
                strata={"tool": call.name},
            )
            for number in range(FIRST[name], FIRST[name] + 3)
            for call in _calls(number)
        )


def lamps(number: int) -> dict[str, int]:
    """The lamps of house ``number``: three rooms, at least one of them lit."""
    rng = random.Random(number)
    first, *others = rng.sample(ROOMS, 3)
    return {first: rng.randint(1, 3)} | {room: rng.randint(0, 3) for room in others}


def _calls(number: int) -> tuple[ToolCall, ToolCall]:
    lit, other, _ = lamps(number)
    level = lamps(number)[other] % 3 + 1
    return (
        ToolCall(name="switch_off", arguments={"room": lit}),
        ToolCall(name="set_lamp", arguments={"room": other, "level": level}),
    )


def _task(name: str, number: int, call: ToolCall) -> TaskSpec:
    return TaskSpec(
        environment="lamps",
        split=name,
        classes=("House",),
        turns=("",),
        initial_state={"House": {"lamps": dict(lamps(number))}},
        tools=("list_rooms", "set_lamp", "switch_off"),
        reference=((call,),),
    )


BENCHMARK = Lamps()
