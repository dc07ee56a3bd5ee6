"""Fingerprints of tasks: what the leak firewall and the search for duplicates compare.

A fingerprint hashes the initial state, the setup and the reference with its values (our choice). The user's wording is
left out: the same calls from the same state are the same task, however it is told.
"""

from __future__ import annotations

import hashlib
import json

from pydantic import JsonValue

from environments.base import TaskSpec, ToolCall


def fingerprint(task: TaskSpec) -> str:
    """SHA-256 (64 hex digits) of the canonical JSON of initial state, setup and reference with values.

    Key order does not matter, and neither does the way a whole number is written (30 and 30.0 are one value).
    """
    content: JsonValue = [
        _canonical(task.initial_state),
        [_call(call) for call in task.setup],
        [[_call(call) for call in turn] for turn in task.reference],
    ]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def call_sequence(task: TaskSpec) -> tuple[str, ...]:
    """Names of the reference's calls in order, without values: overlap of these is reported, never refused."""
    return tuple(call.name for turn in task.reference for call in turn)


def _call(call: ToolCall) -> JsonValue:
    return [call.name, _canonical(call.arguments)]


def _canonical(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return value
