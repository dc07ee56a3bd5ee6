"""Reads a recipe, YAML plus ``key=value`` overrides, into the settings of a run.

Validation is strict: an unknown key, a value of another type and a key given twice are errors that name the file
(or the override) and the key.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from environments.base import InputError
from environments.checkout import QUICKSTART, find_recipe
from environments.declared import look
from environments.registry import DEFAULT, is_import_path
from environments.settings import with_options_key
from environments.terminal import say
from graph.settings import RunSettings, check_benchmark
from memory.former import FORMER_NAMES, fill_former_defaults, give_environment_options, give_todays_names
from memory.run import RunDirectory
from memory.strict_yaml import parse_yaml, read_recipe

__all__ = ["QUICKSTART", "difference", "load_recipe", "with_raised_budget"]

ENVIRONMENT_NAME = ("environment", "name")

_EVERY_RUN_HAS = {"seed", "iterations", "environment", "policy", "training", "signals", "roles", "memory", "tasks"}

_OTHER_FILES = {
    "base": "a study's recipe, which coevolve study runs",
    "compute_environment": "a configuration of the launcher, which training.launch names as its config",
}
"""The first key of other files that lie in recipes/, and what each is."""

Tree = dict[str, Any]


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> RunSettings:
    """Return the settings in the file at ``path`` with ``overrides`` (each ``dotted.key=value``) on top.

    A recipe that ships with the project is also found by its name in the checkout (recipes/quickstart.yaml).
    Raises InputError with one sentence that names the file or override and the key.
    """
    tree = read_recipe(path)
    of_a_run = path == RunDirectory(path.parent).settings_path and tree.keys() >= _EVERY_RUN_HAS
    renamed = _rename(tree, str(path))
    if of_a_run:
        # Nobody may edit what a run has recorded, so that no name in it is worth a warning.
        _fill_former(tree, path)
    elif renamed:
        _warn(str(path), renamed)
    old = _move_options(tree, path)
    name = _environment_name(tree, overrides)
    given = {}
    for override in overrides:
        keys, renamed = _apply(tree, override, name)
        given[keys] = override
        old += renamed
    try:
        settings = RunSettings.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        _look_at_named(tree, given)
        raise InputError(_explain(error, path, given)) from error
    # The file is right for the environment that it names; another one may have been asked for on top of it.
    check_benchmark(
        settings, f"--set {given[ENVIRONMENT_NAME]} on top of {path}" if ENVIRONMENT_NAME in given else str(path)
    )
    for spelling in old:
        say(f"warning: {spelling}: rename it, the next release takes the new name alone")
    return settings


def difference(left: RunSettings, right: RunSettings) -> str | None:
    """Return the dotted name of the first setting in which the two differ, or None."""

    def first(a: object, b: object, prefix: str) -> str | None:
        if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            found = (first(a[key], b[key], f"{prefix}.{key}" if prefix else key) for key in a)
            return next((name for name in found if name), None)
        return prefix if a != b else None

    return first(left.model_dump(), right.model_dump(), "")


def with_raised_budget(kept: RunSettings, asked: RunSettings) -> RunSettings:
    """Return ``kept`` with the chat roles' budgets raised to those of ``asked``, and its trackers.

    No budget is added or removed.
    """
    budgets = kept.roles.budget.model_dump()
    for key, limit in asked.roles.budget.model_dump().items():
        if limit is not None and budgets[key] is not None:
            budgets[key] = max(limit, budgets[key])
    budget = kept.roles.budget.model_copy(update=budgets)
    return kept.model_copy(
        update={
            "roles": kept.roles.model_copy(update={"budget": budget}),
            "training": kept.training.model_copy(update={"report_to": asked.training.report_to}),
        }
    )


def _move_options(tree: Tree, path: Path) -> list[str]:
    """Bring the section ``environment`` into today's spelling; returns what a warning is due for."""
    try:
        old = give_environment_options(tree)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    # The bases of recorded studies keep the old spelling as long as it works: a study's hash is of its base's content.
    shipped = find_recipe(path).resolve().is_relative_to(QUICKSTART.parent)
    return [] if shipped else [f"{path}: environment.{key} is now environment.options.{key}" for key in old]


def _fill_former(tree: Tree, path: Path) -> None:
    """Give the settings of a run that an earlier version made the values that it has had, and say so."""
    filled = [f"{key}={json.dumps(then)}" for key, then in fill_former_defaults(tree).items()]
    if filled:
        text = f"warning: {path}: an earlier version made this run: it goes on with {', '.join(filled)}"
        say(text)


def _environment_name(tree: Tree, overrides: Sequence[str]) -> str:
    """Return the name of the environment once the overrides are on top."""
    prefix = f"{'.'.join(ENVIRONMENT_NAME)}="
    named = [override.removeprefix(prefix) for override in overrides if override.startswith(prefix)]
    section = tree.get("environment")
    return str(named[-1] if named else section.get("name", DEFAULT) if isinstance(section, dict) else DEFAULT)


def _apply(tree: Tree, override: str, environment: str) -> tuple[tuple[str, ...], list[str]]:
    """Put one ``dotted.key=value`` into ``tree``; returns the key's parts, and itself where its spelling is old."""
    source = f"--set {override}"
    name, equals, value = override.partition("=")
    written = tuple(name.strip().split("."))
    keys = with_options_key(written, environment)
    if not equals or not all(keys):
        raise InputError(f"{source}: write it as key=value, for example training.steps=5")
    old = [] if keys == written else [f"{source}: {name.strip()} is now {'.'.join(keys)}"]
    renamed = [former] if (former := ".".join(keys)) in FORMER_NAMES else []
    if renamed:
        keys = tuple(FORMER_NAMES[former].split("."))
    section = tree
    for key in keys[:-1]:
        if section.get(key) is None:
            section[key] = {}
        section = section[key]
        if not isinstance(section, dict):
            raise InputError(f"{source}: '{key}' is a value, not a section")
    section[keys[-1]] = parse_yaml(value, source)
    if renamed := [*renamed, *_rename(tree, source)]:
        _warn(source, renamed)
    return keys, old


def _rename(tree: Tree, source: str) -> list[str]:
    """Give former keys in ``tree`` their names of today, and return them. Raises InputError where both are there."""
    try:
        return give_todays_names(tree)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _warn(source: str, former: Sequence[str]) -> None:
    """Say in one line which keys of ``source`` have other names today."""
    names = ", ".join(f"{old} is called {FORMER_NAMES[old]} now" for old in former)
    works = "the old name works" if len(former) == 1 else "the old names work"
    say(f"warning: {source}: {names}, {works} for one release")


def _look_at_named(tree: Tree, given: Mapping[tuple[str, ...], str]) -> None:
    """Raise InputError when an override names an environment that is not there.

    Called for a recipe that is wrong for that environment: the missing module is the likelier mistake.
    """
    section = tree.get("environment")
    name = section.get("name") if isinstance(section, dict) else None
    if ENVIRONMENT_NAME in given and isinstance(name, str) and is_import_path(name):
        look(name)


def _explain(error: ValidationError, path: Path, given: dict[tuple[str, ...], str]) -> str:
    first = error.errors(include_url=False)[0]
    location = tuple(str(part) for part in first["loc"])
    override = next((text for keys, text in given.items() if keys[: len(location)] == location), None) or next(
        (text for keys, text in given.items() if location[: len(keys)] == keys), None
    )
    source = f"--set {override}" if override else str(path)
    if override is None and location[:1] == ("environment",) and ENVIRONMENT_NAME in given:
        # The file is right for its own environment; the override named another one.
        source = f"--set {given[ENVIRONMENT_NAME]} on top of {path}"
    name = ".".join(location)
    if first["type"] == "extra_forbidden":
        if override is None and name in _OTHER_FILES:
            return f"{source}: not the recipe of a run, but {_OTHER_FILES[name]}"
        if location[0] == "roles" and location[-1] == "key_variable":
            return (
                f"{source}: unknown key '{name}': an address decides its key: remove it, and set the environment "
                "variable COEVOLVE_KEYS to ADDRESS=VARIABLE"
            )
        return f"{source}: unknown key '{name}'{_suggestion(location)}"
    message = first["msg"].removeprefix("Value error, ")
    where = f"{name}: " if name else ""  # a rule that spans sections names its keys itself
    return f"{source}: {where}{message[:1].lower()}{message[1:]}"


def _suggestion(location: tuple[str, ...]) -> str:
    """Return a hint: the nearest key of the section, else all of them."""
    model: type[BaseModel] = RunSettings
    for part in location[:-1]:
        inner = _section(model, part)
        if inner is None:
            return ""
        model = inner
    names = list(model.model_fields)
    experimental = _section(model, "experimental")
    within = [f"experimental.{name}" for name in experimental.model_fields] if experimental else []
    near = difflib.get_close_matches(location[-1], [*names, *within], n=1)
    return f": did you mean '{near[0]}'?" if near else f": choose from {', '.join(names)}"


def _section(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    found = model.model_fields[name].annotation if name in model.model_fields else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None
