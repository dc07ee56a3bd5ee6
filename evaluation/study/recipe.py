"""The recipe of a study: what all arms share, what each arm changes, which evaluation sets they are scored on; and what
it claims before anything runs: hypotheses, and gates (ours).

A hypothesis is a difference that is expected before a test set is opened. A gate is a range of a figure that the
records have: a comparison of two sources of tasks says something only where tasks can be learnt from and the signals
occur. A study of which a gate fails is void, and its report begins with that. Nothing of them is chosen afterwards.
What came of both is in ``findings``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from environments.base import InputError
from evaluation.settings import LOOKUP, AttemptSettings
from memory.jsonl import complaint, put, read_recipe
from memory.records import SignalKind

BASELINE = "grpo"
"""The arm that all others are compared with."""

SEED = "{seed}"
"""In ``policy.path``: the number of the seed, where each seed starts from a policy of its own."""

Mode = Literal["dev", "test"]
FIRST_SEED: dict[Mode, int] = {"dev": 100, "test": 0}
"""Development takes seeds from 100 on, the study seeds below that."""

_FROZEN = ("seed", "iterations", "environment", "policy", "training", "evaluation", "deadlines")
_FROZEN_TASKS = ("tasks.initial", "tasks.initial_count")
_FREE = ("training.seal",)  # the exception: what an arm adds to plain GRPO

Tree = dict[str, Any]

Measure = Literal["success", "mixed_groups"] | SignalKind

MOST = 50
"""The largest number of hypotheses of a study."""


Percent = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class Strict(BaseModel):
    """A part of the study's recipe: unknown keys are errors that name the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Hypothesis(Strict):
    """A difference between two arms that is expected, with its size."""

    arm: str = Field(description="the arm that is expected to differ")
    against: str = Field(description="the arm that it is compared with; lookup: the lookup over the arm's own tasks")
    expected: Percent = Field(
        description="size of arm minus against that is expected, in percent points of the main score; 0: none, which "
        "a study may refute but cannot show",
    )
    margin: Annotated[Percent, Field(gt=0)] | None = Field(
        None,
        description="where no difference is expected: percent points within which two arms count as equal; equality is "
        "shown where the whole interval is within them",
    )
    why: str = Field(min_length=1, max_length=500, description="one sentence of the report: why it is expected")

    @model_validator(mode="after")
    def _claims_equality(self) -> Self:
        if self.margin is not None and self.expected != 0:
            raise ValueError(f"margin is for arms that are expected to be equal, and expected is {self.expected:g}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The arms that have to run: the arm, and the one it is compared with."""
        return (self.arm,) if self.against == LOOKUP else (self.arm, self.against)

    @property
    def row(self) -> str:
        """The row of the report that the arm is compared with."""
        return lookup_row(self.arm) if self.against == LOOKUP else self.against


class Gate(Strict):
    """A range, in percent, that a figure of an arm has to be in, or its difference to that of another arm."""

    measure: Measure = Field(
        description="success: of the main evaluation set's tasks; mixed_groups: share of GRPO's groups in which some "
        "rollouts succeed and some fail; forgetting, boundary, rare: the kind's share of the signals' marks"
    )
    arm: str = Field(description="the arm whose seeds are measured")
    against: str | None = Field(None, description="the arm that is subtracted; null: the figure itself is meant")
    at_least: Percent = Field(description="the smallest value, in percent")
    at_most: Percent = Field(100.0, description="the largest value, in percent")
    why: str = Field(min_length=1, max_length=500, description="one sentence of the report: why it has to hold")

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.at_least > self.at_most:
            raise ValueError(f"at_least is {self.at_least:g} and at_most {self.at_most:g}: no value passes")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The arms that have to run."""
        return (self.arm,) if self.against is None else (self.arm, self.against)

    @property
    def sentence(self) -> str:
        """The demand in words."""
        whose = self.arm if self.against is None else f"{self.arm} minus {self.against}"
        unit = "%" if self.against is None else "points"
        fixed = {"success": "success", "mixed_groups": "groups that are mixed"}
        words = fixed.get(self.measure, f"marks that are {self.measure}")
        least = f"{self.at_least:g} to {self.at_most:g}" if self.at_most < 100 else f"at least {self.at_least:g}"
        return f"{words} of {whose}: {least} {unit}"


def lookup_row(arm: str) -> str:
    """Return the name of the report's row with the lookup over the tasks of ``arm``."""
    return f"{arm} ({LOOKUP})"


class Arm(Strict):
    """One way to train. ``overrides`` are dotted keys of a run's recipe on top of what all arms share."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="part of file names")
    description: str = Field(min_length=1, description="one line of the report")
    seeds: int = Field(3, ge=1, le=100, description="seeds of the study; development names its own")
    overrides: dict[str, JsonValue] = Field({}, description="settings of this arm alone, by dotted key")
    match_admissions: str | None = Field(
        None, description="admit as many tasks in each iteration as this arm's run of the same seed did"
    )
    untrained: bool = Field(
        False,
        description="score the policy that arms start from, or with overrides of policy another one; nothing is run",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ignored = any(key.partition(".")[0] != "policy" for key in self.overrides)
        if self.untrained and (ignored or self.match_admissions):
            raise ValueError(
                f"'{self.name}' is untrained and would ignore match_admissions and all overrides but those of policy: "
                "remove them"
            )
        if self.match_admissions and "tasks.admissions" in self.overrides:
            raise ValueError(f"'{self.name}' gives tasks.admissions and match_admissions: leave one out")
        return self


class SetsBySplit(Strict):
    """The evaluation sets that final policies are scored on, in development and in the study itself."""

    dev: tuple[str, ...] = Field(min_length=1)
    test: tuple[str, ...] = Field(min_length=1)


class StudyRecipe(Strict):
    """The whole of recipes/study-world.yaml."""

    base: Path = Field(description="recipe file that holds the settings of a run")
    settings: dict[str, JsonValue] = Field({}, description="settings on top of it that all arms share, by dotted key")
    sets: SetsBySplit
    scoring: AttemptSettings = Field(
        AttemptSettings(), description="limits of the attempts that are scored; null: the benchmark's (ours)"
    )
    deadline: float = Field(
        1800.0, gt=0, le=365 * 24 * 3600.0, description="wall seconds of one arm and seed before it is ended"
    )
    varies: tuple[str, ...] = Field(
        (),
        description="keys that arms may override though all arms share them otherwise, such as policy.path, "
        "tasks.initial_count, training.steps, iterations, environment (ours)",
    )
    compare: tuple[tuple[str, str], ...] = Field(
        (), description="further paired differences: an arm and the one it is compared with"
    )
    hypotheses: tuple[Hypothesis, ...] = Field(
        (),
        max_length=MOST,
        description="differences that are expected, with their size, written down before a test set is opened: tested "
        "together, with a correction for their number, and compared as in compare (ours)",
    )
    score: Literal["shapes", "tasks"] = Field(
        "shapes",
        description="main score of hypotheses; shapes: the mean over call shapes where they are known; tasks: the "
        "share of tasks that succeed (ours)",
    )
    gates: tuple[Gate, ...] = Field(
        (),
        description="demands on the records without which the comparisons mean nothing: a report of which one fails "
        "begins with that (ours)",
    )
    lookup: bool = Field(
        False,
        description="answer the sets by the nearest clause of the tasks that each trained arm could learn from: "
        "a row beside each arm's (ours)",
    )
    arms: tuple[Arm, ...] = Field(min_length=1, description="in order of worth: the first are run first")

    @property
    def limits(self) -> dict[str, JsonValue]:
        """The limits of attempts that the recipe states."""
        return self.scoring.model_dump(exclude_defaults=True)

    @model_validator(mode="after")
    def _arms_share(self) -> Self:
        if "seed" in self.varies:
            raise ValueError("'varies' names seed, which each run has of its own: remove it")
        if own := [key for key in self.varies if not _is_shared(key)]:
            raise ValueError(f"'varies' names {own[0]}, which arms may override anyway: remove it")
        varied = tuple(f"{key}." for key in self.varies)
        for arm in (one for one in self.arms if not one.untrained):
            if wrong := [key for key in arm.overrides if _is_shared(key) and not f"{key}.".startswith(varied)]:
                raise ValueError(
                    f"'{arm.name}' overrides {wrong[0]}, which all arms share: move it to settings, or name it in "
                    "'varies' where the study is about it"
                )
        return self

    @model_validator(mode="after")
    def _arms_fit(self) -> Self:
        names = [arm.name for arm in self.arms]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two arms are called '{twice[0]}': rename one")
        if LOOKUP in names:
            raise ValueError(f"an arm is called '{LOOKUP}', as the baseline is: rename it")
        if BASELINE not in names:
            raise ValueError(f"no arm is called '{BASELINE}', the one that others are compared with: add it")
        trained = {arm.name: arm for arm in self.arms if not arm.untrained}
        for arm in self.arms:
            other = arm.match_admissions
            if other is not None and (other not in trained or trained[other].match_admissions or other == arm.name):
                raise ValueError(f"'{arm.name}' matches the admissions of '{other}', which has none of its own")
            if other is not None and trained[other].seeds < arm.seeds:
                raise ValueError(f"'{arm.name}' has more seeds than '{other}', whose admissions it matches")
        if unknown := [name for pair in self.compare for name in pair if name not in names]:
            raise ValueError(f"compare names '{unknown[0]}', which is not an arm: choose from {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _hypotheses_can_be_tested(self) -> Self:
        arms, stated = {arm.name: arm for arm in self.arms}, set[frozenset[str]]()
        for one in self.hypotheses:
            names, pair = f"'{one.arm}' against '{one.against}'", frozenset((one.arm, one.row))
            if unknown := [name for name in one.names if name not in arms]:
                raise ValueError(f"hypotheses name '{unknown[0]}', which is not an arm: choose from {', '.join(arms)}")
            if one.arm == one.against:
                raise ValueError(f"hypotheses compare '{one.arm}' with itself: name another arm")
            if one.against == LOOKUP and (not self.lookup or arms[one.arm].untrained):
                raise ValueError(f"hypotheses state {names}, which is not scored: set lookup, and name a trained arm")
            if pair in stated:
                raise ValueError(f"hypotheses state {names} twice, in one order or the other: remove one")
            stated.add(pair)
            if all(arms[name].untrained for name in one.names):
                raise ValueError(f"hypotheses state {names}, whose seeds are alike as neither is trained: use compare")
            if few := [name for name in one.names if arms[name].seeds < 2]:
                raise ValueError(f"hypotheses state {names}, but '{few[0]}' has one seed: a test needs at least 2")
        return self

    @model_validator(mode="after")
    def _gates_can_be_measured(self) -> Self:
        arms = {arm.name: arm for arm in self.arms}
        for one in self.gates:
            if unknown := [name for name in one.names if name not in arms]:
                raise ValueError(f"gates name '{unknown[0]}', which is not an arm: choose from {', '.join(arms)}")
            if one.measure != "success" and (idle := [name for name in one.names if arms[name].untrained]):
                raise ValueError(
                    f"gates ask for {one.measure} of '{idle[0]}', which is not trained: name a trained arm"
                )
        return self

    @property
    def compared(self) -> tuple[tuple[str, str], ...]:
        """All pairs that are compared, each once: those of ``compare``, then those of hypotheses."""
        expected = ((one.arm, one.against) for one in self.hypotheses if one.against != LOOKUP)
        return tuple(dict.fromkeys((*self.compare, *expected)))

    def arm(self, name: str) -> Arm:
        """Return the arm of that name. Raises InputError for an unknown one."""
        found = [arm for arm in self.arms if arm.name == name]
        if not found:
            raise InputError(f"no arm is called {name!r}: choose from {', '.join(arm.name for arm in self.arms)}")
        return found[0]

    def set_names(self, mode: Mode) -> tuple[str, ...]:
        """Return the evaluation sets that a mode scores on."""
        return self.sets.dev if mode == "dev" else self.sets.test


def _is_shared(key: str) -> bool:
    """Return whether all arms of a study have this setting in common, unless it ``varies``."""
    return (key.partition(".")[0] in _FROZEN or key in _FROZEN_TASKS) and not key.startswith(_FREE)


def read_study(path: Path, changes: Mapping[str, JsonValue] | None = None) -> tuple[StudyRecipe, Tree]:
    """Return the study at ``path`` as it is stated, and its file's content; no other file is looked at.

    ``changes`` of the file's own limits of scoring, by dotted key. Raises InputError that names the file and the key.
    """
    tree = read_recipe(path)
    if "base" not in tree:
        raise InputError(f"{path}: not a study's recipe, which names as base the recipe of a run")
    for key, value in (changes or {}).items():
        put(tree, key.split("."), value, key)
    try:
        return StudyRecipe.model_validate_json(json.dumps(tree, default=str), strict=True), tree
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error).replace('Value error, ', '')}") from None
