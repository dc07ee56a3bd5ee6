"""The fan-out: one branch per context, each with a timeout, and the record of a branch that fails."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Literal

from langgraph.errors import NodeError
from langgraph.runtime import Runtime
from langgraph.types import Command, Send

from agents.spending import RepeatedFailure, RoleRefused, encodable
from environments.base import EnvironmentDefect, EnvironmentFault, InputError
from environments.command import StorageError, expect_dropped_branches, storage_refusal
from graph.assembly import RunServices
from graph.report.digest import named_weakness, of_failure
from graph.state import BranchState, BranchUpdate, IterationState, SeedState
from memory.files import write_atomically
from memory.records import FailureContext, Signal
from memory.run import (
    SEED_STAGE,
    BranchDirectory,
    IterationDirectory,
    RunDirectory,
    StageDirectory,
    iteration_of,
    iteration_stage,
    read_existing,
    read_json,
    write_json,
)
from memory.run_files import Failure
from memory.tasks import load_tasks

DEADLINE = "deadline"

Node = Callable[[BranchState, Runtime[RunServices]], Awaitable[BranchUpdate]]
"""A node of a branch, which reads and writes the branch's folder."""


async def dispatch(state: IterationState, runtime: Runtime[RunServices]) -> Command[Literal["branch", "update"]]:
    """Send each new weakness into a branch of its own, named by it; the branches work at the same time.

    In a copy of the run, which Studio makes, these are the ones without a verification result: branches that failed.
    Without a branch the iteration goes straight to ``update``.

    A node, not a router: LangGraph calls a router while it edits a state, without a runtime.
    """
    services = runtime.context
    folder = services.run.iteration(state.iteration)
    chosen = [one for one in state.new if not (services.copy and folder.branch(one).verdicts.exists())]
    stage, keep = iteration_stage(state.iteration), services.copy != ""
    return Command(goto=await asyncio.to_thread(sends, services, stage, chosen, keep) or "update")


async def send_seeds(state: SeedState, runtime: Runtime[RunServices]) -> list[Send]:
    """Send a branch for each unguided context."""
    return await asyncio.to_thread(sends, runtime.context, SEED_STAGE, state.contexts)


def sends(services: RunServices, stage: str, contexts: Sequence[str], keep: bool = False) -> list[Send]:
    """Return a branch for each of the ``contexts`` of ``stage``, named by its weakness; ``keep`` as in BranchState."""
    number = iteration_of(stage)
    folder = services.run.seed if number is None else services.run.iteration(number)
    weakness = weaknesses(services.run, folder)
    return [
        Send(
            "branch",
            BranchState(
                weakness=_name(weakness, folder.branch(one)),
                stage=stage,
                context_id=one,
                # The copy by name, empty for the run itself: a run may be moved between two processes that work on it.
                run=services.copy,
                keep=keep,
            ),
            timeout=services.settings.roles.branch_timeout,
        )
        for one in contexts
    ]


def weaknesses(run: RunDirectory, folder: StageDirectory) -> Callable[[FailureContext], str]:
    """Return what names a context of one stage by its weakness; D_0 has no signals."""
    path = folder.signals if isinstance(folder, IterationDirectory) else None
    signals = {one.id: one for one in read_existing(path, Signal)} if path is not None else {}
    tasks = {one.id: one for one in load_tasks(run)} if signals else {}
    return lambda context: named_weakness(context, signals.get(context.signal_id), tasks.get(context.task_id))


def _name(weakness: Callable[[FailureContext], str], branch: BranchDirectory) -> str:
    try:
        return weakness(read_json(branch.context, FailureContext))
    except InputError:
        return ""  # the branch itself fails with the reason


def finished(state: BranchState, output: Path) -> bool:
    """Return whether a branch of D_0 has the output of a node from before a kill.

    It is then not made, and paid, again. Branches of an iteration resume from LangGraph's checkpoints. In a copy that
    Studio made (``keep``) a branch begins where it failed.
    """
    return (state.keep or state.stage == SEED_STAGE) and output.exists()


def may_pass(error: Exception) -> bool:
    """Return whether to retry: another worker may replace a dead one; a bug, or anything else, would fail again."""
    return isinstance(error, EnvironmentFault) and not isinstance(error, EnvironmentDefect)


def stopping(node: Node) -> Node:
    """Return ``node`` behind the run's breaker: it does not begin once a branch found a bug or a role gave up for good.

    LangGraph calls the handler of a failed branch only after the waiting branches, which would all begin first.
    """

    @wraps(node)
    async def guarded(state: BranchState, runtime: Runtime[RunServices]) -> BranchUpdate:
        breaker = runtime.context.breaker
        breaker.check()
        try:
            return await node(state, runtime)
        except (EnvironmentDefect, RepeatedFailure) as error:
            breaker.stop(error)
            raise

    return guarded


async def record_failure(state: BranchState, error: NodeError, runtime: Runtime[RunServices]) -> BranchUpdate:
    """Write the cause of a failed branch into its folder; its siblings continue.

    Raises where every sibling would fail alike, which stops the run; a resumed run makes the branches again.
    StorageError: a full disk or the like ended the branch. InputError: a bug of the user's environment ended it.
    RepeatedFailure: a role gave up for good, or too many branches in a row failed alike.
    """
    expect_dropped_branches()
    if refusal := storage_refusal(error.error):
        raise StorageError(refusal)
    if isinstance(error.error, RepeatedFailure):
        raise error.error
    if isinstance(error.error, EnvironmentDefect):
        raise InputError(str(error.error))
    services = runtime.context
    branch = services.run.stage(state.stage).branch(state.context_id)
    # The error names the branch, not the node in it: that is the first one without output.
    outputs = {"explore": branch.interactions, "abstract": branch.drafts, "verify": branch.verdicts}
    node = next((node for node, path in outputs.items() if not path.exists()), "verify")
    failure = describe(error.error, state.context_id, node, services.settings.roles.branch_timeout)
    await asyncio.to_thread(write_json, branch.failure, failure)
    if isinstance(error.error, BaseException):  # a resumed graph gets its text only
        lines = "".join(traceback.format_exception(error.error))
        await asyncio.to_thread(write_atomically, branch.traceback, [encodable(lines).encode()])
    # Refusals of roles are counted where they happen, and a user's mistake is reported when it ended every branch.
    hopeless = not isinstance(error.error, RoleRefused | InputError)
    if hopeless and (row := services.breaker.failed(failure.cause)) is not None:
        place = ""
        if isinstance(error.error, BaseException) and failure.cause != DEADLINE:
            for last in traceback.extract_tb(error.error.__traceback__)[-1:]:
                place = f" at {Path(last.filename).name}:{last.lineno}"
        stopped = RepeatedFailure(
            f"{row} branches in a row failed alike, the last one in {failure.node}: {failure.detail}{place}: put that "
            "right and go on with --resume"
        )
        services.breaker.stop(stopped)
        raise stopped
    return {"branches": [of_failure(state.weakness, failure)], "failed": [state.context_id]}


async def fail_to_update(
    state: BranchState, error: NodeError, runtime: Runtime[RunServices]
) -> Command[Literal["update"]]:
    """Record why a branch failed, and go on without it.

    It does what ``record_failure`` does, then goes to ``update``: a failed branch's own edge is not followed.
    """
    return Command(update=await record_failure(state, error, runtime), goto="update")


def describe(error: BaseException | str, of: str, node: str, deadline: float) -> Failure:
    """Return the record of one failure; equal for the error itself and for its text, which a resumed graph gets."""
    text = error if isinstance(error, str) else repr(error)
    cause = text.partition("(")[0]
    if cause in ("NodeTimeoutError", "TimeoutError"):
        # The library's message holds the time that passed, which differs between equal runs.
        return Failure(id=of, node=node, cause=DEADLINE, detail=f"ran past roles.branch_timeout, {deadline:g} s")
    return Failure(id=of, node=node, cause=cause, detail=text)


def refuse_mistake(failures: Sequence[Failure], branches: int) -> None:
    """Raise InputError when a user's mistake (such as a key that the endpoint refuses) ended every branch."""
    if failures and len(failures) == branches and all(failure.cause == InputError.__name__ for failure in failures):
        raise InputError(f"every branch failed, the first one with {failures[0].detail}")
