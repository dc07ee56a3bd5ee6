"""Edits of contexts and drafts, as people give them in LangGraph Studio; they are made in a copy of the run only.

An edit names records by id, and for each the fields that change::

    {"draft-1f": {"turns": ["Make a folder called plans"]}, "context-2a": {"explore": ["mkdir"]}}

They are set in the state, or given as the answer to a branch that waits. What was made from an edited record is removed
from the copy, so that the graph makes it again: all of a branch after its context, verification after a draft. A record
keeps its id; ``fork.json`` of the copy holds the edits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from environments.base import InputError
from graph.records import Fork
from memory.jsonl import complaint
from memory.records import Draft, FailureContext
from memory.run import BranchDirectory, RunDirectory, read_existing, read_json, read_jsonl, write_json, write_jsonl

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


def make_edits(run: RunDirectory, iteration: int, edits: Mapping[str, Mapping[str, Any]]) -> None:
    """Change records of an iteration's branches in a copy of a run, and remove what was made from them.

    Raises InputError, naming record and field, for an id that no branch has and for a wrong value; nothing is changed
    then. Fields may be given as they are.
    """
    with _editing:
        folder = run.iteration(iteration)
        contexts = {one.id: one for one in read_existing(folder.contexts, FailureContext)}
        branches = {name: at for name in contexts if (at := folder.branch(name)).context.exists()}
        drafts = {draft.id: draft for at in branches.values() for draft in read_existing(at.drafts, Draft)}
        changed: dict[str, FailureContext | Draft] = {}
        for name, fields in edits.items():
            record = drafts.get(name) or (contexts[name] if name in branches else None)
            if record is None:
                raise InputError(
                    f"edits: {name!r:.80} is not a context or draft of a branch of iteration {folder.root.name}: a "
                    "draft can be edited once its branch has abstracted it"
                )
            if isinstance(record, Draft) and record.context_id in edits:
                raise InputError(
                    f"edits: {name} is a draft of {record.context_id}, which is edited, too: its drafts are made anew "
                    "from it, so edit one of the two"
                )
            if (edited := _edited(record, fields)) != record:
                changed[name] = edited
        if any(name in contexts for name in changed):
            write_jsonl(folder.contexts, [changed.get(name, one) for name, one in contexts.items()])
        for name, branch in branches.items():
            own = read_existing(branch.drafts, Draft)
            if name in changed:
                write_json(branch.context, changed[name])
                _forget(branch, after_drafts=False)
            elif any(one.id in changed for one in own):
                write_jsonl(branch.drafts, [changed.get(one.id, one) for one in own])
                _forget(branch, after_drafts=True)
        fork = read_json(run.fork_path, Fork)
        joined = fork.edits | {name: fork.edits.get(name, {}) | dict(edits[name]) for name in changed}
        write_json(run.fork_path, fork.model_copy(update={"edits": joined}))


def _forget(branch: BranchDirectory, *, after_drafts: bool) -> None:
    made = (branch.verdicts, branch.failure, branch.traceback)
    for path in made if after_drafts else (*made, branch.interactions, branch.drafts):
        path.unlink(missing_ok=True)


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
    records: list[FailureContext | Draft] = (
        [*read_jsonl(branch.drafts, Draft)] if node == "verify" else [read_json(branch.context, FailureContext)]
    )
    return {one.id: one.model_dump(mode="json", include=set(_fields(one))) for one in records}


def _fields(record: FailureContext | Draft) -> tuple[str, ...]:
    return DRAFT_FIELDS if isinstance(record, Draft) else CONTEXT_FIELDS
