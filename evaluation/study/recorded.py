"""Name settings as recorded results do: their hashes were taken with former names, without what is now a default.

A hash says whether a result is of the recipe as it is. A setting that is renamed, moved or given another default must
not make a recorded result another's.
"""

from __future__ import annotations

import copy
from typing import Any

from pydantic import JsonValue

from memory.former import FORMER_DEFAULTS, FORMER_NAMES, give_former_names

__all__ = ["settings_as_recorded", "text_as_recorded"]

RECORDED_KEYS = {today: former for former, today in FORMER_NAMES.items()}
"""Keys of today by the names that the hashes of recorded results were taken with."""

RECORDED_BASES = {"recipes/grpo-base.yaml": "recipes/quickstart.yaml"}
"""Base recipes by the names that the hashes of recorded results were taken with; the content is the same."""

_NULL_SECTIONS = ("training.seal",)  # off unless given; a key left out of any other section has its default

Tree = dict[str, Any]


def settings_as_recorded(tree: Tree) -> Tree:
    """Return all settings of a run, in today's names, as the hashes of recorded results have them.

    What they leave out has today's default (``FORMER_DEFAULTS``).
    """
    recorded = copy.deepcopy(_without_former_defaults(tree, whole=True))
    give_former_names(recorded)
    return recorded


def text_as_recorded(tree: Tree) -> Tree:
    """Return a study's recipe without the former defaults that its settings and arms state by dotted key.

    A dotted key has the name that it was recorded by, and so has the base.
    """

    def stated(section: Tree, name: str) -> Tree:
        keys = section.get(name)
        if not isinstance(keys, dict):
            return section
        kept = [_key_as_recorded(FORMER_NAMES.get(key, key), value) for key, value in keys.items()]
        return section | {name: dict(pair for pair in kept if pair)}

    base = {"base": RECORDED_BASES.get(tree["base"], tree["base"])}
    return stated(tree, "settings") | base | {"arms": [stated(arm, "overrides") for arm in tree["arms"]]}


def _key_as_recorded(key: str, value: JsonValue) -> tuple[str, JsonValue] | None:
    """Return the recorded name and the value of a dotted key without former defaults; None if it was one."""
    *sections, last = key.split(".")
    tree: Tree = {last: value}
    for name in reversed(sections):
        tree = {name: tree}
    tree = _without_former_defaults(tree, whole=False)
    for name in sections:
        tree = tree.get(name, {})
    return (RECORDED_KEYS.get(key, key), tree[last]) if last in tree else None


def _without_former_defaults(tree: Tree, *, whole: bool) -> Tree:
    """Return settings without what ``FORMER_DEFAULTS`` says that recorded recipes left out.

    ``whole``: they are all settings of a run, so that what they leave out has today's default.
    """
    for key, (then, now) in FORMER_DEFAULTS.items():
        tree = _without(tree, tuple(key.split(".")), then, now if whole else then, "")
    return tree


def _without(section: Tree, names: tuple[str, ...], then: JsonValue, left_out: JsonValue, at: str) -> Tree:
    name, *rest = names
    others = {key: value for key, value in section.items() if key != name}
    if not rest:
        stated = section.get(name, left_out)
        return others if stated == then else others | {name: stated}
    place = f"{at}{name}"
    inner = section.get(name, None if place in _NULL_SECTIONS else {})
    if not isinstance(inner, dict):
        return section
    changed = _without(inner, tuple(rest), then, left_out, f"{place}.")
    if changed == inner:
        return section
    return others | {name: changed} if changed or place in _NULL_SECTIONS else others
