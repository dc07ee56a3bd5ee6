"""What settings were called, and what they were by default, before they changed: one table for all who read old files.

Recipes and options of a command take a former name, with a warning, for one release. The settings of a run, and the
recipes of recorded studies, keep the defaults that they were made with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import JsonValue

__all__ = ["FORMER_DEFAULTS", "FORMER_NAMES", "FORMER_OPTIONS", "FormerDefault"]

FORMER_NAMES: Mapping[str, str] = {"evaluation.panel": "evaluation.set"}
"""Dotted keys of a recipe: today's by the former one."""

FORMER_OPTIONS: Mapping[str, str] = {"panel": "evaluation_set", "openings": "access_log"}
"""Options of ``evaluation.run``: today's by the former one."""


class FormerDefault(NamedTuple):
    """The value that a setting had where nothing stated it, before and today."""

    then: JsonValue
    now: JsonValue


FORMER_DEFAULTS: Mapping[str, FormerDefault] = {
    "roles.exploration.independent": FormerDefault(False, True),
    "roles.exploration.order": FormerDefault("easy_first", "long_first"),
    "signals.definition": FormerDefault("group", "paper"),
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
