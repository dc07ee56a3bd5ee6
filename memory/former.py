"""List the former names and defaults of settings, for everything that reads old files.

Recipes and options of a command take a former name, with a warning, for one release. The settings of a run, and the
recipes of recorded studies, keep the names and the defaults that they were made with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import JsonValue

from environments.base import InputError
from environments.settings import with_options

__all__ = [
    "FORMER_DEFAULTS",
    "FORMER_NAMES",
    "FORMER_OPTIONS",
    "FormerDefault",
    "fill_former_defaults",
    "give_environment_options",
    "give_former_names",
    "give_todays_names",
]

FORMER_NAMES: Mapping[str, str] = {
    "evaluation.panel": "evaluation.set",
}
"""Dotted keys of a recipe: today's by the former one. No name is both."""

FORMER_OPTIONS: Mapping[str, str] = {"panel": "evaluation_set", "openings": "access_log"}
"""Options of ``evaluation.run``: today's by the former one."""


class FormerDefault(NamedTuple):
    """The value that a setting had where nothing stated it, before and today."""

    then: JsonValue
    now: JsonValue


FORMER_DEFAULTS: Mapping[str, FormerDefault] = {
    "roles.exploration.independent": FormerDefault(False, True),
    "roles.exploration.order": FormerDefault("easy_first", "long_first"),
    "training.loss": FormerDefault("grpo", "group_tokens"),
    "training.length_cost": FormerDefault(0.1, 0.0),
    "tasks.evolved_share": FormerDefault(0.5, None),
    "training.seal.unreached": FormerDefault("left_out", "padded"),
    "training.seal.weights.dynamic": FormerDefault(True, False),
    "training.seal.weights.cap_abstention": FormerDefault(True, False),
}
"""Settings whose default changed, or which are new and not by default what was done before, by dotted key.

- A run's settings.yaml has every key of its version. Where it lacks one of these, the run goes on with ``then``.
- A recorded study's recipe states ``then``, so that it means what it meant. Hashes of recorded results leave that value
  out, as the recipe did, and write ``now`` out, so that a recipe which relies on it has another hash.
"""


def give_todays_names(tree: dict[str, Any]) -> list[str]:
    """Rename the former keys in the sections of a recipe, in place; return their dotted names.

    A key whose section of today is not a mapping stays. Raises InputError where a setting has both names.
    """
    return [former for former, today in FORMER_NAMES.items() if _move(tree, former, today)]


def give_former_names(tree: dict[str, Any]) -> None:
    """Undo ``give_todays_names`` in the sections of a recipe, in place."""
    for former, today in FORMER_NAMES.items():
        _move(tree, today, former)
        above, _, section = today.rpartition(".")[0].rpartition(".")
        parent = _section(tree, above) if above else None
        if parent is not None and parent.get(section) == {}:
            del parent[section]


def give_environment_options(tree: dict[str, Any]) -> tuple[str, ...]:
    """Move a benchmark's options from ``environment`` to ``environment.options``, in place; return their names.

    Raises InputError for an option that is in both places.
    """
    section = tree.get("environment")
    if not isinstance(section, dict):
        return ()
    tree["environment"], moved = with_options(section)
    return moved


def fill_former_defaults(tree: dict[str, Any]) -> dict[str, JsonValue]:
    """Add to the settings of a run, in place, what its version did where it had no key; return what was added.

    What a run recorded as the variable of a role's key is left out: the address alone decides it.
    """
    for role in (_section(tree, "roles") or {}).values():
        if isinstance(role, dict):
            role.pop("key_variable", None)
    filled = {}
    for key, (then, _) in FORMER_DEFAULTS.items():
        above, _, name = key.rpartition(".")
        section = _section(tree, above)
        if section is not None and name not in section:
            section[name] = filled[key] = then
    return filled


def _move(tree: dict[str, Any], key: str, to: str) -> bool:
    above, _, name = key.rpartition(".")
    target, _, renamed = to.rpartition(".")
    section = _section(tree, above)
    if section is None or name not in section:
        return False
    into = _section(tree, target, make=True)
    if into is None:
        return False
    if renamed in into:
        raise InputError(f"{key} is the former name of {to}: remove one of them")
    into[renamed] = section.pop(name)
    return True


def _section(tree: dict[str, Any], key: str, *, make: bool = False) -> dict[str, Any] | None:
    """Return a section by its dotted key; None where it is missing and not to be made, or is a plain value."""
    section: Any = tree
    for name in key.split("."):
        if not isinstance(section, dict):
            return None
        section = section.setdefault(name, {}) if make else section.get(name)
    return section if isinstance(section, dict) else None
