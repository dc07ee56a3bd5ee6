"""The recipe of a study: what all arms share, what each arm changes, and which evaluation sets they are scored on."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from environments.base import InputError, Record
from environments.checkout import INITIAL_POLICY, find_recipe, shipped_policy
from evaluation.panels import held_out, panel_hash
from memory.jsonl import complaint
from memory.settings import Section, TaskSettings
from memory.strict_yaml import read_yaml
from training.settings import TrainingSettings

BASELINE = "grpo"
"""The arm that all others are compared with."""

RESERVED = "study"
"""The key of summary.json that is not an arm."""

Mode = Literal["dev", "test"]
FIRST_SEED: dict[Mode, int] = {"dev": 100, "test": 0}
"""Development takes seeds from 100 on, the study seeds below that."""

_FROZEN = ("seed", "iterations", "environment", "policy", "training", "evaluation", "deadlines")
_FROZEN_TASKS = ("tasks.initial", "tasks.initial_count")
_FREE = ("training.lend_", "training.seal")  # the exceptions: what an arm adds to plain GRPO

RECORDED_KEYS = {"evaluation.set": "evaluation.panel"}
"""Keys of today by the names that the hashes of recorded results were taken with."""

RECORDED_DEFAULTS: dict[str, JsonValue] = {
    "training.loss": "grpo",
    "training.length_cost": 0.1,
    "tasks.evolved_share": 0.5,
}
"""Keys whose default has changed, with the one of when the hashes of recorded results were taken.

A recipe that states the old default means what one that did not state it meant then: its hash has no such key. One that
leaves the key out means the new default: its hash has it.
"""

_SECTIONS: dict[str, type[Section]] = {"training": TrainingSettings, "tasks": TaskSettings}
"""Sections of RECORDED_DEFAULTS, for the defaults of today."""

Tree = dict[str, Any]


class Strict(BaseModel):
    """A part of the study's recipe: unknown keys are errors that name the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Arm(Strict):
    """One way to train. ``overrides`` are dotted keys of a run's recipe on top of what all arms share."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="part of file names")
    description: str = Field(min_length=1, description="one line of the report")
    seeds: int = Field(3, ge=1, le=100, description="seeds of the study; development names its own")
    overrides: dict[str, JsonValue] = Field({}, description="settings of this arm alone, by dotted key")
    match_admissions: str | None = Field(
        None, description="admit as many tasks in each iteration as this arm's run of the same seed did"
    )
    untrained: bool = Field(False, description="score the policy that all arms start from; nothing is run")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name == RESERVED:
            raise ValueError(f"no arm can be called '{RESERVED}': it is a key of the summary, choose another name")
        if self.untrained and (self.overrides or self.match_admissions):
            raise ValueError(f"'{self.name}' is untrained and would ignore overrides and match_admissions: remove them")
        for key in self.overrides:
            frozen = key.partition(".")[0] in _FROZEN or key in _FROZEN_TASKS
            if frozen and not key.startswith(_FREE):
                raise ValueError(f"'{self.name}' overrides {key}, which all arms share: move it to settings")
        if self.match_admissions and "tasks.admissions" in self.overrides:
            raise ValueError(f"'{self.name}' gives tasks.admissions and match_admissions: leave one out")
        return self


class SetsBySplit(Strict):
    """The evaluation sets that final policies are scored on, in development and in the study itself."""

    dev: tuple[str, ...] = Field(min_length=1)
    test: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _of_their_split(self) -> Self:
        for mode, names in (("dev", self.dev), ("test", self.test)):
            for name in names:
                if held_out(name) != (mode == "test"):
                    raise ValueError(f"the evaluation set {name} is not of the split {mode}: move it to the other list")
        return self


class StudyRecipe(Strict):
    """The whole of recipes/study.yaml."""

    base: Path = Field(description="recipe file that holds the settings of a run")
    settings: dict[str, JsonValue] = Field({}, description="settings on top of it that all arms share, by dotted key")
    sets: SetsBySplit = Field(validation_alias=AliasChoices("sets", "panels"))
    strata: tuple[Annotated[str, Field(pattern="^[a-z]+=[a-z0-9]+$")], ...] = Field(
        (), description="labels of tasks, key=value: parts of each mode's first set that are reported on their own"
    )
    limit: int | None = Field(
        None, ge=1, le=1_000_000, description="score the first N tasks of each set only (labelled as such)"
    )
    deadline: float = Field(
        1800.0, gt=0, le=365 * 24 * 3600.0, description="wall seconds of one arm and seed before it is ended"
    )
    compare: tuple[tuple[str, str], ...] = Field(
        (), description="further paired differences: an arm and the one it is compared with"
    )
    arms: tuple[Arm, ...] = Field(min_length=1, description="in order of worth: the first are run first")

    @model_validator(mode="after")
    def _arms_fit(self) -> Self:
        names = [arm.name for arm in self.arms]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two arms are called '{twice[0]}': rename one")
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
            raise ValueError(f"compare names '{unknown[0]}', which is no arm: choose from {', '.join(names)}")
        return self

    def arm(self, name: str) -> Arm:
        """Return the arm of that name. Raises InputError for an unknown one."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise InputError(f"no arm is called {name!r}: choose from {', '.join(arm.name for arm in self.arms)}")

    def reported(self, mode: Mode) -> tuple[str, ...]:
        """Return the evaluation sets of a mode, with the strata of the first one after it."""
        first, *others = self.set_names(mode)
        return (first, *(f"{first}/{stratum}" for stratum in self.strata), *others)

    def set_names(self, mode: Mode) -> tuple[str, ...]:
        """Return the evaluation sets that a mode scores on."""
        return self.sets.dev if mode == "dev" else self.sets.test


class Study(Record):
    """A study's recipe with the base recipe's settings and the hashes of initial policy and evaluation sets."""

    recipe: StudyRecipe
    shared: dict[str, JsonValue]
    sha256: str
    starter: str
    starter_sha256: str
    panels: dict[str, str]

    def settings_of(self, arm: Arm, seed: int, admissions: Sequence[int] | None) -> Tree:
        """Return all settings of one run, as a recipe has them. ``admissions`` are those that the arm matches."""
        tree: Tree = copy.deepcopy(self.shared)
        for key, value in arm.overrides.items():
            put(tree, key, value)
        if arm.match_admissions is not None:
            put(tree, "tasks.admissions", list(admissions or ()))
        return tree | {"seed": seed}

    def iterations(self) -> int:
        """Return the iterations of a run. Raises InputError when no recipe states them."""
        found = self.shared.get("iterations")
        if not isinstance(found, int):
            raise InputError(f"{self.recipe.base}: state 'iterations' there or in the study's settings")
        return found

    def run_hash(self, arm: Arm, seed: int, mode: Mode, admissions: Sequence[int] | None) -> str:
        """Return the SHA-256 of everything stated that decides the outcomes of one arm and seed."""
        run: JsonValue = None if arm.untrained else _as_recorded(self.settings_of(arm, seed, admissions))
        names = self.recipe.set_names(mode)
        scored: JsonValue = [[name, self.panels[name]] for name in names]
        return _sha256([run, self.starter_sha256, scored, self.recipe.limit])


def load_study(path: Path) -> Study:
    """Read the study at ``path``; files that it names are looked up from the working directory, as in recipes.

    What ships with the project, recipes and initial policies, is found from any working directory.

    Raises InputError that names the file and the key.
    """
    tree = _mapping(path)
    try:
        recipe = StudyRecipe.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error).replace('Value error, ', '')}") from None
    shared = _with_recorded_keys(_mapping(recipe.base))
    for key, value in recipe.settings.items():
        put(shared, key, value)
    policy = shared.get("policy")
    starter = str(policy.get("path", INITIAL_POLICY)) if isinstance(policy, dict) else INITIAL_POLICY
    return Study(
        recipe=recipe,
        shared=shared,
        sha256=_sha256([tree, _as_recorded(shared)]),
        starter=starter,
        starter_sha256=_content_hash(shipped_policy(starter) or Path(starter)),
        panels={name: panel_hash(name) for name in (*recipe.sets.dev, *recipe.sets.test)},
    )


def put(tree: Tree, key: str, value: JsonValue) -> None:
    """Set one dotted key in a recipe's sections, under its recorded name.

    Raises InputError where a part of the key is a value, not a section.
    """
    *sections, last = RECORDED_KEYS.get(key, key).split(".")
    for name in sections:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise InputError(f"{key}: '{name}' is a value, not a section")
    tree[last] = value


def _with_recorded_keys(tree: Tree) -> Tree:
    """Return the sections of a recipe with the keys that recorded hashes were taken with; a run reads either name."""
    found = dict(tree)
    for key, recorded in RECORDED_KEYS.items():
        section, name = key.split(".")
        old = recorded.partition(".")[2]
        if isinstance(found.get(section), dict):
            found[section] = {old if own == name else own: value for own, value in found[section].items()}
    return found


def _as_recorded(tree: Tree) -> Tree:
    """Return the sections of a run's recipe as hashes are taken of them: see RECORDED_DEFAULTS."""
    found = copy.deepcopy(tree)
    for key, former in RECORDED_DEFAULTS.items():
        name, last = key.split(".")
        section = found.setdefault(name, {})
        if isinstance(section, dict):
            value = section.pop(last, _SECTIONS[name].model_fields[last].default)
            if value != former:
                section[last] = value
        if section == {} and tree.get(name) != {}:
            del found[name]
    return found


def _mapping(path: Path) -> Tree:
    tree = read_yaml(find_recipe(path))
    if not isinstance(tree, dict):
        raise InputError(f"{path}: a recipe is a mapping of sections, this is a {type(tree).__name__}")
    return tree


def _content_hash(folder: Path) -> str:
    """Hash the files of a folder by name and content; a model of a hub has its id."""
    if not folder.is_dir():
        return str(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return _sha256([[str(f.relative_to(folder)), hashlib.sha256(f.read_bytes()).hexdigest()] for f in files])


def _sha256(content: JsonValue) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
