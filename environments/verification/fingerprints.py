"""Compute fingerprints of tasks, for decontamination and for the search for duplicates.

A fingerprint hashes the initial state, the setup and the reference with its values (our choice). The user's wording is
left out: the same calls from the same state are the same task, however it is worded.

A held-out evaluation set publishes the fingerprints and call sequences of its tasks (``PublishedSet``), so that they
can be compared without opening the set. Warm start, D_0 and drafts are refused when their fingerprint is published,
and when their content is that of a held-out task (``environments.verification.decontamination``, which reads a record
beside these files). Equal value-free call sequences are reported, never refused. A missing or altered file is an error:
decontamination must not fail open.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Self, TypeVar

from pydantic import JsonValue, ValidationError, model_validator

from environments.base import InputError, Record, TaskSpec, ToolCall


def fingerprint(task: TaskSpec) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of initial state, setup and reference with values.

    Key order does not matter, and neither does the way a whole number is written (30 and 30.0 are one value). A task
    whose first turns are played is another one than the whole task: the number of these turns counts, too.
    """
    content: JsonValue = [
        _canonical(task.initial_state),
        [_call(call) for call in task.setup],
        [[_call(call) for call in turn] for turn in task.reference],
        *([task.played] if task.played else []),
    ]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def call_sequence(task: TaskSpec) -> tuple[str, ...]:
    """Return the names of the reference's calls in order, without values: overlap is reported, never refused."""
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


SUFFIX = ".fingerprints.json"


class PublishedSet(Record):
    """The published record of an evaluation set: sorted fingerprints, distinct call sequences, the SHA-256 of both."""

    panel: str
    environment: str
    fingerprints: tuple[str, ...]
    call_sequences: tuple[tuple[str, ...], ...]
    sha256: str

    @model_validator(mode="after")
    def _unaltered(self) -> Self:
        if self.sha256 != _digest(self.fingerprints, self.call_sequences):
            raise ValueError("sha256 does not belong to these fingerprints and call sequences")
        return self


def sets_folder(environment: str) -> Path:
    """Return the folder of a packaged benchmark's evaluation sets."""
    return Path(__file__).parents[1] / environment / "panels"


_Fixed = TypeVar("_Fixed", bound=Record)


def read_fixed(path: Path, kind: type[_Fixed]) -> _Fixed:
    """Read a record that ships with the project. Raises InputError when it is missing, unreadable or altered."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check it out of the repository again") from error
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise InputError(f"{path} was altered ({reason}): check it out of the repository again") from error


def published_sets(environment: str) -> tuple[PublishedSet, ...]:
    """Return the published records of the evaluation sets of ``environment``, by file name.

    Raises InputError when there is no file or a file was altered.
    """
    paths = sorted(sets_folder(environment).glob(f"*{SUFFIX}"))
    if not paths:
        raise InputError(
            f"no set of the environment {environment!r} publishes fingerprints in {sets_folder(environment)}: "
            "check the folder out of the repository again"
        )
    return tuple(read_fixed(path, PublishedSet) for path in paths)


def held_out_fingerprints(environment: str) -> frozenset[str]:
    """Return the fingerprints of every held-out task. Raises InputError like ``published_sets``."""
    return frozenset(own for one in published_sets(environment) for own in one.fingerprints)


def _digest(fingerprints: tuple[str, ...], call_sequences: tuple[tuple[str, ...], ...]) -> str:
    return hashlib.sha256(json.dumps([fingerprints, call_sequences]).encode("ascii")).hexdigest()
