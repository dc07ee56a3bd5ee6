"""The graph of one iteration on its checkpoints: SQLite in the run directory, one writer at a time.

The command line and Studio share them: both find the graph of an iteration by the id of its thread there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter

from agents.spending import RepeatedFailure
from environments.base import InputError
from environments.command import say, storage_refusal, writing
from graph.state import BranchState, IterationInput, IterationState
from memory.failures import DeduplicationResult
from memory.files import opened
from memory.records import FailureContext
from memory.run import RunDirectory, read_json, read_jsonl
from memory.run_files import ExtractionRecord, Fork

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    from environments.command import Stage
    from graph.assembly import RunServices

STUDIO_RUN = "COEVOLVE_RUN"
RUNS = Path("runs")


def thread_id(iteration: int) -> str:
    """Return the thread of an iteration; running a thread again would append to the results of its branches.

    Studio's server takes UUIDs only: this one ends in the iteration's number.
    """
    return f"00000000-0000-4000-8000-{iteration:012d}"


def studio_run() -> Path:
    """Return the run that Studio opens: the one that COEVOLVE_RUN names, else the newest below runs/ except copies.

    Raises InputError when there is none.
    """
    named = os.environ.get(STUDIO_RUN)
    if named:
        return Path(named)
    found = (run.settings_path for run in map(RunDirectory, RUNS.glob("*")) if not run.fork_path.exists())
    runs = sorted((path for path in found if path.is_file()), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise InputError(f"no run below {RUNS}/: make one with coevolve evolve, or set {STUDIO_RUN}")
    return runs[-1].parent


class StateSerializer:
    """Writes states as LangGraph does, and reads of them plain data and the types in ``_stored`` alone.

    A run may be a stranger's, and LangGraph's own reader imports and calls whatever function a checkpoint names
    (CVE-2026-28277).
    """

    def dumps_typed(self, value: object) -> tuple[str, bytes]:
        """Return the name of a form and the bytes of ``value``."""
        return _msgpack().dumps_typed(value)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:  # noqa: ANN401 - a state, or a part of one
        """Return what ``dumps_typed`` was given, with tuples as lists. Raises ValueError for anything else."""
        form, content = data
        if form not in ("null", "msgpack") or not isinstance(content, bytes):
            raise ValueError(f"{form!r:.80}: not a form that states are written in")
        return _msgpack().loads_typed((form, content))


@cache
def _msgpack() -> JsonPlusSerializer:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    return JsonPlusSerializer(__unpack_ext_hook__=_stored)


def _stored(code: int, content: bytes) -> object:
    """Return the object of a msgpack extension. Raises ValueError unless it is of a type that a thread stores."""
    from langgraph.checkpoint.serde.jsonplus import EXT_CONSTRUCTOR_KW_ARGS, EXT_CONSTRUCTOR_POS_ARGS, EXT_PYDANTIC_V2
    from langgraph.types import Interrupt, Send, TimeoutPolicy

    module, name, value, *_ = _msgpack().loads_typed(("msgpack", content))
    kinds = {
        EXT_CONSTRUCTOR_KW_ARGS: (Interrupt, TimeoutPolicy),
        EXT_CONSTRUCTOR_POS_ARGS: (Send,),
        EXT_PYDANTIC_V2: (IterationInput, BranchState),
    }
    kind = next((one for one in kinds.get(code, ()) if (one.__module__, one.__name__) == (module, name)), None)
    if kind is None:
        raise ValueError(f"{module!r:.80}, {name!r:.80}: not a type that states have")
    if kind is Send:
        node, state, *timeout = value
        return Send(node, state, timeout=timeout[0] if timeout else None)
    return kind(**value)


class _Stored(BaseModel):
    """The form of a checkpoint (``langgraph.checkpoint.base.Checkpoint``), on which LangGraph relies unseen."""

    v: int
    id: str
    ts: str
    channel_values: dict[str, Any]
    channel_versions: dict[str, str]
    versions_seen: dict[str, dict[str, str]]


_ROW = TypeAdapter(tuple[str, str, str, str, dict[str, Any]])
"""Thread, namespace, id, parent and metadata of a checkpoint."""
_PLACE = TypeAdapter(tuple[str, str, str, str, str, int, str])
"""Thread, namespace and id of the checkpoint that a write follows, task, its path, number, channel."""
LARGEST = 16_000_000
"""Bytes of a value in the database: a state holds ids and a few lines."""
_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"


def discard_unfit(path: Path, schema: Collection[tuple[str | None, ...]]) -> bool:
    """Remove a database that is damaged, or not of the checkpointer's making; return whether it was removed.

    ``schema`` is the checkpointer's: another one can have triggers and functions of a stranger's. No record is lost:
    they are in JSON files, and the iteration's graph begins afresh. Raises sqlite3.OperationalError where the disk, not
    the file, is the cause.
    """
    parts = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]
    for part in filter(os.path.lexists, parts):
        with opened(part, "rb+"):  # raises for a link: SQLite would follow it
            pass
    # The checkpointer's journal is -wal. One of the other kind is a stranger's: SQLite removes the file that it names.
    path.with_name(path.name + "-journal").unlink(missing_ok=True)
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path)) as connection:
            if _fits(connection, schema):
                return False
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR:
            raise
    except (sqlite3.DatabaseError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    for part in parts:  # a new one must not replay the damaged one's
        part.unlink(missing_ok=True)
    return True


def _fits(connection: sqlite3.Connection, schema: Collection[tuple[str | None, ...]]) -> bool:
    """Return whether the schema is ``schema`` or empty, and the pages are whole. Raises for content that is unfit."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
    connection.text_factory = bytes.decode  # a text that is none is a ValueError, not an error of the disk
    found = connection.execute(_SCHEMA).fetchall()
    if (found and found != schema) or connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        return False
    serializer = StateSerializer()
    if found:
        for *names, parent, form, checkpoint, metadata in connection.execute("SELECT * FROM checkpoints"):
            _ROW.validate_python((*names, parent or "", json.loads(metadata)), strict=True)
            _Stored.model_validate(serializer.loads_typed((form, checkpoint)))
        for *place, form, value in connection.execute("SELECT * FROM writes"):
            _PLACE.validate_python(place)
            serializer.loads_typed((form, value))
    return True


@asynccontextmanager
async def run_checkpoints(run: RunDirectory) -> AsyncIterator[AsyncSqliteSaver]:
    """Open the checkpointer of ``run``; the caller holds the run's lock. An unfit one is replaced, with a warning.

    It is checked first, because the library opens it in a thread of its own, whose failure would go unnoticed.
    """
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(":memory:") as empty:
        await empty.setup()
        schema = [tuple(row) for row in await empty.conn.execute_fetchall(_SCHEMA)]
    if await asyncio.to_thread(discard_unfit, run.checkpoints_path, schema):
        say(f"warning: {run.checkpoints_path} is damaged and made anew: the iteration's graph begins afresh")
    async with AsyncSqliteSaver.from_conn_string(str(run.checkpoints_path)) as saver:
        saver.serde = StateSerializer()
        yield saver


@asynccontextmanager
async def open_checkpoints() -> AsyncIterator[AsyncSqliteSaver]:
    """Open the checkpointer of Studio's run, named in langgraph.json; the run's lock is held while the server has it.

    Raises InputError when there is no run, or when another process works on it.
    """
    run = await asyncio.to_thread(opened_run)
    lock = run.lock(joined=True)
    await asyncio.to_thread(lock.__enter__)
    _opened.append(run.root)
    try:
        async with run_checkpoints(run) as saver:
            yield saver
    finally:
        _opened.remove(run.root)
        await asyncio.to_thread(lock.__exit__, None, None, None)


# The server opens its checkpointer once per event loop, and may have several loops.
_opened: list[Path] = []


def opened_run() -> RunDirectory:
    """Return the run that a server in this process has opened, or would open. Raises InputError without one."""
    return RunDirectory.open(_opened[0] if _opened else studio_run().resolve())


async def evolve_once(services: RunServices, iteration: int, stage: Stage) -> None:
    """Run the graph of one iteration, from its beginning or its last checkpoint, until ``update`` is done.

    The caller holds the run's lock. Each superstep is on disk before the next one begins. Raises InputError for a
    user's mistake, RepeatedFailure for work that only fails, StorageError and OSError for a full disk, and any error of
    a node outside the fan-out.
    """
    from graph.iteration import iteration_graph

    run = services.run
    refuse_unfinished(run, iteration)
    config: RunnableConfig = {
        "configurable": {"thread_id": thread_id(iteration)},
        "max_concurrency": services.settings.roles.branches_at_once(),
    }
    begun: set[str] = set()
    ended = 0
    with writing(run.checkpoints_path):
        async with run_checkpoints(run) as saver:
            graph = iteration_graph().compile(checkpointer=saver)
            resumes = await _has_begun(graph, saver, config, run)
            events = graph.astream(
                None if resumes else IterationInput(iteration=iteration),
                config,
                context=services,
                stream_mode=["tasks"],
                version="v2",
                durability="sync",
            )
            try:
                async for event in events:
                    task: Any = event["data"]
                    if task["name"] == "branch" and "input" in task:
                        begun.add(task["id"])
                    elif task["name"] == "branch":
                        ended += 1
                    stage.update(ended, len(begun) or None, "branches" if begun else task["name"])
            except Exception as error:
                if isinstance(error, InputError | RepeatedFailure) or storage_refusal(error):
                    # Checkpoints keep a failure: once the mistake is corrected, the graph has to begin afresh.
                    await saver.adelete_thread(thread_id(iteration))
                raise


async def _has_begun(
    graph: Any,  # noqa: ANN401 - a generic
    saver: AsyncSqliteSaver,
    config: RunnableConfig,
    run: RunDirectory,
) -> bool:
    """Return whether the thread can be resumed; one that cannot is deleted.

    A thread at its end has lost its files. One that Studio went on with has its records in a copy of the run, and one
    whose state was edited there does not fit the run's. One that a full disk ended could not record that.
    """
    thread = config["configurable"]["thread_id"]
    try:
        state = await graph.aget_state(config)
        if state.next and not any(task.error and storage_refusal(task.error) for task in state.tasks):
            values = state.values if isinstance(state.values, IterationState) else IterationState(**state.values)
            fits = values.run == "" and thread_id(values.iteration) == thread
            if fits and all([await asyncio.to_thread(as_recorded, run, values, node) for node in state.next]):
                return True
    except Exception as error:  # LangGraph and pydantic take a stranger's state apart
        if isinstance(error, InputError | OSError) or storage_refusal(error):
            raise
    await saver.adelete_thread(thread)
    return False


# The ids of the state that a node takes; nodes before it wrote their records.
_TAKEN = {"extract": (), "reflect": ("signals",), "deduplicate": ("signals", "contexts")}


def as_recorded(run: RunDirectory, state: IterationState, node: str) -> bool:
    """Return whether the ids that ``node`` takes from the state are those that earlier nodes wrote into ``run``."""
    folder = run.iteration(state.iteration)
    written: dict[str, list[str]] = {}
    if folder.extraction.exists():
        written["signals"] = list(read_json(folder.extraction, ExtractionRecord).chosen)
    if folder.contexts.exists():
        written["contexts"] = [one.id for one in read_jsonl(folder.contexts, FailureContext)]
    if folder.judgements.exists():
        judged = read_jsonl(folder.judgements, DeduplicationResult)
        written["new"] = [one.context_id for one in judged if one.status == "new"]
    taken = _TAKEN.get(node, ("signals", "contexts", "new"))
    return all(name in written and sorted(getattr(state, name)) == sorted(written[name]) for name in taken)


def refuse_unfinished(run: RunDirectory, iteration: int) -> None:
    """Raise InputError for a copy whose own graph call has not ended: only its thread has the edited state."""
    if run.fork_path.exists():
        fork = read_json(run.fork_path, Fork)
        if fork.iteration == iteration and not run.iteration(iteration).evolution.exists():
            raise InputError(
                f"{run.root} is a fork of {fork.of} whose graph has not ended: go on with thread {fork.thread} in "
                f"LangGraph Studio, or remove {run.root}"
            )
