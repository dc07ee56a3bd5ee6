"""Which run a node works in: the run itself, or a copy that forks and edits get, under a lock in both cases.

The records of an iteration whose graph is done are never written again, and those of another are written only from the
state that its own nodes left. Any other call of a node, a fork in LangGraph Studio or a state that was edited there,
works in ``RUN@THREAD`` beside the run, a run of its own that can be scored and continued. A further fork on the same
thread gets ``RUN@THREAD.2``, and so on.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from agents.spending import read_requests
from environments.base import InputError, Record
from graph.checkpoints import served_runs, studio_run
from graph.perturbation import PERTURBATIONS_FILE
from graph.records import FAILURE_FILE, ExtractionRecord
from graph.state import SEED_STAGE, BranchState, IterationState, RunContext
from memory.failures import Judgement
from memory.processes import shared
from memory.records import FailureContext, Signal
from memory.run import RunDirectory, read_json, read_jsonl, write_json, write_jsonl
from memory.tasks import load_tasks, tasks_at
from training.grpo.record import LENT_FILE, RECORD_FILE, TRAJECTORIES_FILE, RoundRecord

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

P = ParamSpec("P")
Update = TypeVar("Update")

_READS = {"extract": (), "reflect": ("signals",), "deduplicate": ("signals", "contexts")}
_ALL = ("signals", "contexts", "new")
"""What each node, by name, takes from the state: ids of records that the nodes before it wrote. Later ones take all."""

_OF_AN_END = ("interactions.jsonl", "drafts.jsonl", "verdicts.jsonl", "branch_failures.jsonl", PERTURBATIONS_FILE)
_DONE = ("evolution.json", "summary.json")
_LARGE = (TRAJECTORIES_FILE, LENT_FILE)
_STAGE = re.compile(r"iterations/(\d{3,})")
_choosing = threading.Lock()  # branches come at once: the first one makes the copy


class Fork(Record):
    """Of which run a copy was made, for which thread, and the iteration whose graph works in it."""

    of: str
    thread: str
    iteration: int


def on_its_run(node: Callable[P, Awaitable[Update]]) -> Callable[P, Coroutine[Any, Any, Update]]:
    """Let a node, a router or an error handler find in ``runtime.context`` the run that it may write, locked."""
    called = signature(node)

    @wraps(node)
    async def on_run(*args: P.args, **kwargs: P.kwargs) -> Update:
        call = called.bind(*args, **kwargs)
        state, runtime = call.arguments["state"], call.arguments["runtime"]
        async with working_run(state, runtime, node.__name__) as run:
            call.arguments["runtime"] = runtime.override(context=RunContext(run=str(run.root)))
            return await node(*call.args, **call.kwargs)

    return on_run


@asynccontextmanager
async def working_run(
    state: IterationState | BranchState, runtime: Runtime[RunContext], node: str
) -> AsyncIterator[RunDirectory]:
    """The run that ``node`` writes, held against other processes while the block runs.

    Raises InputError for a run that another process holds (which it names) or that is not the one a server opened, for
    an iteration that cannot be, and for a state with ids that no record has.
    """
    async with AsyncExitStack() as held:
        base = await asyncio.to_thread(_named, runtime.context)

        async def hold(run: RunDirectory) -> None:
            lock = shared(run.lock_path, str(run.root))
            await asyncio.to_thread(lock.__enter__)
            held.push_async_callback(asyncio.to_thread, lock.__exit__, None, None, None)

        await hold(base)
        thread = runtime.execution_info.thread_id if runtime.execution_info is not None else None
        run = await asyncio.to_thread(_choose, base, thread, state, node)
        if run != base:
            await hold(run)
        yield run


def _named(context: RunContext | None) -> RunDirectory:
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


def copy_name(run: RunDirectory, context: RunContext | None) -> str:
    """The name of ``run`` where it is a copy of the run that ``context`` names, else empty."""
    return "" if run == _named(context) else run.root.name


def _choose(base: RunDirectory, thread: str | None, state: IterationState | BranchState, node: str) -> RunDirectory:
    with _choosing:
        if isinstance(state, BranchState):
            return _of_branch(base, thread, state)
        return _of_iteration(base, thread, state, node)


def _of_iteration(base: RunDirectory, thread: str | None, state: IterationState, node: str) -> RunDirectory:
    _check(state)
    number = state.iteration
    if not is_done(base, number) and as_recorded(base, state, node):
        return base
    copies = _copies(base, thread, number)
    if copies and not is_done(copies[-1], number) and _holds(copies[-1], state, node):
        return copies[-1]
    source = next((run for run in (base, *reversed(copies)) if _holds(run, state, node)), None)
    if source is None:
        raise InputError(f"{base.iteration(number)} has no records of the ids in the state: take those that it has")
    return _copy(source, base, thread, number)


def _of_branch(base: RunDirectory, thread: str | None, state: BranchState) -> RunDirectory:
    if state.stage == SEED_STAGE:
        return base
    stage = _STAGE.fullmatch(state.stage)
    if stage is None or Path(state.context_id).name != state.context_id:
        raise InputError(f"stage: {state.stage}/branches/{state.context_id} is no branch of an iteration")
    number = int(stage[1])
    copies = _copies(base, thread, number)
    given = next((run for run in copies if run.root.name == state.run), None if state.run else base)
    if given is None:
        raise InputError(f"run: {state.run} is no copy of {base.root} for this thread: take one that is")
    if not is_done(given, number):
        return given
    begun = Path("branches") / state.context_id / "context.json"
    if copies and not is_done(copies[-1], number) and (copies[-1].iteration(number) / begun).exists():
        return copies[-1]
    return _copy(given, base, thread, number)


def _check(state: IterationState) -> None:
    """The state's schema leaves this to the nodes: what it refuses itself makes a thread unreadable for good."""
    number = state.iteration
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InputError(f"iteration: {number!r} is no number of an iteration: give one from 0, that has trajectories")
    for name in ("signals", "contexts", "new"):
        ids = getattr(state, name)
        if not isinstance(ids, list | tuple) or not all(isinstance(one, str) for one in ids):
            raise InputError(f"{name}: {ids!r:.80} is no list of ids")


def is_done(run: RunDirectory, number: int) -> bool:
    """Whether the graph of an iteration is done: its records are read-only from then on."""
    return any((run.iteration(number) / name).exists() for name in _DONE)


def as_recorded(run: RunDirectory, state: IterationState, node: str) -> bool:
    """Whether what ``node`` takes from the state is what the nodes before it wrote into ``run``."""
    folder = run.iteration(state.iteration)

    def written(name: str) -> list[str]:
        if name == "signals":
            return list(read_json(folder / "extraction.json", ExtractionRecord).chosen)
        if name == "contexts":
            return _ids(read_jsonl(folder / "contexts.jsonl", FailureContext))
        return [one.context_id for one in read_jsonl(folder / "judgements.jsonl", Judgement) if one.status == "new"]

    files = {"signals": "extraction.json", "contexts": "contexts.jsonl", "new": "judgements.jsonl"}
    return all(
        (folder / files[name]).exists() and sorted(getattr(state, name)) == sorted(written(name))
        for name in _READS.get(node, _ALL)
    )


def _holds(run: RunDirectory, state: IterationState, node: str) -> bool:
    """Whether ``run`` has the records of all ids that ``node`` takes from the state."""
    folder = run.iteration(state.iteration)
    reads = _READS.get(node, _ALL)
    if "signals" in reads and not _has(folder / "signals.jsonl", Signal, state.signals):
        return False
    if "contexts" in reads and not _has(folder / "contexts.jsonl", FailureContext, state.contexts):
        return False
    branches = [folder / "branches" / one for one in state.new] if "new" in reads else []
    ends = ("verdicts.jsonl", FAILURE_FILE) if node == "update" else ("context.json",)
    return all(any((branch / end).exists() for end in ends) for branch in branches)


def _has(path: Path, model: type[Signal] | type[FailureContext], ids: Iterable[str]) -> bool:
    return path.exists() and set(ids) <= set(_ids(read_jsonl(path, model)))


def _ids(rows: Iterable[Signal | FailureContext]) -> list[str]:
    return [row.id for row in rows]


def _copies(base: RunDirectory, thread: str | None, iteration: int) -> list[RunDirectory]:
    """The copies of ``base`` that were made for forks of this iteration on this thread, oldest first."""
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


def _copy(source: RunDirectory, base: RunDirectory, thread: str | None, iteration: int) -> RunDirectory:
    """A run as ``source`` was before the end of ``iteration``, whole or not at all.

    Files that nobody writes any more are links where the disk has them, so that weights take no room twice.
    """
    if thread is None:
        raise InputError(
            f"{source.iteration(iteration)} is done or its state was edited: for a copy of the run to work in, call "
            "the graph with a checkpointer and a thread_id"
        )
    target = next(run for run in _numbered(base, thread) if not run.root.exists())
    partial = RunDirectory(base.root.with_name(f".{target.root.name}.partial"))
    shutil.rmtree(partial.root, ignore_errors=True)  # of a process that was killed
    try:
        partial.root.mkdir()
        _fill(partial, source, iteration)
        write_json(partial.fork_path, Fork(of=base.root.name, thread=thread, iteration=iteration))
        partial.root.rename(target.root)
    except BaseException:
        shutil.rmtree(partial.root, ignore_errors=True)
        raise
    return target


def _fill(copy: RunDirectory, source: RunDirectory, iteration: int) -> None:
    """Everything that ``iteration`` is made from; the indexes, which are made anew, and later iterations are not."""
    for path in (source.settings_path, source.recorded_path):
        if path.exists():
            shutil.copy2(path, copy.root)
    write_jsonl(copy.tasks_path, tasks_at(load_tasks(source), iteration))
    if requests := read_requests(source.spending_path):
        paid = [one for one in requests if one.iteration is None or one.iteration <= iteration]
        write_jsonl(copy.spending_path, paid)
    _link_tree(source.seed_path, copy.seed_path)
    for number in range(iteration):
        _link_tree(source.iteration(number), copy.iteration(number))
    folder = source.iteration(iteration)
    left_out = shutil.ignore_patterns(*_OF_AN_END, *_DONE, ".*.tmp")
    shutil.copytree(
        folder,
        copy.iteration(iteration),
        ignore=lambda at, names: left_out(at, names) if Path(at) == folder else set(),
        copy_function=lambda one, other: (_link if Path(one).name in _LARGE else shutil.copy2)(one, other),
    )
    if (folder / RECORD_FILE).exists():
        policy = read_json(folder / RECORD_FILE, RoundRecord).policy
        _link_tree(source.root / policy, copy.root / policy)


def _link_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link, symlinks=True)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def refuse_unfinished(run: RunDirectory, iteration: int) -> None:
    """Raises InputError for a copy whose own graph call has not ended: only its thread has the edited state."""
    if run.fork_path.exists():
        fork = read_json(run.fork_path, Fork)
        if fork.iteration == iteration and not is_done(run, iteration):
            raise InputError(
                f"{run.root} is a fork of {fork.of} whose graph has not ended: go on with thread {fork.thread} in "
                f"LangGraph Studio, or remove {run.root}"
            )
