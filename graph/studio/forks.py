"""Gives each node that LangGraph Studio runs the services of a copy of the run, ``RUN@THREAD``: the run is only read.

``extract`` copies the run as it was before the iteration's graph. The state names the copy, and the nodes after it work
there. A node that is run again works in a further copy (``RUN@THREAD.2``, ...), which has what the nodes before it
left. A copy is a run of its own. Commands give their nodes services: their graph is wired without this. ``iteration``
is the graph that the server offers, named in langgraph.json.

A branch may wait before a step, for edits of its context or its drafts. They name records by id, and for each the
fields that change::

    {"draft-1f": {"turns": ["Make a folder called plans"]}}

A record keeps its id; ``fork.json`` of the copy holds the edits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from langgraph.errors import GraphInterrupt
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt
from pydantic import Field, TypeAdapter, ValidationError

from agents.spending import read_requests
from environments.base import InputError
from graph.assembly import services_at
from graph.checkpoints import opened_run
from graph.iteration import iteration_graph
from graph.report.digest import of_verify
from graph.state import NEWEST, BranchState, IterationState, RunContext
from graph.studio.server import name_thread
from memory.files import whole_folder
from memory.jsonl import complaint
from memory.processes import shared
from memory.records import Draft, DraftVerification, FailureContext, Signal
from memory.run import (
    BranchDirectory,
    IterationDirectory,
    RunDirectory,
    iteration_of,
    read_existing,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)
from memory.run_files import Fork
from memory.tasks import load_tasks, tasks_at
from training.grpo.record import RoundRecord

Update = TypeVar("Update")

PAUSES = ("explore", "verify")
"""The nodes of a branch that it may wait before: there its context, or its drafts, can be edited."""

_ANSWER = '"" to go on, or {ID: {FIELD: VALUE}} to change these records'
"""LangGraph takes {}, given to the only branch that waits, for no answer at all."""

DRAFT_FIELDS = ("turns", "reference")
OF_EVERY_REFLECTOR = ("cause", "tool", "error_class", "how", "why", "facts", "explore")
OF_CHAT = ("summary", "instability_pattern", "focus_pattern", "exploration_objectives", "do_not_repeat")
CONTEXT_FIELDS = (*OF_EVERY_REFLECTOR, *OF_CHAT)
"""The fields of a record that may be edited: its content, not its origin."""

_EDITS = TypeAdapter(dict[str, Annotated[dict[str, Any], Field(min_length=1)]])

LARGEST = 100_000
"""Bytes of all edits together, as JSON."""

_editing = threading.Lock()  # branches that wait get their answers at once, and a stage has one contexts.jsonl

_At = IterationDirectory
_MADE = {
    "extract": (_At.signals, _At.scores, _At.patterns, _At.known, _At.extraction),
    "reflect": (_At.reflections, _At.reflection_failures, _At.contexts),
    "deduplicate": (_At.branches, _At.judgements),
    "dispatch": (),
    "update": (_At.interactions, _At.drafts, _At.verdicts, _At.branch_failures, _At.evolution, _At.summary),
}
"""What each node makes in the folder of the iteration, in order; the branches make what is in their own folders."""


def with_services(node: Callable[..., Awaitable[Update]]) -> Callable[..., Coroutine[Any, Any, Update]]:
    """Return ``node`` as LangGraph calls it in Studio, with the services of the thread's copy in ``runtime.context``.

    ``node`` is a node or an error handler with the parameters ``state`` and ``runtime``. The copy's lock is held while
    it works. Raises InputError for a state that no node can work on.
    """
    called, name = signature(node), node.__name__

    @wraps(node)
    async def resolved(*args: Any, **kwargs: Any) -> Update:  # noqa: ANN401 - as the library calls it
        call = called.bind(*args, **kwargs)
        state, runtime = call.arguments["state"], call.arguments["runtime"]
        pause = _pause(runtime.context)
        info = runtime.execution_info
        base = await asyncio.to_thread(opened_run)
        if name == "extract" and state.iteration == NEWEST:
            state = call.arguments["state"] = state.model_copy(update={"iteration": newest(base)})
        run = await asyncio.to_thread(_choose, base, info.thread_id if info is not None else None, state, name)
        with shared(run.lock_path, str(run.root)):
            if isinstance(state, BranchState) and name in PAUSES:
                await _wait(state, run, name, pause)
            if name == "extract" and runtime.server_info is not None:
                await name_thread(base, info.thread_id, state.iteration)
            services = await asyncio.to_thread(services_at, run.root, info.run_id)
            services = dataclasses.replace(services, copy=run.root.name)
            call.arguments["runtime"] = runtime.override(context=services)
            update = await node(*call.args, **call.kwargs)
            return cast("Update", _with_copy(update, run, state, name))

    return resolved


def _with_copy(update: Any, run: RunDirectory, state: object, node: str) -> object:  # noqa: ANN401 - of any node
    """Return a node's update with the name of the copy; of ``update``, with the results of edited drafts, too."""
    if not isinstance(state, IterationState):
        return update
    if isinstance(update, Command):  # of dispatch
        return dataclasses.replace(update, update={"run": run.root.name})
    if node == "update":
        edits, folder = read_json(run.fork_path, Fork).edits, run.iteration(state.iteration)
        drafts = [one for one in read_jsonl(folder.drafts, Draft) if one.id in edits]
        results = {one.draft_id: one for one in read_jsonl(folder.verdicts, DraftVerification)}
        update["digest"] |= {"edits": of_verify(drafts, [results[one.id] for one in drafts])} if drafts else {}
    return update | {"run": run.root.name}


async def _wait(state: BranchState, run: RunDirectory, node: str, pause: str) -> None:
    """Let a branch wait before ``node`` where ``pause`` asks for it, and make the edits in the answer.

    A thread may be resumed with another ``pause`` than it waited with: an answer is taken all the same. A wrong answer
    is refused in what the branch shows while it waits for the next one: an error would end the branch.
    """
    answers: list[object] = []
    if pause != node:
        try:
            answers.append(interrupt("the answer to an earlier pause"))
        except GraphInterrupt:  # it was given none
            return
    number = iteration_of(state.stage)
    assert number is not None
    shown = await asyncio.to_thread(editable, run.iteration(number).branch(state.context_id), node)
    waits = {"weakness": state.weakness, "paused before": node, "records": shown, "answer with": _ANSWER}
    while True:
        answer = answers.pop() if answers else interrupt(waits)
        if answer is None or answer in ("", {}, []):
            return
        try:
            await asyncio.to_thread(make_edits, run, number, state.context_id, node, check_edits(answer))
        except InputError as error:
            waits = waits | {"refused": str(error)}
        else:
            return


def check_edits(edits: object) -> dict[str, dict[str, Any]]:
    """Return ``edits`` if they have the form of edits. Raises InputError naming what is wrong."""
    try:
        found = _EDITS.validate_python(edits, strict=True)
        size = len(json.dumps(found, ensure_ascii=False, allow_nan=False).encode())
    except ValidationError:
        raise InputError(
            f"edits: {edits!r:.80} is not a mapping of ids to changed fields, as {{ID: {{FIELD: VALUE}}}}"
        ) from None
    except (TypeError, ValueError, RecursionError):
        raise InputError("edits: they hold a value that is not JSON, or half a character: write them anew") from None
    if size > LARGEST:
        raise InputError(f"edits: {size} bytes are more than the {LARGEST} that edits may have: change less")
    return found


def make_edits(run: RunDirectory, number: int, context_id: str, node: str, edits: Mapping[str, Any]) -> None:
    """Change what waits before ``node`` of a branch of iteration ``number``, in a copy of a run.

    Raises InputError, naming record and field, for an id that does not wait there and for a wrong value; nothing is
    changed then. Fields may be given as they are.
    """
    with _editing:
        folder = run.iteration(number)
        branch = folder.branch(context_id)
        records = {one.id: one for one in _waiting(branch, node)}
        if odd := next((one for one in edits if one not in records), None):
            raise InputError(f"edits: {odd!r:.80} is not a record that waits here: name {', '.join(records):.300}")
        made = {name: _edited(records[name], fields) for name, fields in edits.items()}
        changed = {name: one for name, one in made.items() if one != records[name]}
        if node == "verify":
            write_jsonl(branch.drafts, [changed.get(name, one) for name, one in records.items()])
        elif changed:
            write_json(branch.context, changed[context_id])
            for path in (branch.interactions, branch.drafts):  # of a branch that failed, and goes on in a copy
                path.unlink(missing_ok=True)
            contexts = read_jsonl(folder.contexts, FailureContext)
            write_jsonl(folder.contexts, [changed.get(one.id, one) for one in contexts])
        fork = read_json(run.fork_path, Fork)
        fields = {name: dict(edits[name]) for name in changed}
        write_json(run.fork_path, fork.model_copy(update={"edits": fork.edits | fields}))


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
    return {one.id: one.model_dump(mode="json", include=set(_fields(one))) for one in _waiting(branch, node)}


def _waiting(branch: BranchDirectory, node: str) -> Sequence[FailureContext | Draft]:
    return read_jsonl(branch.drafts, Draft) if node == "verify" else [read_json(branch.context, FailureContext)]


def _fields(record: FailureContext | Draft) -> tuple[str, ...]:
    return DRAFT_FIELDS if isinstance(record, Draft) else CONTEXT_FIELDS


def _pause(context: RunContext | None) -> str:
    pause = context.pause if context is not None else ""
    if pause not in ("", *PAUSES):
        raise InputError(f"pause: {pause!r:.80} is not a step to stop before: give {' or '.join(PAUSES)}")
    return pause


def newest(run: RunDirectory) -> int:
    """Return the newest iteration whose round of training is done. Raises InputError for a run without one."""
    done = (number for number in itertools.count() if not run.iteration(number).round.exists())
    found = next(done) - 1
    if found < 0:
        raise InputError(f"{run.root} has no finished round of training: let coevolve evolve make one")
    return found


def _choose(base: RunDirectory, thread: str | None, state: IterationState | BranchState, node: str) -> RunDirectory:
    """Return the copy in which ``node`` works: the one that the state names, or a new one of what it names."""
    if thread is None:
        raise InputError("for a copy of the run to work in, call the graph with a checkpointer and a thread_id")
    number = _number(state)
    source = base if node == "extract" else _named(base, state.run)
    if not source.iteration(number).trajectories.exists():
        raise InputError(
            f"iteration: {number} of {source.root} has no trajectories: start the graph with one from 0 to "
            f"{newest(base)}, or {NEWEST} for the newest"
        )
    if source != base and not _made(source.iteration(number), node):
        fork = read_json(source.fork_path, Fork)
        if (fork.thread, fork.iteration) == (thread, number):
            return source
    if isinstance(state, BranchState):
        raise InputError(f"{state.context_id}: its branch is in another run or has ended: run dispatch again before it")
    _check_ids(source.iteration(number), state, node)
    return _copy(source, base, Fork(of=base.root.name, thread=thread, iteration=number), node)


def _number(state: IterationState | BranchState) -> int:
    """Refuse a wrong state here: values that its schema refused would make a thread unreadable for good."""
    if isinstance(state, BranchState):
        found = iteration_of(state.stage)
        if found is None or Path(state.context_id).name != state.context_id:
            raise InputError(f"stage: {state.stage}/branches/{state.context_id} is not a branch of an iteration")
        return found
    number: object = state.iteration
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InputError(
            f"iteration: {number!r:.80} is not the number of an iteration: give one from 0, that has trajectories, or "
            f"{NEWEST} for the newest"
        )
    for name in ("signals", "contexts", "new"):
        ids = getattr(state, name)
        if not isinstance(ids, list | tuple) or not all(isinstance(one, str) for one in ids):
            raise InputError(f"{name}: {ids!r:.80} is not a list of ids")
    return number


def _named(base: RunDirectory, name: object) -> RunDirectory:
    """Return the copy that a state names, or ``base`` where a command left the state."""
    if name == "":
        return base
    if isinstance(name, str) and name.startswith(f"{base.root.name}@") and Path(name).name == name:
        run = RunDirectory(base.root.with_name(name))
        if run.fork_path.exists() and read_json(run.fork_path, Fork).of == base.root.name:
            return RunDirectory.open(run.root)
    raise InputError(f"run: {name!r:.80} is not a copy of {base.root}: start the graph again for a new one")


def _made(folder: IterationDirectory, node: str) -> bool:
    """Return whether ``node`` of the main graph, or ``update`` for one of a branch, has ended in ``folder``."""
    ended = {"reflect": folder.contexts, "deduplicate": folder.judgements}
    return ended.get(node, folder.evolution).exists()


def _check_ids(folder: IterationDirectory, state: IterationState, node: str) -> None:
    if node == "reflect":
        ids, known = state.signals, {one.id for one in read_existing(folder.signals, Signal)}
    elif node == "deduplicate":
        ids, known = state.contexts, {one.id for one in read_existing(folder.contexts, FailureContext)}
    else:
        ids = state.new if node in _MADE and node != "extract" else ()
        known = {one for one in ids if folder.branch(Path(one).name).context.exists()}
    if odd := next((one for one in ids if one not in known), None):
        raise InputError(f"{folder.root} has no records of {odd!r:.80}: take ids that it has")


def _copy(source: RunDirectory, base: RunDirectory, fork: Fork, node: str) -> RunDirectory:
    """Make the thread's next copy of ``base``, whole or not at all: what ``node`` finds in ``source``.

    Files that are not written any more become hard links where the disk has them, so that weights are stored once.
    Indexes are left out: they are rebuilt.
    """
    name = f"{base.root.name}@{re.sub(r'[^A-Za-z0-9._-]', '_', fork.thread)[:100]}"
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
    target = next(path for path in map(base.root.with_name, names) if not path.exists())
    folder = source.iteration(fork.iteration)
    made = [file.name.rstrip("/") for one in list(_MADE)[list(_MADE).index(node) :] for file in _MADE[one]]
    of_failures = [BranchDirectory.failure.name, BranchDirectory.traceback.name] if node == "dispatch" else []

    def left_out(at: str, names: list[str]) -> set[str]:
        return set(made if Path(at) == folder.root else of_failures) | {one for one in names if one.endswith(".tmp")}

    def copied(one: str, other: str) -> None:
        # A round that goes on appends to its trajectories.
        done = Path(one).name == folder.trajectories.name and folder.round.exists()
        (_link if done else shutil.copy2)(one, other)

    with whole_folder(target) as partial:
        copy = RunDirectory(partial)
        for path in (source.settings_path, source.recorded_path):
            if path.exists():
                shutil.copy2(path, copy.root)
        write_jsonl(copy.tasks_path, tasks_at(load_tasks(source), fork.iteration))
        if requests := read_requests(source.spending_path):
            paid = [one for one in requests if one.iteration is None or one.iteration <= fork.iteration]
            write_jsonl(copy.spending_path, paid)
        _link_tree(source.seed_path, copy.seed_path)
        for number in range(fork.iteration):
            _link_tree(source.iteration(number).root, copy.iteration(number).root)
        rest = copy.iteration(fork.iteration).root
        shutil.copytree(folder.root, rest, ignore=left_out, copy_function=copied, symlinks=True)
        if folder.round.exists():
            policy = read_json(folder.round, RoundRecord).policy
            _link_tree(source.root / policy, copy.root / policy)
        edits = read_json(source.fork_path, Fork).edits if source != base else {}
        write_json(copy.fork_path, fork.model_copy(update={"edits": edits}))
    return RunDirectory(target)


def _link_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link, symlinks=True)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


Compiled = CompiledStateGraph[Any, Any, Any, Any]


class _Asking(CompiledStateGraph[Any, Any, Any, Any]):
    """A graph that refuses an input with keys that it does not ask for; LangGraph would drop them silently."""

    async def astream(self, input: object, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        known = self.builder.input_schema.model_fields
        if isinstance(input, dict) and (odd := next((key for key in input if key not in known), None)) is not None:
            raise InputError(f"input: {odd!r:.80} is not asked for: give {', '.join(known)} alone, or nothing")
        async for event in super().astream(input, *args, **kwargs):
            yield event


def asking(compiled: Compiled) -> Compiled:
    """Return ``compiled``, which from now on refuses an input with keys that it does not ask for.

    The library makes its own class of graph in ``compile``: its class is changed afterwards.
    """
    compiled.__class__ = _Asking
    return compiled


iteration = asking(iteration_graph(with_services).compile())
