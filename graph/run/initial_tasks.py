"""Makes tasks by unguided exploration, through the same branch that evolved tasks go through."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import floor
from pathlib import Path

from agents.assembly import unguided_context
from agents.scripted.baselines import tool_context
from environments.base import InputError, StartState
from environments.registry import benchmark_of, parse_options
from environments.verification.fingerprints import fingerprint
from environments.verification.verify import Refusal, can_train, verify
from graph.admission import admitted_task, refuse_repeated
from graph.assembly import Rooms
from graph.branches import refuse_mistake
from graph.iteration import seed_graph
from graph.records import FAILURE_FILE, Failure, KnownTasks
from graph.run.progress import Stage
from graph.state import SEED_STAGE, RunContext, SeedState
from memory.records import Draft, FailureContext, Interaction, Task, Verdict
from memory.run import append_jsonl, read_json, read_jsonl, write_json
from memory.tasks import read_given

# Starts a task set from a user's own file: each line is verified, or refused with its reason.

NAMED = 20  # held-out tasks that an error names
LINES_AT_ONCE = 25  # lines verified between two looks at the event loop


async def verify_given(path: Path, rooms: Rooms, tell: Callable[[str], None]) -> tuple[Task, ...]:
    """The tasks of ``path`` that verification accepts, in the order of the file.

    ``tell`` is given one line, ``file:line: reason: detail``, for each task that is refused.
    Raises InputError when the file cannot be read or none of its tasks is accepted.
    """
    lines = await asyncio.to_thread(read_given, path)
    accepted: list[Task] = []
    held_out: list[str] = []
    known: set[str] = set()
    for start in range(0, len(lines), LINES_AT_ONCE):
        chunk = lines[start : start + LINES_AT_ONCE]
        refusals = await asyncio.to_thread(_refusals, [task for _, task in chunk], rooms, known)
        for (number, task), refusal in zip(chunk, refusals, strict=True):
            if refusal is not None:
                tell(f"{path}:{number}: {refusal}")
                if isinstance(task, Task) and refusal.startswith(f"{Refusal.SEALED}:"):
                    held_out.append(task.id)
            elif isinstance(task, Task):
                accepted.append(task)
    if not accepted:
        held = f", {len(held_out)} are held out ({', '.join(held_out[:NAMED])})" if held_out else ""
        raise InputError(
            f"tasks.initial: none of the {len(lines)} tasks in {path} was accepted{held}: see the reasons above"
        )
    return tuple(accepted)


def _refusals(tasks: Sequence[Task | str], rooms: Rooms, known: set[str]) -> list[str | None]:
    """Why each task is refused, None where it is accepted; fingerprints of those are added to ``known``."""
    refusals = []
    for task in tasks:
        refusal = task if isinstance(task, str) else _refusal(task, rooms, known)
        if refusal is None and isinstance(task, Task):
            known.add(fingerprint(task))
        refusals.append(refusal)
    return refusals


def _refusal(task: Task, rooms: Rooms, known: set[str]) -> str | None:
    if task.environment != rooms.environment.name:
        return f"environment: the run acts in {rooms.environment.name}, this task in {task.environment}"
    if task.split != "train":
        return f"split: only tasks of the train split may be trained on, this one is of {task.split}"
    ruling = verify(task, rooms.environment, known, rooms.sealed, rooms.settings.verification)
    return None if ruling.accepted else f"{ruling.reason}: {ruling.detail}"


# Starts a task set from the benchmark's own training tasks (``tasks.initial: official``).
#
# They are taken as they are: what verification asks of a draft (a call in every turn, few calls, grounded arguments) is
# not asked of them. That they open, play and can be judged is, and that none is held out.


async def official_tasks(rooms: Rooms, tell: Callable[[str], None]) -> tuple[Task, ...]:
    """The official training tasks that fit the environment's options, in the benchmark's order.

    ``tell`` is given one line for each that is refused, and one with the number of those that do not fit. Raises
    InputError when none is left.
    """
    return await asyncio.to_thread(_official, rooms, tell)


def _official(rooms: Rooms, tell: Callable[[str], None]) -> tuple[Task, ...]:
    benchmark = benchmark_of(rooms.environment)
    found = benchmark.official_tasks(parse_options(benchmark, rooms.settings.environment.options))
    if found is None:
        raise InputError(f"tasks.initial: {benchmark.name} has no official tasks: name a file")
    if len(found.tasks) < found.total:
        tell(f"tasks.initial: {found.total - len(found.tasks)} of {found.total} official tasks need {found.why}")
    tasks = []
    for one in found.tasks:
        ruling = can_train(one.spec, rooms.environment, (), rooms.sealed)
        if ruling.accepted:
            tasks.append(Task(id=one.id, origin="official", **dict(one.spec)))
        else:
            tell(f"tasks.initial: {one.id}: {ruling.reason}: {ruling.detail}")
    if not tasks:
        raise InputError("tasks.initial: none of the official tasks was accepted: see the reasons above")
    return tuple(tasks)


BRANCHES_AT_ONCE = 2  # of scripted roles, whose work is the processor's
BARREN_CHUNKS = 8  # whole chunks of contexts without a new task after which exploration has nothing more to give


@dataclass
class Seeds:
    """What unguided exploration has made so far. ``drafts`` is every draft, ``refused`` those refused, by reason."""

    tasks: list[Task] = field(default_factory=list)
    contexts: int = 0
    drafts: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    last_failure: str = ""

    def failed(self) -> str:
        """One sentence on the contexts whose branches failed: D_0 was made without them."""
        causes = ", ".join(f"{n} {cause}" for cause, n in self.failures.most_common())
        return (
            f"D_0: {self.failures.total()} of {self.contexts} contexts failed ({causes}), it was made without them; "
            f"the last: {self.last_failure}"
        )


async def make_seeds(rooms: Rooms, count: int, stage: Stage) -> Seeds:
    """``count`` tasks, equal for equal settings: start states in turn, a chunk of them at a time.

    Where a model is asked for each, a chunk has no more start states than there are tasks missing.

    Raises InputError when the environment names no start state, or exploration finds no more tasks; BudgetReached when
    a budget of the chat roles is spent before there are enough.
    """
    starts = rooms.environment.starts()
    if not starts:
        raise InputError(benchmark_of(rooms.environment).explain_no_starts(rooms.environment.name))
    shutil.rmtree(rooms.run.root / SEED_STAGE, ignore_errors=True)
    graph = seed_graph().compile()
    roles = rooms.settings.roles
    at_once = roles.concurrency if roles.abstractor.kind == "chat" else BRANCHES_AT_ONCE
    seeds = Seeds()
    known: set[str] = set()
    barren, whole = 0, benchmark_of(rooms.environment).exploration.seed_chunk
    while len(seeds.tasks) < count:
        rooms.ledger.check()
        chunk = start_states(whole, count - len(seeds.tasks), barren, roles.abstractor.kind == "chat")
        contexts = await asyncio.to_thread(
            _prepare, rooms, starts, range(seeds.contexts, seeds.contexts + chunk), known
        )
        state = SeedState(contexts=tuple(context.id for context in contexts))
        await graph.ainvoke(state, {"max_concurrency": at_once}, context=RunContext(run=str(rooms.run.root)))
        before = len(seeds.tasks)
        await asyncio.to_thread(_join, rooms, contexts, seeds, known)
        barren = barren + chunk if len(seeds.tasks) == before else 0
        if barren >= BARREN_CHUNKS * whole:
            raise InputError(_barren(seeds, count))
        stage.update(min(len(seeds.tasks), count), count)
    del seeds.tasks[count:]
    return seeds


def start_states(whole: int, missing: int, barren: int, asks: bool) -> int:
    """How many start states the next chunk explores, ``whole`` at most.

    Where each costs a question to a model (``asks``), one for each task that is missing, and one more for each that
    came to nothing since the last task was found (``barren``), so that a rare task is not looked for one by one.
    """
    return min(whole, missing + barren) if asks else whole


def _prepare(rooms: Rooms, starts: Sequence[StartState], places: range, known: set[str]) -> list[FailureContext]:
    """The next chunk of contexts, each in the folder of its branch, and what verification is to know."""
    folder = rooms.run.root / SEED_STAGE
    contexts = [_context(rooms, starts, position) for position in places]
    write_json(folder / "known.json", KnownTasks(fingerprints=tuple(sorted(known))))
    for context in contexts:
        write_json(folder / "branches" / context.id / "context.json", context)
    return contexts


def _context(rooms: Rooms, starts: Sequence[StartState], position: int) -> FailureContext:
    """Unguided, or around a tool: those are spread evenly, as many as the settings ask for."""
    share = rooms.settings.tasks.initial_guided
    number = floor(position * share)
    if floor((position + 1) * share) > number:
        return tool_context(starts, rooms.environment, number)
    return unguided_context(starts[position % len(starts)], position)


def _join(rooms: Rooms, contexts: Sequence[FailureContext], seeds: Seeds, known: set[str]) -> None:
    """Add what the branches of one chunk made, and keep it in the stage's files.

    The first task of every context comes before the second of any, so that a small count still spreads over the
    start states.
    """
    folder = rooms.run.root / SEED_STAGE
    made: list[list[Task]] = []
    failures: list[Failure] = []
    for context in contexts:
        branch = folder / "branches" / context.id
        seeds.contexts += 1
        append_jsonl(folder / "contexts.jsonl", [context])
        if (branch / FAILURE_FILE).exists():
            failure = read_json(branch / FAILURE_FILE, Failure)
            seeds.failures[failure.cause] += 1
            seeds.last_failure = failure.detail
            failures.append(failure)
            append_jsonl(folder / "branch_failures.jsonl", [failure])
            continue
        drafts = sorted(read_jsonl(branch / "drafts.jsonl", Draft), key=lambda draft: draft.id)
        ruled = {verdict.draft_id: verdict for verdict in read_jsonl(branch / "verdicts.jsonl", Verdict)}
        verdicts = refuse_repeated(drafts, [ruled[draft.id] for draft in drafts], known)
        accepted = [draft for draft, verdict in zip(drafts, verdicts, strict=True) if verdict.accepted]
        known.update(fingerprint(draft) for draft in accepted)
        made.append([admitted_task(draft, context, "seed", None) for draft in accepted])
        seeds.drafts += len(drafts)
        seeds.refused.update(verdict.reason for verdict in verdicts if verdict.reason is not None)
        append_jsonl(folder / "interactions.jsonl", read_jsonl(branch / "interactions.jsonl", Interaction))
        append_jsonl(folder / "drafts.jsonl", drafts)
        append_jsonl(folder / "verdicts.jsonl", verdicts)
    refuse_mistake(failures, len(contexts))
    seeds.tasks += [task for row in zip_longest(*made) for task in row if task is not None]
    shutil.rmtree(folder / "branches")


def _barren(seeds: Seeds, count: int) -> str:
    refused = ", ".join(f"{n} {reason}" for reason, n in seeds.refused.most_common())
    failed = ", ".join(f"{n} {cause}" for cause, n in seeds.failures.most_common())
    found = (
        f"unguided exploration found {len(seeds.tasks)} of {count} tasks and no more after {seeds.contexts} contexts"
    )
    told = f"{found} (drafts refused: {refused or 'none'}; branches failed: {failed or 'none'})"
    if 2 * seeds.failures.total() > seeds.contexts:
        return f"{told}: most branches failed, the last with {seeds.last_failure}: put that right first"
    return f"{told}: {'ask for fewer tasks' if seeds.tasks else 'put right what drafts are refused for'}"
