"""Reads ``recipes/papers/index.yaml``, the list of tables and figures, and the study recipes that it names."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AliasChoices, BaseModel, Field, ValidationError, model_validator

from environments.base import InputError, Record
from environments.checkout import ROOT, find_recipe
from evaluation.study.recipe import put
from memory.former import give_todays_names
from memory.jsonl import complaint
from memory.strict_yaml import read_recipe

INDEX = ROOT / "recipes" / "papers" / "index.yaml"

Kind = Literal["study", "analysis", "evaluation", "text", "out"]
"""``study`` trains and scores. ``analysis`` computes from the results of a study. ``evaluation`` scores a served model.
``text``: settings, prompts or pictures, so that there is nothing to run. ``out``: not part of this project."""

Tree = dict[str, Any]


class Preparation(Record):
    """A file of first tasks (D_0) that the arms of a study share: made once, by ``coevolve seed``."""

    output: Path
    recipe: Path
    count: int = Field(ge=1)
    overrides: tuple[str, ...] = ()


class Part(Record):
    """One thing to run for a table: a study, a command of ``coevolve analyse``, or one of ``coevolve evaluate``.

    ``command`` has the arguments. ``{raw}`` and ``{runs}`` in it are the folders of the results and of the kept runs of
    the study ``of``, ``{seed}`` its first seed of the split, ``{policy:ARM}`` the last checkpoint of an arm's run,
    ``{output}`` the folder of what is written. ``environment`` and ``sets`` name what an evaluation must find on this
    machine; a study's recipe says so itself. ``variables``: environment variables that must be set. ``gpu``: a part
    that is not a study needs one.
    """

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9.]+)*$")
    recipe: Path | None = None
    prepare: tuple[Preparation, ...] = ()
    of: Path | None = None
    command: tuple[str, ...] = ()
    environment: str | None = None
    sets: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    vllm: bool = False
    gpu: bool = False


class PaperItem(Record):
    """A table or figure. ``note``: what a reader of the result must know, departures from the paper above all."""

    id: str = Field(pattern=r"^(SEAL-)?[TF][0-9]+$")
    title: str
    kind: Kind
    note: str = ""
    parts: tuple[Part, ...] = ()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        needed = {"study": "recipe", "analysis": "of", "evaluation": "command"}.get(self.kind)
        if (needed is None) == bool(self.parts):
            raise ValueError(f"{self.id} is of kind {self.kind}: {'leave out' if needed is None else 'give'} parts")
        for part in self.parts:
            if needed and not getattr(part, needed):
                raise ValueError(f"{self.id}, {part.name}: a part of kind {self.kind} needs {needed!r}")
        if needed is None and not self.note:
            raise ValueError(f"{self.id} is not run: say why, or where it is, in note")
        return self


class MeasuredRates(Record):
    """The factors of an estimate's counts.

    ``gpu_seconds_per_rollout``: by environment, for a model of ``billions`` parameters, feedback and evaluation
    included. ``signals_per_evolution`` and ``tasks_per_signal``: contexts explored, and tasks admitted for each.
    ``prompt_tokens`` and ``completion_tokens``: of one request of a chat role.
    """

    gpu_seconds_per_rollout: dict[str, float]
    billions: float
    signals_per_evolution: float
    tasks_per_signal: float
    prompt_tokens: float
    completion_tokens: float


class RecordedRates(MeasuredRates):
    """The rates of the index, for what the user does not give; each with its source.

    ``set_sizes``: tasks by environment and evaluation set, for estimates on a machine that lacks a benchmark's data.
    """

    set_sizes: dict[str, dict[str, int]] = {}
    sources: dict[str, str]


class Catalogue(Record):
    """The whole index."""

    rates: RecordedRates
    items: tuple[PaperItem, ...]

    def item(self, name: str) -> PaperItem:
        """Return the item of that id, in any case. Raises InputError for an unknown one."""
        for one in self.items:
            if one.id.lower() == name.lower():
                return one
        raise InputError(
            f"no table or figure is called {name!r}: choose from {', '.join(one.id for one in self.items)}"
        )


class StudyArm(BaseModel):
    """The part of an arm that is read here; the study's own reader checks the rest."""

    name: str
    seeds: int = 3
    overrides: dict[str, Any] = {}
    untrained: bool = False


class StudyPlan(BaseModel):
    """The part of a study's recipe that is read here, without opening an evaluation set or hashing a model."""

    base: Path
    settings: dict[str, Any] = {}
    sets: dict[Literal["dev", "test"], tuple[str, ...]] = Field(validation_alias=AliasChoices("sets", "panels"))
    limit: int | None = None
    arms: tuple[StudyArm, ...]

    @cached_property
    def shared(self) -> Tree:
        """The settings that all arms share, by today's names. Raises InputError for a missing base."""
        tree = recipe_at(self.base)
        give_todays_names(tree)
        for key, value in self.settings.items():
            put(tree, key, value)
        return tree

    def settings_of(self, arm: StudyArm) -> Tree:
        """Return the settings of an arm's run. Raises InputError for a missing base."""
        tree = copy.deepcopy(self.shared)
        for key, value in arm.overrides.items():
            put(tree, key, value)
        return tree


def load_catalogue(path: Path = INDEX) -> Catalogue:
    """Return the index. Raises InputError that names the file and the key."""
    try:
        found = Catalogue.model_validate_json(json.dumps(read_recipe(path), default=str))
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error).replace('Value error, ', '')}") from None
    names = [one.id for one in found.items]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{path}: {twice[0]} is listed twice: remove one")
    return found


def load_plan(path: Path) -> StudyPlan:
    """Return a study's recipe. Raises InputError that names the file and the key."""
    try:
        return StudyPlan.model_validate_json(json.dumps(read_recipe(path), default=str))
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error)}") from None


def recipe_at(path: Path) -> Tree:
    """Return the sections of a recipe. Raises InputError for a file that is not a recipe."""
    found = find_recipe(path)
    try:
        state = found.stat()
    except OSError:
        return read_recipe(path)
    return copy.deepcopy(_read_once(found, state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=256)
def _read_once(path: Path, changed: int, size: int) -> Tree:
    """Return the recipe in a file in this state: studies share their base recipes."""
    return read_recipe(path)


def value_of(tree: Mapping[str, Any], key: str, default: Any = None) -> Any:  # noqa: ANN401 - any setting
    """Return a setting by its dotted key, ``default`` where it or a section of it is not there."""
    found: Any = tree
    for name in key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return default
        found = found[name]
    return found
