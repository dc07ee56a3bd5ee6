"""A benchmark of parcel depots: a recipe names it ``support.tiny_benchmark:BENCHMARK``."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Sequence

from pydantic import Field, JsonValue

from environments.base import Environment, TaskSpec, ToolCall
from environments.benchmark import Benchmark, EvaluationSet, EvaluationTask, ExplorationHints, Limits, Options
from environments.example import LABELS, Depot
from environments.metrics import Attempted
from environments.python_class.environment import PythonEnvironment
from environments.verification.canonical import fingerprint
from environments.verification.decontamination import HeldOut
from environments.verification.replay import bare_task

FIRST = {"dev": 1000, "test": 2000}
"""Where the start states of each evaluation set are counted from; training has those below."""


class DepotOptions(Options):
    """The benchmark's own options."""

    depots: int = Field(8, ge=1, le=50, description="start states of training")


def whole_depots(attempts: Sequence[Attempted]) -> float:
    """The share of depots of which every task was solved."""
    depots: dict[str | None, list[bool]] = defaultdict(list)
    for one in attempts:
        depots[one.group].append(one.success)
    return sum(map(all, depots.values())) / len(depots)


class Depots(Benchmark[DepotOptions]):
    """Two tasks per depot; test depots open for a ledger."""

    name = "depots"
    options_type = DepotOptions
    limits = Limits(batch=4)
    exploration = ExplorationHints(seed_chunk=4)
    evaluation_sets = {"dev": False, "test": True}
    metrics = {"whole_depots": whole_depots}

    def open(self, options: DepotOptions) -> Environment:
        """Open the environment with ``depots`` start states."""
        return PythonEnvironment(self.name, Depot, [*map(state, range(options.depots))])

    def evaluation_options(self, options: DepotOptions) -> dict[str, JsonValue]:
        """Return the number of depots."""
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
        environment = self.open(DepotOptions())
        return tuple(
            EvaluationTask(
                id=f"{name}-{number}-{call.name}",
                origin="panel",
                spec=self.render(environment, _task(environment, name, number, call), random.Random(number)),
                cluster=str(number),
                reference_calls=1,
                strata={"tool": call.name},
            )
            for number in range(FIRST[name], FIRST[name] + 3)
            for call in _calls(number)
        )


def state(number: int) -> dict[str, JsonValue]:
    """Depot ``number``: four light parcels behind a closed gate."""
    rng = random.Random(number)
    parcels = {label: {"kilograms": rng.randint(1, 9)} for label in rng.sample(LABELS, 4)}
    return {"parcels": parcels, "gate_open": False}


def _calls(number: int) -> tuple[ToolCall, ToolCall]:
    rng = random.Random(f"calls {number}")
    loaded, insured = rng.sample([*state(number)["parcels"]], 2)
    load = {"label": loaded, "van": rng.choice(("north", "south"))}
    insure = {"label": insured, "euros": rng.randrange(100, 501, 100)}
    return ToolCall(name="load_parcel", arguments=load), ToolCall(name="insure_parcel", arguments=insure)


def _task(environment: Environment, name: str, number: int, call: ToolCall) -> TaskSpec:
    place = bare_task(environment.starts()[0])
    return place.model_copy(update={"split": name, "initial_state": {"Depot": state(number)}, "reference": ((call,),)})


BENCHMARK = Depots()
