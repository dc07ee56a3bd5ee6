"""Define BFCL multi-turn as a benchmark: its options, splits, held-out sets, official tasks and wordings."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache

from pydantic import Field

from environments.base import Environment, InputError, TaskSpec
from environments.benchmark import (
    Benchmark,
    EvaluationSet,
    EvaluationTask,
    KnownValue,
    OfficialTask,
    OfficialTasks,
    Options,
)
from environments.bfcl.official import Split
from environments.verification.decontamination import HeldOut, held_out
from environments.verification.fingerprints import PublishedPanel, published_panels
from environments.verification.held_out_records import HeldOutRecord

_CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
_SPLITS: dict[str, tuple[Split, ...]] = {
    "all": ("train", "dev", "test"),
    "train": ("train",),
    "dev": ("dev",),
    "test": ("test",),
    "seal-test": ("test",),
}


class BFCLOptions(Options):
    """Options of the environment."""

    classes: tuple[str, ...] = Field(
        ("GorillaFileSystem", "VehicleControlAPI"),
        description="official classes that exploration and templated tasks use (ours: two of eight)",
    )
    max_steps: int = Field(
        20, ge=1, le=10_000, description="actions in one user turn before it is cut off (official: 20)"
    )


class BFCL(Benchmark[BFCLOptions]):
    """Berkeley Function Calling Leaderboard, multi-turn categories, with the package's own simulators and checkers.

    The evaluation sets of the split test open only for a committed study (``environments.bfcl.templated.panels``). The
    split "seal-test" is the 100 indices of the split test that a test after SEAL's protocol uses.
    """

    name = "bfcl"
    options_type = BFCLOptions
    reports_partial = False
    evaluation_sets = {
        "templated-dev": False,
        "templated-test": True,
        "longer-dev": False,
        "longer-test": True,
        "turns-dev": False,
        "turns-test": True,
    }
    categories = _CATEGORIES
    splits = tuple(_SPLITS)
    test_access = "study"

    def open(self, options: BFCLOptions) -> Environment:
        """Open the environment. Raises InputError when bfcl-eval is not installed or a class is unknown."""
        from environments.bfcl.environment import BFCLEnvironment

        return BFCLEnvironment(options.classes, options.max_steps)

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
        """Return the tasks of the training split whose classes ``options`` names, of all four categories."""
        from environments.bfcl.official import load_category

        found = [one for category in _CATEGORIES for one in load_category(category, ("train",))]
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
        from environments.bfcl.templated.text import render_task

        return render_task(environment, task, "train", rng)

    def known_values(self) -> tuple[KnownValue, ...]:
        """Return the text values of human training references that no state and no earlier call holds.

        The cities that have a zipcode are neither in a state nor in the documentation: a language model knows or
        guesses such names, a rule-based explorer does not. Only training indices are read.
        """
        return _known_values()

    def held_out(self) -> HeldOut:
        """Return the held-out sets and official tasks. Raises InputError when a file is missing or altered."""
        return held_out(self.name)

    def published_panels(self) -> tuple[PublishedPanel, ...]:
        """Return the published record of every evaluation set. Raises InputError like ``held_out``."""
        return published_panels(self.name)

    def make_held_out_record(self) -> HeldOutRecord:
        """Make the record of the evaluation sets and the held-out official tasks. Takes some minutes."""
        from environments.bfcl.held_out_record import make_record

        return make_record()

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Describe an evaluation set by its file, without rebuilding its tasks."""
        from environments.bfcl.templated.panels import panel_file

        file = panel_file(name)
        return EvaluationSet(name=name, held_out=self.evaluation_sets[name], sha256=file.sha256, tasks=len(file.tasks))

    def open_evaluation_set(self, name: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
        """Return the tasks of an evaluation set. Raises InputError where its file does not match its hash."""
        from environments.bfcl.templated.panels import load_panel

        return tuple(
            EvaluationTask(
                id=member.id,
                origin="panel",
                spec=member.spec,
                cluster=member.cluster,
                reference_calls=_calls(member.spec),
                strata={key: str(value) for key, value in member.strata},
            )
            for member in load_panel(name)[:limit]
        )

    def open_category(self, category: str, split: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
        """Return the official tasks of a category; reserved indices are never among them."""
        from environments.bfcl.official import in_seal_test, load_category

        official = load_category(category, splits=_SPLITS[split])
        if split == "seal-test":
            official = tuple(entry for entry in official if in_seal_test(entry.index))
        return tuple(
            EvaluationTask(
                id=entry.id,
                origin="official",
                spec=entry.spec,
                cluster=str(entry.index),
                reference_calls=_calls(entry.spec),
                strata={"split": entry.spec.split},
            )
            for entry in official[:limit]
        )

    def category_notes(self) -> tuple[str, ...]:
        """Return notes on the indices that are missing."""
        return ("indices 40-49 and 90-99 are reserved and not scored: 180 of a category's 200 tasks at most",)


@cache
def _known_values() -> tuple[KnownValue, ...]:
    from environments.bfcl.official import load_category

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
