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
from environments.checkout import QUICKSTART
from environments.declared import look
from environments.registry import is_import_path
from graph.settings import RunSettings, check_benchmark
from memory.run import first_change
from memory.strict_yaml import changes_given, put, read_recipe

__all__ = ["QUICKSTART", "difference", "load_recipe", "with_raised_budget"]

ENVIRONMENT_NAME = ("environment", "name")

_OTHER_FILES = {
    "base": "a study's recipe, which coevolve study runs",
    "compute_environment": "a configuration of the launcher, which training.launch names as its config",
}
"""The first key of other files that lie in recipes/, and what each is."""

Tree = dict[str, Any]


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> RunSettings:
    """Return the settings in the file at ``path`` with ``overrides`` (``dotted.key=value``, or ``@FILE``) on top.

    A recipe that ships with the project is also found by its name in the checkout (recipes/quickstart.yaml).
    Raises InputError with one sentence that names the file or override and the key.
    """
    tree = read_recipe(path)
    given: dict[tuple[str, ...], str] = {}
    for change in changes_given(overrides):
        put(tree, change.keys, change.value, f"--set {change.given}")
        given[change.keys] = change.given
    try:
        settings = RunSettings.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        _look_at_named(tree, given)
        raise InputError(_explain(error, path, given)) from error
    # The file is right for the environment that it names; another one may have been asked for on top of it.
    check_benchmark(
        settings, f"--set {given[ENVIRONMENT_NAME]} on top of {path}" if ENVIRONMENT_NAME in given else str(path)
    )
    return settings


def difference(left: RunSettings, right: RunSettings) -> str | None:
    """Return the dotted name of the first setting in which the two differ, or None."""
    found = first_change(left.model_dump(), right.model_dump())
    return found and found[0]


def with_raised_budget(kept: RunSettings, asked: RunSettings) -> RunSettings:
    """Return ``kept`` with the chat roles' budgets raised to those of ``asked``, and its trackers."""
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
