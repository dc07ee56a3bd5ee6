"""Runs the graph of one iteration, from its beginning or from where its checkpoints stand."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agents.breaker import RepeatedFailure
from agents.settings import RolesSettings
from environments.base import InputError
from environments.command import storage_refusal, writing
from graph.interruption import Interruption
from graph.progress import Stage
from memory.run import RunDirectory

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver


def thread_id(iteration: int) -> str:
    """The thread of an iteration: one each, because running a thread again appends to what its branches returned.

    Studio's server takes UUIDs only: this one ends in the iteration's number.
    """
    return f"00000000-0000-4000-8000-{iteration:012d}"


async def evolve_once(run: RunDirectory, iteration: int, stage: Stage, interruption: Interruption) -> None:
    """Run the graph until ``update`` is done. The caller holds the run's lock.

    A signal stops it at the edge of a superstep; every superstep is on the disk before the next one begins.
    Raises CancelledError for that, InputError for a user's mistake, RepeatedFailure for work that only fails,
    StorageError and OSError where the disk takes no more, and whatever a node outside the fan-out raises.
    """
    from graph.checkpoints import run_checkpoints
    from graph.forks import refuse_unfinished

    refuse_unfinished(run, iteration)
    try:
        with writing(run.checkpoints_path):
            async with run_checkpoints(run) as saver:
                await _evolve(run, iteration, stage, interruption, saver)
    except sqlite3.DatabaseError as error:
        # What is no OperationalError says that the file is no database, or a torn one.
        if isinstance(error, sqlite3.OperationalError):
            raise
        path = run.checkpoints_path
        raise InputError(f"{path} is damaged ({error}): remove it, the iteration's graph begins afresh") from error


async def _evolve(
    run: RunDirectory, iteration: int, stage: Stage, interruption: Interruption, saver: AsyncSqliteSaver
) -> None:
    from langgraph.errors import GraphDrained
    from langgraph.runtime import RunControl

    from graph.iteration import iteration_graph
    from graph.state import IterationState, RunContext

    control = RunControl()
    graph = iteration_graph().compile(checkpointer=saver)
    config = _config(iteration, run.section("roles", RolesSettings).concurrency)
    begun = await _has_begun(graph, saver, config, run)
    events = graph.astream(
        None if begun else IterationState(iteration=iteration),
        config,
        context=RunContext(run=str(run.root)),
        stream_mode=["tasks"],
        version="v2",
        durability="sync",
        control=control,
    )
    branches = _Branches(stage)
    try:
        with interruption.draining(control.request_drain):
            async for event in events:
                branches.show(event["data"])
    except GraphDrained:
        raise asyncio.CancelledError from None
    except Exception as error:
        if isinstance(error, InputError | RepeatedFailure) or storage_refusal(error):
            # Checkpoints keep what failed as failed: once the mistake is put right, the graph begins afresh.
            await saver.adelete_thread(thread_id(iteration))
        raise


def _config(iteration: int, branches_at_once: int) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id(iteration)}, "max_concurrency": branches_at_once}


async def _has_begun(
    graph: Any,  # noqa: ANN401 - a generic
    saver: AsyncSqliteSaver,
    config: RunnableConfig,
    run: RunDirectory,
) -> bool:
    """Whether the thread stands in its middle.

    One that is at its end is forgotten: its files are not there. So is one whose state was edited in Studio, since the
    run's records are made from its own, and one that a full disk ended, where not even that could be written down.
    """
    state = await graph.aget_state(config)
    stands = state.next and not any(task.error and storage_refusal(task.error) for task in state.tasks)
    if stands and await asyncio.to_thread(_is_unedited, run, state.next, state.values):
        return True
    await saver.adelete_thread(config["configurable"]["thread_id"])
    return False


def _is_unedited(run: RunDirectory, nodes: Sequence[str], values: Any) -> bool:  # noqa: ANN401 - as stored
    from graph.forks import as_recorded
    from graph.state import IterationState

    state = values if isinstance(values, IterationState) else IterationState(**values)
    return all(as_recorded(run, state, node) for node in nodes)


class _Branches:
    """Counts branches that begin and end, for the progress display."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._begun: set[str] = set()
        self._ended = 0

    def show(self, task: Any) -> None:  # noqa: ANN401 - an event of the library
        """Take one event: a node that begins, or its result."""
        node = task["name"]
        if node == "branch" and "input" in task:
            self._begun.add(task["id"])
        elif node == "branch":
            self._ended += 1
        self._stage.update(self._ended, len(self._begun) or None, "branches" if self._begun else node)
