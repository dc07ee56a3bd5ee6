"""The fan-out: a branch a context, each with its deadline, and what is kept of a branch that fails."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Literal, Protocol

from langgraph.errors import NodeError
from langgraph.runtime import Runtime
from langgraph.types import Command, Send

from agents.roles import RoleRefused
from agents.spending import RepeatedFailure
from environments.base import EnvironmentDefect, EnvironmentFault, InputError
from environments.command import StorageError, storage_refusal
from graph.assembly import Rooms, open_rooms
from graph.forks import copy_name, on_its_run, working_run
from graph.records import FAILURE_FILE, Failure
from graph.run.interruption import expect_dropped_branches
from graph.state import SEED_STAGE, BranchState, BranchUpdate, IterationState, RunContext, SeedState, iteration_stage
from memory.run import write_json

TRACEBACK_FILE = "failure.log"
DEADLINE = "deadline"


async def send_branches(state: IterationState, runtime: Runtime[RunContext]) -> list[Send] | str:
    """A branch for each new context; straight to ``update`` when there is none (an empty list would end the graph)."""
    async with working_run(state, runtime, "send_branches") as run:
        # Empty for the run itself, so that a run may be moved between two processes that work on it.
        copy = await asyncio.to_thread(copy_name, run, runtime.context)
        return await _sends(iteration_stage(state.iteration), state.new, runtime, copy) or "update"


async def send_seeds(state: SeedState, runtime: Runtime[RunContext]) -> list[Send]:
    """A branch for each unguided context."""
    return await _sends(SEED_STAGE, state.contexts, runtime)


async def _sends(stage: str, contexts: Iterable[str], runtime: Runtime[RunContext], copy: str = "") -> list[Send]:
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    timeout = rooms.settings.roles.branch_timeout
    return [Send("branch", BranchState(stage=stage, context_id=one, run=copy), timeout=timeout) for one in contexts]


class Node(Protocol):
    """A node of a branch."""

    async def __call__(self, state: BranchState, runtime: Runtime[RunContext]) -> BranchUpdate:
        """Reads and writes the branch's folder."""
        ...


def may_pass(error: Exception) -> bool:
    """A dead worker is worth another attempt; a bug of the environment's code, and anything else, would fail again."""
    return isinstance(error, EnvironmentFault) and not isinstance(error, EnvironmentDefect)


def stopping(node: Node) -> Node:
    """The node of a branch; none begins any more once one found a bug of the environment or a role gave up for good.

    The handler of a failed branch is asked only when those that wait had their turn.
    """

    @wraps(node)
    async def guarded(state: BranchState, runtime: Runtime[RunContext]) -> BranchUpdate:
        rooms = await asyncio.to_thread(open_rooms, runtime.context)
        rooms.breaker.check()
        try:
            return await node(state, runtime)
        except (EnvironmentDefect, RepeatedFailure) as error:
            rooms.breaker.stop(error)
            raise

    return guarded


@on_its_run
async def record_failure(state: BranchState, error: NodeError, runtime: Runtime[RunContext]) -> BranchUpdate:
    """Writes the cause of a failed branch into its folder; its siblings go on.

    Where they would only fail too, the run stops, and its resumption makes the branches again: raises StorageError for
    a branch that a full disk or the like ended, InputError for one that a bug of the user's environment ended, and
    RepeatedFailure when a role gave up for good or too many branches in a row failed alike.
    """
    expect_dropped_branches()
    if refusal := storage_refusal(error.error):
        raise StorageError(refusal)
    if isinstance(error.error, RepeatedFailure):
        raise error.error
    if isinstance(error.error, EnvironmentDefect):
        raise InputError(str(error.error))
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    folder = rooms.branch_folder(state)
    failure = describe(error.error, state.context_id, _failed_node(folder), rooms.settings.roles.branch_timeout)
    await asyncio.to_thread(write_json, folder / FAILURE_FILE, failure)
    if isinstance(error.error, BaseException):  # a resumed graph gets its text only
        lines = traceback.format_exception(error.error)
        await asyncio.to_thread((folder / TRACEBACK_FILE).write_text, "".join(lines))
    _stop_where_hopeless(rooms, failure, error.error)
    return {"failed": [state.context_id]}


async def fail_to_update(
    state: BranchState, error: NodeError, runtime: Runtime[RunContext]
) -> Command[Literal["update"]]:
    """Like ``record_failure``, and on to ``update``: the branch's own edge is not followed when every branch fails."""
    return Command(update=await record_failure(state, error, runtime), goto="update")


def _stop_where_hopeless(rooms: Rooms, failure: Failure, error: BaseException | str) -> None:
    """Raises RepeatedFailure after too many branches in a row that failed alike.

    What roles refuse is counted where it happens, and a user's mistake is told when it ended every branch.
    """
    if isinstance(error, RoleRefused | InputError):
        return
    row = rooms.breaker.failed(failure.cause)
    if row is not None:
        stopped = RepeatedFailure(
            f"{row} branches in a row failed alike, the last one in {failure.node}: {failure.detail}"
            f"{'' if failure.cause == DEADLINE else _place(error)}: put that right and go on with --resume"
        )
        rooms.breaker.stop(stopped)
        raise stopped


def _place(error: BaseException | str) -> str:
    """`` at FILE:LINE``, where an error was raised; empty for one that is known as text alone."""
    steps = [] if isinstance(error, str) else traceback.extract_tb(error.__traceback__)
    return f" at {Path(steps[-1].filename).name}:{steps[-1].lineno}" if steps else ""


def describe(error: BaseException | str, of: str, node: str, deadline: float) -> Failure:
    """The record of one failure; equal for the error itself and for its text, which is what a resumed graph gets."""
    text = error if isinstance(error, str) else repr(error)
    cause = text.partition("(")[0]
    if cause in ("NodeTimeoutError", "TimeoutError"):
        # The library's message holds the time that passed, which differs between equal runs.
        return Failure(id=of, node=node, cause=DEADLINE, detail=f"ran past roles.branch_timeout, {deadline:g} s")
    return Failure(id=of, node=node, cause=cause, detail=text)


def refuse_mistake(failures: Sequence[Failure], branches: int) -> None:
    """Raises InputError when a user's mistake (such as a key that the endpoint refuses) ended every branch."""
    if failures and len(failures) == branches and all(failure.cause == InputError.__name__ for failure in failures):
        raise InputError(f"every branch failed, the first one with {failures[0].detail}")


def _failed_node(folder: Path) -> str:
    """The error names the branch, not the node in it: the first output that is missing does."""
    outputs = {"explore": "interactions.jsonl", "abstract": "drafts.jsonl", "verify": "verdicts.jsonl"}
    return next((node for node, name in outputs.items() if not (folder / name).exists()), "verify")
