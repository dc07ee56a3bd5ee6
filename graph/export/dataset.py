"""A run's tasks and trajectories as a data set of the Hugging Face hub: a folder with Parquet files and a card.

Messages and tool schemas, whose keys differ from row to row, are ``datasets.Json``: JSON text in the file, objects when
``datasets`` loads it. So TRL's trainers take both tables as they are: tasks have its prompt-completion format,
trajectories its conversational format. Records are plain text, because ``datasets.Json`` rounds numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.base import InputError
from graph.export.content import RunContent, checked_json
from graph.export.conversations import rollout_messages
from graph.report.lineage import Chain
from memory.records import Task, Trajectory

TASKS, TRAJECTORIES = "tasks", "trajectories"

_BATCH = 100
"""Rows that are in memory at a time: a rollout may hold megabytes of text."""

_JSON = "json"
"""An object of any keys; its cells are given as JSON text."""

COLUMNS: Mapping[str, Mapping[str, Any]] = {
    TASKS: {
        "task_id": "string",
        "environment": "string",
        "prompt": [_JSON],
        "completion": [_JSON],
        "tools": [_JSON],
        "start_state": "string",
        "task": "string",
        "origin": "string",
        "admitted_at": "int64",
        "parent_task": "string",
        "parent_rollout": "string",
        "signal_kind": "string",
        "cause": "string",
        "failing_tool": "string",
        "lineage": "string",
        "rollouts": "int64",
        "success": "float64",
    },
    TRAJECTORIES: {
        "id": "string",
        "task_id": "string",
        "iteration": "int64",
        "step": "int64",
        "sample": "int64",
        "success": "bool",
        "reward": "float64",
        "failure": "string",
        "stop_reasons": ["string"],
        "infrastructure_error": "string",
        "sampled_tokens": "int64",
        "signals": ["string"],
        "gave_rise_to": ["string"],
        "messages": [_JSON],
        "tools": [_JSON],
    },
}
"""The columns of both tables with their types (Arrow's names, lists, and ``json``); all but the ids may be null."""

Row = dict[str, Any]


def write_tables(content: RunContent, folder: Path) -> dict[str, int]:
    """Write a Parquet file for each table below ``folder``, and return how many rows each has.

    Raises InputError for what no table can hold.
    """
    rows = {TASKS: task_rows(content), TRAJECTORIES: trajectory_rows(content)}
    return {name: _write(folder / f"{name}.parquet", COLUMNS[name], rows[name], content) for name in COLUMNS}


def task_rows(content: RunContent) -> Iterator[Row]:
    """Yield a row for each task, in the order of the task set, with what it came from and what became of it."""
    for task in content.tasks:
        plain = task.model_dump(mode="json")
        row: Row = {name: plain[name] for name in ("environment", "origin", "admitted_at")}
        row |= {"task_id": task.id, "task": checked_json(plain, content.run, task.id)}
        row |= {name: _cells(part, content, task.id) for name, part in content.messages(task)._asdict().items()}
        start = {"initial_state": plain["initial_state"], "setup": plain["setup"]}
        row["start_state"] = checked_json(start, content.run, task.id)
        chain = content.history.chain_of(task.id)
        row |= {} if chain is None else _lineage(content, chain, task)
        course = content.history.course(task.id)
        played = sum(number for _, number in course.values())
        row["rollouts"] = played
        row["success"] = sum(share * number for share, number in course.values()) / played if played else None
        yield row


def _lineage(content: RunContent, chain: Chain, task: Task) -> Row:
    """Return the parents of a task; ``lineage``: the signal, the context, the draft and its verification, whole."""
    context = chain.context
    outcome = next(one for one in chain.outcomes if one.task is not None and one.task.id == task.id)
    records = {
        "signal": chain.signal,
        "context": context,
        "draft": outcome.draft,
        "verification": outcome.verification,
    }
    plain = {name: one and one.model_dump(mode="json") for name, one in records.items()}
    return {
        "parent_task": context.task_id or None,
        "parent_rollout": context.trajectory_id or None,
        "signal_kind": None if context.kind is None else str(context.kind),
        "cause": None if context.cause is None else str(context.cause),
        "failing_tool": context.tool or None,
        "lineage": checked_json(plain, content.run, task.id) if context.task_id else None,
    }


def trajectory_rows(content: RunContent) -> Iterator[Row]:
    """Yield a row for each rollout, with the kinds of signal that mark it and the tasks that came of it."""
    children: dict[str, list[str]] = defaultdict(list)
    for chain in content.history.chains.values():
        children[chain.context.trajectory_id].extend(task.id for task in chain.admitted)
    for one in content.trajectories():
        plain = one.model_dump(mode="json", include=set(COLUMNS[TRAJECTORIES]))
        yield plain | {
            "success": None if one.outcome is None else one.success,
            "reward": _finite(one, content),
            "failure": None if one.outcome is None else one.outcome.failure,
            "stop_reasons": [str(turn.stop_reason) for turn in one.turns if turn.stop_reason is not None],
            "signals": sorted({str(signal.kind) for signal in content.history.marks.get(one.id, ())}),
            "gave_rise_to": sorted(children[one.id]),
            "messages": _cells(rollout_messages(one), content, one.id),
            "tools": _cells(content.tools(one.task_id), content, one.task_id),
        }


def _finite(one: Trajectory, content: RunContent) -> float | None:
    if one.reward is not None and not math.isfinite(one.reward):
        raise InputError(f"{content.run.root}: the reward of {one.id} is {one.reward}: correct or remove it")
    return one.reward


def _cells(values: Sequence[object], content: RunContent, record_id: str) -> list[str]:
    """Return objects as cells of a column of ``json``. Raises InputError for one that ``datasets`` cannot read."""
    from datasets.utils.json import ujson_loads

    texts = [checked_json(value, content.run, record_id) for value in values]
    for text in texts:
        try:
            ujson_loads(text)
        except ValueError as error:
            raise InputError(
                f"{content.run.root}: {record_id} holds what datasets cannot read ({error}): correct or remove it"
            ) from None
    return texts


def _write(path: Path, columns: Mapping[str, Any], rows: Iterator[Row], content: RunContent) -> int:
    import pyarrow as pa
    from datasets import Features
    from datasets.arrow_writer import ParquetWriter

    with ParquetWriter(features=Features(_features(columns)), path=str(path), writer_batch_size=_BATCH) as writer:
        try:
            for row in rows:
                writer.write({name: row.get(name) for name in columns})
            number, _ = writer.finalize()
        except (pa.ArrowInvalid, UnicodeEncodeError, OverflowError) as error:
            raise InputError(
                f"{content.run.root}: a row of {path.name} does not fit a table ({str(error)[:200]}): correct or "
                "remove it"
            ) from None
    return int(number)


def _features(column: Any) -> Any:  # noqa: ANN401 - a column, or a mapping of columns
    from datasets import Json, Value

    if isinstance(column, str):
        return Json() if column == _JSON else Value(column)
    if isinstance(column, list):
        return [_features(column[0])]
    return {name: _features(inner) for name, inner in column.items()}
