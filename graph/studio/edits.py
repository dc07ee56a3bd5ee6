"""Edits of contexts and drafts, as people give them in LangGraph Studio; they are made in a copy of the run only.

An edit names records by id, and for each the fields that change::

    {"draft-1f": {"turns": ["Make a folder called plans"]}, "context-2a": {"explore": ["mkdir"]}}

They are set in the state, or given as the answer to a branch that waits. What was made from an edited record is removed
from the copy, so that the graph makes it again: all of a branch after its context, verification after a draft. A record
keeps its id; ``fork.json`` of the copy holds the edits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from environments.base import InputError, Record
from memory.jsonl import complaint
from memory.records import Draft, FailureContext
from memory.run import (
    BranchDirectory,
    IterationDirectory,
    StageDirectory,
    read_existing,
    read_jsonl,
    write_json,
    write_jsonl,
)

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
"""Characters of all edits together, as JSON."""

Edited = TypeVar("Edited", bound=Record)


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


def make_edits(folder: IterationDirectory, edits: Mapping[str, Mapping[str, Any]]) -> None:
    """Change the records of an iteration in a copy of a run, and remove what was made from them.

    Raises InputError, naming record and field, for an id that the iteration does not have and for a wrong value.
    """
    contexts = read_existing(folder.contexts, FailureContext)
    branches = {one.id: folder.branch(one.id) for one in contexts}
    drafts = {name: read_jsonl(at.drafts, Draft) for name, at in branches.items() if at.drafts.exists()}
    belongs = {draft.id: name for name, found in drafts.items() for draft in found}
    unknown = next((name for name in edits if name not in branches and name not in belongs), None)
    if unknown is not None:
        raise InputError(
            f"edits: {unknown!r:.80} is not a context or draft of iteration {folder.root.name}: a draft can be "
            "edited once its branch has abstracted it"
        )
    if lost := next((one for one in edits if belongs.get(one) in edits), None):
        raise InputError(
            f"edits: {lost} is a draft of {belongs[lost]}, which is edited, too: its drafts are made anew from it, so "
            "edit one of the two"
        )
    _edit_contexts(folder, contexts, branches, edits)
    for name in sorted({belongs[one] for one in edits if one in belongs}):
        branch = branches[name]
        write_jsonl(branch.drafts, [_edited(one, edits.get(one.id), DRAFT_FIELDS) for one in drafts[name]])
        _forget(branch, after_drafts=True)


def _edit_contexts(
    folder: IterationDirectory,
    contexts: Sequence[FailureContext],
    branches: Mapping[str, BranchDirectory],
    edits: Mapping[str, Mapping[str, Any]],
) -> None:
    if not any(one.id in edits for one in contexts):
        return
    changed = [_edited(one, edits.get(one.id), CONTEXT_FIELDS) for one in contexts]
    write_jsonl(folder.contexts, changed)
    for one in changed:
        branch = branches[one.id]
        if one.id in edits and branch.context.exists():
            write_json(branch.context, one)
            _forget(branch, after_drafts=False)


def _forget(branch: BranchDirectory, *, after_drafts: bool) -> None:
    made = (branch.verdicts, branch.failure, branch.traceback)
    for path in made if after_drafts else (*made, branch.interactions, branch.drafts):
        path.unlink(missing_ok=True)


def _edited(record: Edited, fields: Mapping[str, Any] | None, editable: Sequence[str]) -> Edited:
    if fields is None:
        return record
    name = getattr(record, "id", "")
    if wrong := next((field for field in fields if field not in editable), None):
        raise InputError(f"edits: {name}.{wrong:.80} cannot be edited: change {', '.join(editable)}")
    try:
        return type(record).model_validate(record.model_dump(mode="json") | dict(fields))
    except ValidationError as error:
        raise InputError(f"edits: {name}: {complaint(error)}") from None


def editable(folder: StageDirectory, context_id: str, node: str) -> dict[str, dict[str, Any]]:
    """Return what can be edited before ``node`` of a branch, in the form of edits: its context, or its drafts."""
    waiting, fields = _waiting(folder, context_id, node)
    return {one.id: _fields(one, fields) for one in waiting}


def answered(folder: StageDirectory, context_id: str, node: str, answer: object) -> dict[str, dict[str, Any]]:
    """Return the edits in the answer to a branch that waits before ``node``, without fields that stay as they are.

    Raises InputError, naming record and field, for an answer of another form, about other records, or with a wrong
    value.
    """
    if answer is None or answer in ("", {}, []):
        return {}
    edits = check_edits(answer)
    waiting, names = _waiting(folder, context_id, node)
    by_id = {one.id: one for one in waiting}
    if odd := next((name for name in edits if name not in by_id), None):
        raise InputError(f"edits: {odd!r:.80} is not a record that waits here: name {', '.join(by_id):.300}")
    for name, fields in edits.items():
        _edited(by_id[name], fields, names)
    absent = object()
    shown = {name: _fields(one, names) for name, one in by_id.items()}
    changed = {
        name: {field: value for field, value in fields.items() if value != shown[name].get(field, absent)}
        for name, fields in edits.items()
    }
    return {name: fields for name, fields in changed.items() if fields}


def _waiting(
    folder: StageDirectory, context_id: str, node: str
) -> tuple[Sequence[Draft | FailureContext], Sequence[str]]:
    branch = folder.branch(context_id)
    if node == "verify" and branch.drafts.exists():
        return read_jsonl(branch.drafts, Draft), DRAFT_FIELDS
    contexts = read_existing(folder.contexts, FailureContext)
    return [one for one in contexts if one.id == context_id], CONTEXT_FIELDS


def _fields(record: Record, names: Sequence[str]) -> dict[str, Any]:
    plain = record.model_dump(mode="json")
    return {name: plain[name] for name in names if name in plain}
