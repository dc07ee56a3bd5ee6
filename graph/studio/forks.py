"""Resolves the run that LangGraph Studio names to the services of the run that a node may write, under its lock.

That is the run itself, or a copy for forks and edits. The records of an iteration whose graph is done are never written
again, and those of another are written only from the state that its own nodes left. Any other call of a node, a fork in
Studio or a state that was edited there, works in ``RUN@THREAD`` beside the run, a run of its own that can be scored and
continued. A further fork on the same thread gets ``RUN@THREAD.2``, and so on. Edits of contexts and drafts
(``graph.studio.edits``) are made in the copy before a node works in it.

Commands give their nodes services and hold the run's lock: their graph is wired without this.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from langgraph.errors import GraphInterrupt
from langgraph.types import Command, interrupt

from agents.spending import read_requests
from environments.base import InputError
from graph.assembly import services_at
from graph.checkpoints import served_runs, studio_run
from graph.digests import Digest, of_verify
from graph.records import Fork
from graph.resumption import WRITTEN_AT_THE_END, as_recorded, is_done, taken_from_the_state
from graph.state import NEWEST, BranchState, ExplorationState, IterationState, IterationUpdate, RunContext
from graph.studio.edits import answered, check_edits, editable, make_edits
from graph.studio.thread_names import name_thread
from memory.processes import shared
from memory.records import Draft, DraftVerification, FailureContext, Signal
from memory.run import (
    SEED_STAGE,
    IterationDirectory,
    RunDirectory,
    iteration_of,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)
from memory.tasks import load_tasks, tasks_at
from training.grpo.record import RoundRecord

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

Update = TypeVar("Update")

_FIRST = {"extract": "iteration", "_prepare": "seed"}
"""The graph that begins with a node, by the node's name: there its thread is named."""

_ANSWER = '"" to go on, or {ID: {FIELD: VALUE}} to change these records in a copy of the run'
"""LangGraph takes {}, given to the only branch that waits, for no answer at all."""

_OF_AN_END = (
    IterationDirectory.interactions,
    IterationDirectory.drafts,
    IterationDirectory.verdicts,
    IterationDirectory.branch_failures,
)
_LARGE = (IterationDirectory.trajectories.name,)
_choosing = threading.Lock()  # branches begin at once: the first one makes the copy


def with_services(node: Callable[..., Awaitable[Update]]) -> Callable[..., Coroutine[Any, Any, Update]]:
    """Return ``node`` as LangGraph calls it, with services in ``runtime.context``.

    ``node`` is a node, a router or an error handler with the parameters ``state`` and ``runtime``. A ``RunContext`` (or
    None) from LangGraph Studio is resolved to the services of the run that the node may write, whose lock is held while
    it works.
    """
    called = signature(node)

    @wraps(node)
    async def resolved(*args: Any, **kwargs: Any) -> Update:  # noqa: ANN401 - as the library calls it
        call = called.bind(*args, **kwargs)
        state, runtime = call.arguments["state"], call.arguments["runtime"]
        if isinstance(state, IterationState) and node.__name__ == "extract":
            state = call.arguments["state"] = await asyncio.to_thread(_from_the_start, state, runtime.context)
        if isinstance(state, BranchState):
            if state.edits:
                return cast("Update", {})  # the branch begins again in a copy with them
            if edits := await _answer(state, runtime, node.__name__):
                return cast("Update", {"edits": [edits]})
        if node.__name__ == "update" and await asyncio.to_thread(_edits_wait, state, runtime):
            return cast("Update", Command(update={"again": ()}, goto="dispatch"))
        async with working_run(state, runtime, node.__name__) as run:
            base = await asyncio.to_thread(named_run, runtime.context)
            if node.__name__ in _FIRST and runtime.server_info is not None and runtime.execution_info is not None:
                values = {"iteration": state.iteration} if isinstance(state, IterationState) else {}
                await name_thread(base, runtime.execution_info.thread_id, _FIRST[node.__name__], values)
            call_id = runtime.execution_info.run_id if runtime.execution_info is not None else None
            services = await asyncio.to_thread(services_at, run.root, call_id)
            copy = "" if run == base else run.root.name
            call.arguments["runtime"] = runtime.override(context=dataclasses.replace(services, copy=copy))
            update = await node(*call.args, **call.kwargs)
            if isinstance(state, IterationState) and node.__name__ == "update":
                cast("IterationUpdate", update)["digest"] |= await asyncio.to_thread(_of_edits, run, state)
            return update

    return resolved


async def _answer(state: BranchState, runtime: Runtime[RunContext], node: str) -> dict[str, dict[str, Any]]:
    """Let a branch wait before ``node`` where ``pause`` asks for it; return the edits in the answer, none to go on.

    A thread may be resumed with another ``pause`` than it waited with: an answer is taken all the same. A wrong answer
    is refused in what the branch shows while it waits for the next one: an error would end the branch. A branch does
    not wait where a record that it would show was edited already.
    """
    answers: list[object] = []
    if _pause(runtime.context) != node:
        try:
            answers.append(interrupt("the answer to an earlier pause"))
        except GraphInterrupt:  # it was given none
            return {}
    async with working_run(state, runtime, node) as run:
        folder = run.stage(state.stage)
        shown = await asyncio.to_thread(editable, folder, state.context_id, node)
        edited = await asyncio.to_thread(_edits_of, run)
    if shown.keys() & edited.keys():
        return {}
    waits = {"weakness": state.weakness, "paused before": node, "records": shown, "answer with": _ANSWER}
    while True:
        answer = answers.pop() if answers else interrupt(waits)
        try:
            edits = await asyncio.to_thread(answered, folder, state.context_id, node, answer)
            if edits and state.stage == SEED_STAGE:
                raise InputError('edits: unguided exploration takes none: answer with "" to go on')
        except InputError as error:
            waits = waits | {"refused": str(error)}
        else:
            return edits


def _edits_of(run: RunDirectory) -> dict[str, dict[str, Any]]:
    return read_json(run.fork_path, Fork).edits if run.fork_path.exists() else {}


def _of_edits(run: RunDirectory, state: IterationState) -> Digest:
    """Return the verification result of each edited draft, a line each; nothing where none was edited."""
    if not state.edits:
        return {}
    folder = run.iteration(state.iteration)
    drafts = [one for one in read_jsonl(folder.drafts, Draft) if one.id in state.edits]
    results = {one.draft_id: one for one in read_jsonl(folder.verdicts, DraftVerification)}
    return {"edits": of_verify(drafts, [results[one.id] for one in drafts])} if drafts else {}


def _pause(context: RunContext | None) -> str:
    pause = context.pause if context is not None else ""
    if pause not in ("", "explore", "abstract", "verify"):
        raise InputError(f"pause: {pause!r:.80} is not a step of a branch: give explore, abstract or verify")
    return pause


def _from_the_start(state: IterationState, context: RunContext | None) -> IterationState:
    """Return ``state`` with the number of the newest iteration, if that is asked for, and without a fork's edits.

    Raises InputError for a run without a finished round.
    """
    _pause(context)
    number = state.iteration
    if number == NEWEST and isinstance(number, int):
        run = named_run(context)
        number = newest(run)
    return state.model_copy(update={"iteration": number, "again": (), "edits": {}})


def newest(run: RunDirectory) -> int:
    """Return the newest iteration whose round of training is done. Raises InputError for a run without one."""
    done = (number for number in itertools.count() if not run.iteration(number).round.exists())
    found = next(done) - 1
    if found < 0:
        raise InputError(f"{run.root} has no finished round of training: let the loop's graph or the command make one")
    return found


@asynccontextmanager
async def working_run(
    state: IterationState | BranchState | ExplorationState, runtime: Runtime[RunContext], node: str
) -> AsyncIterator[RunDirectory]:
    """Give the run that ``node`` writes, held against other processes while the block runs.

    Raises InputError for a run that another process holds (which it names) or that is not the one a server opened, for
    an iteration that cannot exist, and for a state with ids that no record has.
    """
    async with AsyncExitStack() as stack:
        base = await asyncio.to_thread(named_run, runtime.context)
        await stack.enter_async_context(held(base))
        thread = runtime.execution_info.thread_id if runtime.execution_info is not None else None
        run = await asyncio.to_thread(_choose, base, thread, state, node)
        if run != base:
            await stack.enter_async_context(held(run))
        yield run


@asynccontextmanager
async def held(run: RunDirectory) -> AsyncIterator[None]:
    """Hold a run against other processes while the block runs. Raises InputError that names who holds it."""
    lock = shared(run.lock_path, str(run.root))
    await asyncio.to_thread(lock.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(lock.__exit__, None, None, None)


def named_run(context: RunContext | None) -> RunDirectory:
    """Return the run that Studio's form names, or the one that Studio opens. Raises InputError for a wrong one."""
    if context is not None and not isinstance(context.run, str):
        raise InputError(f"run: {context.run!r:.80} is not the path of a run's folder")
    path = Path(context.run) if context is not None and context.run else studio_run()
    run = RunDirectory.open(path.resolve())
    served = served_runs()
    if served and run.root not in served:
        with shared(run.lock_path, str(run.root)):  # whoever holds it is named first
            raise InputError(
                f"this server has opened {served[0]} and keeps its checkpoints there: for {run.root} start another "
                f"one with COEVOLVE_RUN={run.root}"
            )
    return run


def _choose(
    base: RunDirectory, thread: str | None, state: IterationState | BranchState | ExplorationState, node: str
) -> RunDirectory:
    with _choosing:
        if isinstance(state, ExplorationState):
            return _of_exploration(base, thread, node)
        if isinstance(state, BranchState):
            return _of_branch(base, thread, state)
        return _of_iteration(base, thread, state, node)


def _of_iteration(base: RunDirectory, thread: str | None, state: IterationState, node: str) -> RunDirectory:
    edits = _check(state)
    number = state.iteration
    if not base.iteration(number).trajectories.exists():
        raise InputError(
            f"iteration: {number} of {base.root} has no trajectories: give one from 0 to {newest(base)}, or {NEWEST} "
            "for the newest"
        )
    if edits and node == "reflect":
        raise InputError("edits: reflect would overwrite them: set them in the state after it, or after deduplicate")
    if not edits and not is_done(base, number) and as_recorded(base, state, node):
        return base
    if (begun := _begun(base, thread, state, node, edits)) is not None:
        return begun
    copies = list(reversed(_copies(base, thread, number)))
    # Edits are of the records that the thread shows: those of its newest copy, if its own edits are among them.
    sources = [*(run for run in copies if _among(_edits_of(run), edits)), base] if edits else [base, *copies]
    source = next((run for run in sources if _holds(run, state, node)), None)
    if source is None:
        raise InputError(
            f"{base.iteration(number).root} has no records of the ids in the state: take those that it has"
        )
    return _copy(source, base, thread, number, edits)


def _begun(
    base: RunDirectory, thread: str | None, state: IterationState, node: str, edits: dict[str, dict[str, Any]]
) -> RunDirectory | None:
    """Return the copy in which the thread works with ``edits`` and has not come to its end, None without one."""
    of_edits = [run for run in _copies(base, thread, state.iteration) if _edits_of(run) == edits]
    begun = of_edits and not is_done(of_edits[-1], state.iteration) and _holds(of_edits[-1], state, node)
    return of_edits[-1] if begun else None


def _edits_wait(state: IterationState, runtime: Runtime[RunContext]) -> bool:
    """Return whether ``update`` got edits that no branch ran with yet: those that branches got as answers."""
    edits, thread = _check(state), runtime.execution_info.thread_id if runtime.execution_info is not None else None
    return bool(edits) and _begun(named_run(runtime.context), thread, state, "update", edits) is None


def _among(some: dict[str, dict[str, Any]], edits: dict[str, dict[str, Any]]) -> bool:
    return all({**edits.get(name, {}), **fields} == edits.get(name) for name, fields in some.items())


def _of_branch(base: RunDirectory, thread: str | None, state: BranchState) -> RunDirectory:
    if state.stage == SEED_STAGE:
        found = (run for run in _copies(base, thread, None) if run.root.name == state.run)
        return next(found, base)
    number = iteration_of(state.stage)
    if number is None or Path(state.context_id).name != state.context_id:
        raise InputError(f"stage: {state.stage}/branches/{state.context_id} is not a branch of an iteration")
    copies = _copies(base, thread, number)
    given = next((run for run in copies if run.root.name == state.run), None if state.run else base)
    if given is None:
        raise InputError(f"run: {state.run} is not a copy of {base.root} for this thread: take one that is")
    if not is_done(given, number):
        return given
    if copies and not is_done(copies[-1], number):
        begun = copies[-1].iteration(number).branch(state.context_id).context
        if begun.exists():
            return copies[-1]
    return _copy(given, base, thread, number)


def _of_exploration(base: RunDirectory, thread: str | None, node: str) -> RunDirectory:
    """Return the copy in which start states are explored: a new one for the first node, the newest for others."""
    copies = _copies(base, thread, None)
    if copies and node != "_prepare":
        return copies[-1]

    def fill(partial: RunDirectory) -> None:
        for path in (base.settings_path, base.recorded_path):
            if path.exists():
                shutil.copy2(path, partial.root)

    return _new_copy(base, thread, Fork(of=base.root.name, thread=thread or "", iteration=None), fill)


def _check(state: IterationState) -> dict[str, dict[str, Any]]:
    """Refuse a wrong state here: values that its schema refused would make a thread unreadable for good.

    Returns the edits that it has.
    """
    number = state.iteration
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InputError(
            f"iteration: {number!r:.80} is not the number of an iteration: give one from 0, that has trajectories, or "
            f"{NEWEST} for the newest"
        )
    for name in ("signals", "contexts", "new", "again"):
        ids = getattr(state, name)
        if not isinstance(ids, list | tuple) or not all(isinstance(one, str) for one in ids):
            raise InputError(f"{name}: {ids!r:.80} is not a list of ids")
    if odd := next((one for one in state.again if one not in state.new), None):
        raise InputError(f"again: {odd!r:.80} is not one of new: name contexts that have a branch")
    return check_edits(state.edits)


def _holds(run: RunDirectory, state: IterationState, node: str) -> bool:
    """Return whether ``run`` has the records of all ids that ``node`` takes from the state."""
    folder = run.iteration(state.iteration)
    reads = taken_from_the_state(node)
    if "signals" in reads and not _has(folder.signals, Signal, state.signals):
        return False
    if "contexts" in reads and not _has(folder.contexts, FailureContext, state.contexts):
        return False
    branches = [folder.branch(one) for one in state.new] if "new" in reads else []
    if node == "update":
        return all(branch.verdicts.exists() or branch.failure.exists() for branch in branches)
    return all(branch.context.exists() for branch in branches)


def _has(path: Path, model: type[Signal] | type[FailureContext], ids: Iterable[str]) -> bool:
    return path.exists() and set(ids) <= set(_ids(read_jsonl(path, model)))


def _ids(rows: Iterable[Signal | FailureContext]) -> list[str]:
    return [row.id for row in rows]


def _copies(base: RunDirectory, thread: str | None, iteration: int | None) -> list[RunDirectory]:
    """Return the copies of ``base`` that were made for forks of this iteration on this thread, oldest first."""
    found = []
    for run in _numbered(base, thread) if thread is not None else ():
        if not run.fork_path.exists():
            break
        if read_json(run.fork_path, Fork).iteration == iteration:
            found.append(run)
    return found


def _numbered(base: RunDirectory, thread: str) -> Iterable[RunDirectory]:
    name = f"{base.root.name}@{re.sub(r'[^A-Za-z0-9._-]', '_', thread)[:100]}"
    number = 1
    while True:
        yield RunDirectory(base.root.with_name(name if number == 1 else f"{name}.{number}"))
        number += 1


def _copy(
    source: RunDirectory,
    base: RunDirectory,
    thread: str | None,
    iteration: int,
    edits: dict[str, dict[str, Any]] | None = None,
) -> RunDirectory:
    """Make a run that is as ``source`` was before the end of ``iteration``, but for ``edits``; whole or not at all.

    Files that are not written any more become hard links where the disk has them, so that weights are stored once.
    """
    if thread is None:
        raise InputError(
            f"{source.iteration(iteration).root} is done or its state was edited: for a copy of the run to work in, "
            "call the graph with a checkpointer and a thread_id"
        )

    def fill(partial: RunDirectory) -> None:
        _fill(partial, source, iteration)
        made = _edits_of(source)
        if todo := {name: fields for name, fields in (edits or {}).items() if made.get(name) != fields}:
            make_edits(partial.iteration(iteration), todo)

    return _new_copy(base, thread, Fork(of=base.root.name, thread=thread, iteration=iteration, edits=edits or {}), fill)


def _new_copy(base: RunDirectory, thread: str | None, fork: Fork, fill: Callable[[RunDirectory], None]) -> RunDirectory:
    """Make the thread's next copy of ``base``, filled by ``fill``; whole or not at all."""
    if thread is None:
        raise InputError("for a copy of the run to work in, call the graph with a checkpointer and a thread_id")
    target = next(run for run in _numbered(base, thread) if not run.root.exists())
    partial = RunDirectory(base.root.with_name(f".{target.root.name}.partial"))
    shutil.rmtree(partial.root, ignore_errors=True)  # of a process that was killed
    try:
        partial.root.mkdir()
        fill(partial)
        write_json(partial.fork_path, fork)
        partial.root.rename(target.root)
    except BaseException:
        shutil.rmtree(partial.root, ignore_errors=True)
        raise
    return target


def _fill(copy: RunDirectory, source: RunDirectory, iteration: int) -> None:
    """Copy everything that ``iteration`` is made from, without later iterations and the indexes, which are rebuilt."""
    for path in (source.settings_path, source.recorded_path):
        if path.exists():
            shutil.copy2(path, copy.root)
    write_jsonl(copy.tasks_path, tasks_at(load_tasks(source), iteration))
    if requests := read_requests(source.spending_path):
        paid = [one for one in requests if one.iteration is None or one.iteration <= iteration]
        write_jsonl(copy.spending_path, paid)
    _link_tree(source.seed_path, copy.seed_path)
    for number in range(iteration):
        _link_tree(source.iteration(number).root, copy.iteration(number).root)
    folder = source.iteration(iteration)
    left_out = shutil.ignore_patterns(*(file.name for file in (*_OF_AN_END, *WRITTEN_AT_THE_END)), ".*.tmp")
    shutil.copytree(
        folder.root,
        copy.iteration(iteration).root,
        ignore=lambda at, names: left_out(at, names) if Path(at) == folder.root else set(),
        copy_function=lambda one, other: (_link if Path(one).name in _LARGE else shutil.copy2)(one, other),
    )
    if folder.round.exists():
        policy = read_json(folder.round, RoundRecord).policy
        _link_tree(source.root / policy, copy.root / policy)


def _link_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link, symlinks=True)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
