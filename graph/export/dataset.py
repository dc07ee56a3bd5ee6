"""A run's tasks and trajectories as a data set of the Hugging Face hub: a folder with Parquet files and a card.

Messages and tool schemas, whose keys differ from row to row, are ``datasets.Json``: JSON text in the file, objects when
``datasets`` loads it. So TRL's trainers take both tables as they are: tasks have its prompt-completion format,
trajectories its conversational format. Records are plain text, because ``datasets.Json`` rounds numbers.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from environments.base import Environment, EnvironmentFault, InputError, TaskSpec
from environments.benchmark import AnyBenchmark
from environments.registry import benchmark_of, unpublishable
from environments.verification.decontamination import HeldOut
from graph.assembly import held_out_of
from graph.export.conversations import rollout_messages, task_messages
from graph.report.lineage import Chain, History, pooled
from graph.settings import RunSettings
from memory.records import Task
from memory.run import RunDirectory, read_json
from training.grpo.record import RoundRecord
from training.rendering.tool_calls import tool_schema

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


def refuse_unpublishable(settings: RunSettings, tasks: Sequence[TaskSpec] = ()) -> None:
    """Raise InputError, one sentence, where the environment's content must not be published.

    The environment of each task counts too, whatever the run's settings call theirs.
    """
    reason = unpublishable(settings.environment.benchmark, tasks)
    if reason is not None:
        raise InputError(f"this run cannot be exported: {reason}")


class RunContent:
    """The records of a run that can be exported, read once, with the environment that documents its tools.

    ``records`` are those of the finished rounds. ``held_out_file`` is the name of the run's own held-out file, None
    where it has none or it is gone. Making one raises InputError for a run without a finished round, for damaged
    records, for an environment that cannot be opened, and like ``refuse_unpublishable``.
    """

    def __init__(self, run: RunDirectory, settings: RunSettings) -> None:
        self.run = run
        self.settings = settings
        refuse_unpublishable(settings)
        self.history = History.read(run)
        self.tasks: tuple[Task, ...] = tuple(self.history.tasks.values())
        refuse_unpublishable(settings, self.tasks)
        rounds = {number: run.iteration(number).round for number in self.history.iterations}
        self.records = {number: read_json(path, RoundRecord) for number, path in rounds.items() if path.exists()}
        if not self.records:
            raise InputError(f"{run.root} has no finished round: there is nothing to export yet")
        own = settings.evaluation.tasks
        self.held_out_file = None if own is None or not Path(own).is_file() else Path(own).name

    @cached_property
    def environment(self) -> Environment:
        """The environment of the run, opened when it is first needed."""
        return self.settings.environment.open()

    @property
    def benchmark(self) -> AnyBenchmark:
        """The benchmark of the environment."""
        return benchmark_of(self.environment)

    @cached_property
    def held_out(self) -> HeldOut:
        """What the environment holds out, joined with the run's own held-out file where that is still there."""
        return held_out_of(self.environment, self.settings.evaluation.tasks if self.held_out_file else None)

    def contaminated(self) -> list[str]:
        """Return the ids of tasks that equal a held-out one. Raises InputError for one that cannot be compared."""
        from environments.verification.canonical import canonical

        found = []
        for task in self.tasks:
            try:
                equal = self.held_out.match(task, canonical(self.environment, task)) is not None
            except (InputError, EnvironmentFault, RecursionError) as error:
                raise InputError(
                    f"task {task.id} cannot be compared with the held-out sets ({error}): remove it"
                ) from error
            found += [task.id] if equal else []
        return found

    def json(self, value: object, record_id: str) -> str:
        """Return ``value`` as JSON text that every parser and UTF-8 take.

        Raises InputError that names the record for a number that is not finite, and for half of a surrogate pair.
        """
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            text.encode()
        except ValueError as error:
            raise InputError(
                f"{self.run.root}: {record_id} holds what no JSON file can ({str(error)[:200]}): correct or remove it"
            ) from None
        return text

    def cells(self, values: Sequence[object], record_id: str) -> list[str]:
        """Return objects as cells of a column of ``json``. Raises InputError for one that ``datasets`` cannot read."""
        from datasets.utils.json import ujson_loads

        texts = [self.json(value, record_id) for value in values]
        for text in texts:
            try:
                ujson_loads(text)
            except ValueError as error:
                raise InputError(
                    f"{self.run.root}: {record_id} holds what datasets cannot read ({error}): correct or remove it"
                ) from None
        return texts


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
        row |= {"task_id": task.id, "task": content.json(plain, task.id)}
        try:
            messages = task_messages(content.environment, task)
        except (InputError, EnvironmentFault) as error:
            raise InputError(f"the reference of task {task.id} cannot be carried out ({error}): remove it") from error
        row |= {name: content.cells(part, task.id) for name, part in messages._asdict().items()}
        start = {"initial_state": plain["initial_state"], "setup": plain["setup"]}
        row["start_state"] = content.json(start, task.id)
        chain = content.history.chain_of(task.id)
        row |= {} if chain is None else _lineage(content, chain, task)
        row["success"], row["rollouts"] = pooled(content.history.course(task.id).values()) or (None, 0)
        yield row


def _lineage(content: RunContent, chain: Chain, task: Task) -> Row:
    """Return the parents of a task; ``lineage``: the signal, the context, the draft and its verification, whole."""
    context = chain.context
    outcome = next(one for one in chain.outcomes if one.task is not None and one.task.id == task.id)
    records = {"signal": chain.signal, "context": context, "draft": outcome.draft, "verification": outcome.verification}
    plain = {name: one and one.model_dump(mode="json") for name, one in records.items()}
    return {
        "parent_task": context.task_id or None,
        "parent_rollout": context.trajectory_id or None,
        "signal_kind": None if context.kind is None else str(context.kind),
        "cause": None if context.cause is None else str(context.cause),
        "failing_tool": context.tool or None,
        "lineage": content.json(plain, task.id) if context.task_id else None,
    }


def trajectory_rows(content: RunContent) -> Iterator[Row]:
    """Yield a row for each rollout, with the kinds of signal that mark it and the tasks that came of it."""
    children: dict[str, list[str]] = defaultdict(list)
    for chain in content.history.chains.values():
        children[chain.context.trajectory_id].extend(task.id for task in chain.admitted)
    tools = {task.id: content.cells(_tools(content.environment, task), task.id) for task in content.tasks}
    finished = [one for one in content.history.rollouts.values() if one.iteration in content.records]
    for one in content.history.trajectories(finished):
        if one.task_id not in tools:
            raise InputError(f"{content.run.tasks_path} does not have the task {one.task_id} of a rollout: restore it")
        if one.reward is not None and not math.isfinite(one.reward):
            raise InputError(f"{content.run.root}: the reward of {one.id} is {one.reward}: correct or remove it")
        error = one.infrastructure_error
        plain = one.model_dump(mode="json", include=set(COLUMNS[TRAJECTORIES]))
        yield plain | {
            "success": None if one.outcome is None else one.success,
            "infrastructure_error": None if error is None else content.benchmark.published_error(error),
            "failure": None if one.outcome is None else one.outcome.failure,
            "stop_reasons": [str(turn.stop_reason) for turn in one.turns if turn.stop_reason is not None],
            "signals": sorted({str(signal.kind) for signal in content.history.marks.get(one.id, ())}),
            "gave_rise_to": sorted(children[one.id]),
            "messages": content.cells(rollout_messages(one), one.id),
            "tools": tools[one.task_id],
        }


def _tools(environment: Environment, task: Task) -> list[dict[str, Any]]:
    withheld = (name for names in task.withheld.values() for name in names)
    return [tool_schema(tool) for tool in environment.tools(tuple(dict.fromkeys((*task.tools, *withheld))))]


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
