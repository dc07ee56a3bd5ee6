"""Edits of a context or of drafts: the answer to a branch that waits in LangGraph Studio, made in a copy of the run.

An edit names records by id, and for each the fields that change::

    {"draft-1f": {"turns": ["Make a folder called plans"]}}

A record keeps its id; ``fork.json`` of the copy holds the edits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from environments.base import InputError
from memory.jsonl import complaint
from memory.records import Draft, FailureContext
from memory.run import BranchDirectory, RunDirectory, read_json, read_jsonl, write_json, write_jsonl
from memory.run_files import Fork

DRAFT_FIELDS = ("turns", "reference")
CONTEXT_FIELDS = (
    "cause",
    "tool",
    "error_class",
    "how",
    "why",
    "summary",
    "instability_pattern",
    "focus_pattern",
    "exploration_objectives",
    "do_not_repeat",
    "facts",
    "explore",
)
"""The fields of a record that may be edited: its content, not its origin."""

LARGEST = 100_000
"""Bytes of all edits together, as JSON."""

_editing = threading.Lock()  # branches that wait get their answers at once, and a stage has one contexts.jsonl


def check_edits(edits: object) -> dict[str, dict[str, Any]]:
    """Return ``edits`` if they have the form of edits. Raises InputError naming what is wrong."""
    if not isinstance(edits, Mapping) or not all(
        isinstance(name, str) and isinstance(fields, Mapping) and fields and all(isinstance(key, str) for key in fields)
        for name, fields in edits.items()
    ):
        raise InputError(f"edits: {edits!r:.80} is not a mapping of ids to changed fields, as {{ID: {{FIELD: VALUE}}}}")
    try:
        size = len(json.dumps(edits, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise InputError("edits: they hold a value that is not JSON, or half a character: write them anew") from None
    if size > LARGEST:
        raise InputError(f"edits: {size} bytes are more than the {LARGEST} that edits may have: change less")
    return {name: dict(fields) for name, fields in edits.items()}


def make_edits(run: RunDirectory, number: int, context_id: str, node: str, edits: Mapping[str, Any]) -> None:
    """Change what waits before ``node`` of a branch of iteration ``number``, in a copy of a run.

    Raises InputError, naming record and field, for an id that does not wait there and for a wrong value; nothing is
    changed then. Fields may be given as they are.
    """
    with _editing:
        folder = run.iteration(number)
        branch = folder.branch(context_id)
        records = {one.id: one for one in _waiting(branch, node)}
        if odd := next((one for one in edits if one not in records), None):
            raise InputError(f"edits: {odd!r:.80} is not a record that waits here: name {', '.join(records):.300}")
        made = {name: _edited(records[name], fields) for name, fields in edits.items()}
        changed = {name: one for name, one in made.items() if one != records[name]}
        if node == "verify":
            write_jsonl(branch.drafts, [changed.get(name, one) for name, one in records.items()])
        elif changed:
            write_json(branch.context, changed[context_id])
            for path in (branch.interactions, branch.drafts):  # of a branch that failed, and goes on in a copy
                path.unlink(missing_ok=True)
            contexts = read_jsonl(folder.contexts, FailureContext)
            write_jsonl(folder.contexts, [changed.get(one.id, one) for one in contexts])
        fork = read_json(run.fork_path, Fork)
        fields = {name: dict(edits[name]) for name in changed}
        write_json(run.fork_path, fork.model_copy(update={"edits": fork.edits | fields}))


def _edited(record: FailureContext | Draft, fields: Mapping[str, Any]) -> FailureContext | Draft:
    names = _fields(record)
    if wrong := next((field for field in fields if field not in names), None):
        raise InputError(f"edits: {record.id}.{wrong:.80} cannot be edited: change {', '.join(names)}")
    try:
        return type(record).model_validate(record.model_dump(mode="json") | dict(fields))
    except ValidationError as error:
        raise InputError(f"edits: {record.id}: {complaint(error)}") from None


def editable(branch: BranchDirectory, node: str) -> dict[str, dict[str, Any]]:
    """Return what can be edited before ``node`` of a branch, in the form of edits: its context, or its drafts."""
    return {one.id: one.model_dump(mode="json", include=set(_fields(one))) for one in _waiting(branch, node)}


def _waiting(branch: BranchDirectory, node: str) -> Sequence[FailureContext | Draft]:
    return read_jsonl(branch.drafts, Draft) if node == "verify" else [read_json(branch.context, FailureContext)]


def _fields(record: FailureContext | Draft) -> tuple[str, ...]:
    return DRAFT_FIELDS if isinstance(record, Draft) else CONTEXT_FIELDS
