"""Define BFCL multi-turn as a benchmark: its options, splits, held-out sets, official tasks and wordings."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Literal

from pydantic import Field

from environments.base import Environment, InputError, TaskSpec
from environments.benchmark import (
    Benchmark,
    ContentLicence,
    EvaluationSet,
    EvaluationTask,
    KnownValue,
    OfficialTask,
    OfficialTasks,
    Options,
    TestAccess,
)
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.official import Split, load_category
from environments.bfcl.package import CATEGORIES, VERSION
from environments.bfcl.templated.evaluation_sets import FAMILIES, load_set, set_file
from environments.bfcl.turn_sets import TURN_SETS, turn_ids, turn_tasks
from environments.metrics import CALL_METRICS
from environments.verification.canonical import PublishedSet
from environments.verification.decontamination import HeldOut, held_out, published_sets

_SPLITS: dict[str, tuple[Split, ...]] = {
    "dev": ("dev",),
    "test": ("test",),
    "seal-test": ("test",),
    "all": ("train", "dev", "test"),
}
"""The splits that make evaluation sets of the official categories."""
_AT = "@"


class BFCLOptions(Options):
    """Options of the environment."""

    classes: tuple[str, ...] = Field(
        ("GorillaFileSystem", "VehicleControlAPI"),
        description="official classes that exploration and templated tasks use (ours: two of eight)",
    )
    categories: tuple[Literal["base", "miss_func", "miss_param", "long_context"], ...] = Field(
        ("base", "miss_func", "miss_param", "long_context"),
        min_length=1,
        description="categories of the official training tasks for tasks.initial: official; they repeat the same user "
        "turns",
    )
    max_steps: int = Field(
        20, ge=1, le=10_000, description="actions in one user turn before it is cut off (official: 20)"
    )
    wordings: Literal["table", "human"] = Field(
        "table",
        description="how the user turns of synthesised tasks are written; table: in phrases of a table; human: in "
        "patterns of the 45 human training tasks, in several users' styles, with references to the turn before, and "
        "in phrases of the table where no pattern fits (both ours)",
    )


class BFCL(Benchmark[BFCLOptions]):
    """Berkeley Function Calling Leaderboard, multi-turn categories, with the package's own simulators and checkers.

    The evaluation sets are of three kinds. Templated ones are slices of human paths in our words, of two classes; those
    of the world are of all eight, with tasks that exploration found beside the slices. Those of the split test open
    for a committed study alone (``templated.evaluation_sets``). ``CATEGORY@SPLIT`` are the official tasks, "all" for
    every category or split; the split "seal-test" is the 100 indices of the split test that a test after SEAL's
    protocol uses. ``turn_sets`` explains those of single user turns that people wrote. Official tasks and turns of the
    split test open for a command that names a test access log.
    """

    name = "bfcl"
    options_type = BFCLOptions
    metrics = CALL_METRICS
    licence = ContentLicence(
        spdx="apache-2.0",
        notice=f"Start states, tools and their documentation are those of bfcl-eval {VERSION} (Berkeley Function "
        "Calling Leaderboard, Apache-2.0); trajectories hold what its simulators answered.",
    )
    data = (
        f"bfcl-eval {VERSION}; of the 200 tasks in each multi-turn category 20 are reserved for tests of the checker, "
        "so that all@all has 180"
    )
    verdict = (
        "bfcl-eval's own state and response checkers on its own simulators, the official limit of steps and order of "
        "turns; equal to its multi_turn_checker for the references of all 800 tasks and for corrupted attempts at "
        "them (tests/environments/bfcl/test_official_equality.py)"
    )
    evaluation_sets = {
        **{f"{family}-{split}": held for family in FAMILIES for split, held in (("dev", False), ("test", True))},
        **{
            f"{category}{_AT}{split}": "test" in parts
            for split, parts in _SPLITS.items()
            for category in (*CATEGORIES, "all")
        },
        **TURN_SETS,
    }

    def __init__(self, *, human: bool = False) -> None:
        self._human = human

    def open(self, options: BFCLOptions) -> Environment:
        """Open the environment. Raises InputError when bfcl-eval is not installed or a class is unknown."""
        environment = BFCLEnvironment(options.classes, options.max_steps)
        if options.wordings == "human":
            environment.benchmark = _HUMAN
        return environment

    def adapt(
        self,
        options: BFCLOptions,
        *,
        max_actions: int | None = None,
        trust_agent_code: bool = False,
        tasks: Sequence[TaskSpec] = (),
    ) -> BFCLOptions:
        """Return the options with another limit and the classes of ``tasks``; agents' code does not run here."""
        classes = tuple(sorted({name for task in tasks for name in task.classes}))
        changed = {"classes": classes or options.classes, "max_steps": max_actions or options.max_steps}
        return options.model_copy(update=changed)

    def max_actions(self, options: BFCLOptions) -> int:
        """Return ``max_steps``."""
        return options.max_steps

    def explain_no_starts(self, environment: str) -> str:
        """Return a sentence with the key that restricts the start states."""
        return "environment.options.classes: no initial state of the training split has these classes: name others"

    def official_tasks(self, options: BFCLOptions) -> OfficialTasks:
        """Return the tasks of the training split whose classes and categories ``options`` names."""

        chosen = (category for category in CATEGORIES if category in options.categories)
        found = [one for category in chosen for one in load_category(category, ("train",))]
        fitting = [one for one in found if set(options.classes).issuperset(one.spec.classes)]
        if not fitting:
            raise InputError(
                "environment.options.classes: no official training task has these classes alone: name others"
            )
        return OfficialTasks(
            tasks=tuple(OfficialTask(one.id, one.spec) for one in fitting), total=len(found), why="other classes"
        )

    def render(self, environment: Environment, task: TaskSpec, rng: random.Random) -> TaskSpec:
        """Return ``task`` in the wordings of training. Raises InputError for a call without a wording."""
        from environments.bfcl.templated import human_wordings, wordings

        if self._human:
            return human_wordings.render_task(environment, task, rng)
        return wordings.render_task(environment, task, "train", rng)

    def join(self, first: TaskSpec, second: TaskSpec) -> TaskSpec:
        """Return ``first`` with the classes that only ``second`` has, in their initial states.

        The setup of ``second`` is kept where no class is in both: calls on states of the first would change them.
        """
        shared = set(first.classes) & set(second.classes)
        return first.model_copy(
            update={
                "classes": tuple(sorted({*first.classes, *second.classes})),
                "initial_state": {**second.initial_state, **first.initial_state},
                "setup": first.setup if shared else (*first.setup, *second.setup),
                "tools": tuple(sorted({*first.tools, *second.tools})),
            }
        )

    def known_values(self, environment: Environment) -> tuple[KnownValue, ...]:
        """Return the text values of human training references that no state and no earlier call holds.

        The cities that have a zipcode are neither in a state nor in the documentation: a language model knows or
        guesses such names, a rule-based explorer does not. Only training indices are read.
        """
        return _known_values()

    def held_out(self) -> HeldOut:
        """Return the held-out sets and official tasks. Raises InputError when a file is missing or altered."""
        return held_out(self.name)

    def published_sets(self) -> tuple[PublishedSet, ...]:
        """Return the published record of every evaluation set. Raises InputError like ``held_out``."""
        return published_sets(self.name)

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Describe an evaluation set by its file, without reading its tasks; an official one by the tasks' ids."""
        if _is_official(name):
            ids = turn_ids(name) if name in TURN_SETS else _official_ids(name)
            digest = hashlib.sha256("\n".join((VERSION, *ids)).encode()).hexdigest()
            return EvaluationSet(name=name, held_out=self.evaluation_sets[name], sha256=digest, tasks=len(ids))
        file = set_file(name)
        return EvaluationSet(name=name, held_out=self.evaluation_sets[name], sha256=file.sha256, tasks=file.tasks)

    def open_evaluation_set(self, name: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
        """Return the tasks of an evaluation set. Raises InputError where its file does not match its hash.

        Official ones are in the order of their indices, so that the first ones of "all" are of every category.
        """
        if _is_official(name):
            return turn_tasks(name, limit) if name in TURN_SETS else _official(name, limit)

        return tuple(
            EvaluationTask(
                id=member.id,
                origin="panel",
                spec=member.spec,
                cluster=member.cluster,
                reference_calls=_calls(member.spec),
                strata=member.strata,
            )
            for member in load_set(name)[:limit]
        )

    def access_to(self, name: str) -> TestAccess:
        """Return "ledger" for official tasks, which are public, and "study" for the templated ones."""
        return "ledger" if _is_official(name) else "study"


def _is_official(name: str) -> bool:
    """Return whether an evaluation set is of official tasks, or of their turns."""
    return _AT in name or name in TURN_SETS


def _parts(name: str) -> tuple[tuple[str, ...], str]:
    """Return the categories and the split of an official evaluation set."""
    category, _, split = name.partition(_AT)
    return CATEGORIES if category == "all" else (category,), split


def _official(name: str, limit: int | None) -> tuple[EvaluationTask, ...]:

    categories, split = _parts(name)
    found = {one.id: one for category in categories for one in load_category(category, splits=_SPLITS[split])}
    return tuple(
        EvaluationTask(
            id=entry.id,
            origin="official",
            spec=entry.spec,
            cluster=str(entry.index),
            reference_calls=_calls(entry.spec),
            strata={"category": entry.id.rpartition("-")[0], "split": entry.spec.split},
        )
        for entry in map(found.__getitem__, _official_ids(name)[:limit])
    )


@cache
def _official_ids(name: str) -> tuple[str, ...]:
    """Return the ids of an official evaluation set's tasks in their order; no task is read."""
    from environments.bfcl.official import in_seal_test, indices

    categories, split = _parts(name)
    chosen = sorted(index for one in _SPLITS[split] for index in indices(one))
    return tuple(
        f"{category}-{index}"
        for index in chosen
        if split != "seal-test" or in_seal_test(index)
        for category in categories
    )


@cache
def _known_values() -> tuple[KnownValue, ...]:

    found: dict[tuple[str, str, str], set[str]] = {}
    for task in load_category("base", ("train",)):
        known = json.dumps(task.spec.initial_state)
        for call in (call for turn in task.spec.reference for call in turn):
            texts = {name: value for name, value in call.arguments.items() if isinstance(value, str)}
            for name, value in texts.items():
                if value not in known:
                    found.setdefault((call.name, name, value), set()).update(set(texts.values()) - {value})
            known += json.dumps(list(texts.values()))
    return tuple(KnownValue(*key, frozenset(near)) for key, near in found.items())


def _calls(task: TaskSpec) -> int:
    return sum(map(len, task.reference))


BENCHMARK = BFCL()
_HUMAN = BFCL(human=True)
