"""Choose who explores and words tasks where no setting does: an endpoint, or rules.

A language model here (kind local) does it where it is stated: on tools that are unlike those that it was taught on it
makes few tasks, and takes minutes for each (docs/models.md).

`coevolve evolve --mcp` and `coevolve environment new` decide it before they write anything, and write it down: a run
keeps it in settings.yaml, a new folder in its recipe. Recipes that are stated have the default of their own settings.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from agents.chat.endpoint import MODEL_VARIABLE
from memory.jsonl import changes_given, put

RATE = "some two tasks in three minutes on two cores, few good ones on unfamiliar tools"
"""What the local roles make (docs/models.md)."""

ONE_ROUND = {"rounds": "1", "independent": "true"}
"""``roles.exploration`` of a local explorer (ours): each call takes seconds, and rounds share nothing."""

CUT = {"references": "cut"}
"""``roles.exploration`` of a chat abstractor: it words what rules cut, which a small model behind the endpoint can."""

_BY = {"local": "a small language model on this machine", "scripted": "rules", "chat": "the model of an endpoint"}


class DefaultRoles(NamedTuple):
    """Settings of roles that a command adds to the given ones (``dotted.key=value``), and a line that says why."""

    overrides: tuple[str, ...]
    words: str


def default_roles(given: Sequence[str]) -> DefaultRoles:
    """Return what the settings ``given`` leave open: explorer, abstractor, and how these do it.

    A chat model words where one is configured, by ``roles.chat`` or its variable. Else both are rules, and local where
    ``roles.local`` is stated. Raises InputError for a setting that cannot be read.
    """
    tree: dict[str, Any] = {}
    for change in changes_given(given):
        put(tree, change.keys, change.value, f"--set {change.given}")
    roles = _section(tree, "roles")
    without = "local" if "local" in roles else "scripted"
    configured = "roles.chat" if "chat" in roles else MODEL_VARIABLE if os.environ.get(MODEL_VARIABLE) else None
    default = {"explorer": without, "abstractor": without if configured is None else "chat"}
    stated = {name: kind for name in default if (kind := _section(roles, name).get("kind")) is not None}
    kinds = {**default, **stated}
    added = {f"{name}.kind": kind for name, kind in default.items() if name not in stated}
    how = (ONE_ROUND if kinds["explorer"] == "local" else {}) | (CUT if kinds["abstractor"] == "chat" else {})
    exploration = _section(roles, "exploration")
    added |= {f"exploration.{key}": value for key, value in how.items() if key not in exploration}
    rules = " ".join(f"--set roles.{name}.kind=scripted" for name in default if kinds[name] != "scripted")
    words = words_by(kinds, stated, rules, configured)
    return DefaultRoles(tuple(f"roles.{key}={value}" for key, value in added.items()), words)


def words_by(kinds: Mapping[str, str], stated: Container[str], rules: str, configured: str | None = None) -> str:
    """Return who plays explorer and abstractor, and why, as one line.

    ``stated``: the roles that the user chose; ``rules``: the options that choose rules; ``configured``: what names a
    chat model.
    """
    proposes, writes = (_BY.get(kinds[name], str(kinds[name])) for name in ("explorer", "abstractor"))
    words = f"calls and words of tasks by {writes}"
    if proposes != writes:
        words = f"calls of tasks by {proposes}, their words by {writes}"
    chosen = {kind for name, kind in kinds.items() if name not in stated}
    why = [RATE] if "local" in kinds.values() else []
    why += [f"{configured} names it"] if "chat" in chosen else []
    why += ["by default"] if "scripted" in chosen else []
    why += [] if chosen else ["as stated"]
    return f"{words} ({'; '.join(why)})" + (f"; for rules: {rules}" if chosen - {"scripted"} else "")


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section, an empty one for anything else: validation refuses that by name."""
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}
