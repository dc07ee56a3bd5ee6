"""Define BFCL multi-turn as a benchmark: its options, splits, held-out sets, official tasks and wordings."""

from __future__ import annotations

import json
import random
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
from environments.bfcl.evaluation_sets import SETS, describe, is_official, open_tasks
from environments.bfcl.official import CATEGORIES, VERSION, load_category
from environments.metrics import CALL_METRICS
from environments.verification.decontamination import HeldOut, held_out


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

    ``evaluation_sets`` explains the evaluation sets. The templated ones of the split test open for a committed study
    alone, official tasks and turns of that split for a command that names a test access log.
    """

    name = "bfcl"
    options_type = BFCLOptions
    actions_option = "max_steps"
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
    evaluation_sets = SETS

    def __init__(self, *, human: bool = False) -> None:
        self._human = human

    def open(self, options: BFCLOptions) -> Environment:
        """Open the environment. Raises InputError when bfcl-eval is not installed or a class is unknown."""
        environment = BFCLEnvironment(options.classes, options.max_steps)
        if options.wordings == "human":
            environment.benchmark = _HUMAN
        return environment

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
        if self._human:
            from environments.bfcl.templated import human_wordings

            return human_wordings.render_task(environment, task, rng)
        from environments.bfcl.templated import wordings

        return wordings.render_task(environment, task, rng)

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

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Describe an evaluation set by its file, without reading its tasks; an official one by the tasks' ids."""
        return describe(name)

    def open_evaluation_set(self, name: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
        """Return the tasks of an evaluation set. Raises InputError where its file does not match its hash."""
        return open_tasks(name, limit)

    def access_to(self, name: str) -> TestAccess:
        """Return "ledger" for official tasks, which are public, and "study" for the templated ones."""
        return "ledger" if is_official(name) else "study"


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


BENCHMARK = BFCL()
_HUMAN = BFCL(human=True)
