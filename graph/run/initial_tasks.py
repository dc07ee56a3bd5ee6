"""Makes D_0: by unguided exploration, from a user's file, or from the benchmark's own training tasks.

``make_seeds`` explores start states without a guide, through the branch that evolved tasks go through. ``verify_given``
verifies each line of the user's file. ``official_tasks`` takes the benchmark's own training tasks as they are, whole or
turn by turn (``tasks.official``), if they open, play, can be evaluated and are not held out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from math import ceil
from pathlib import Path

from agents.roles import unguided_context, unguided_exploration
from environments.base import InputError, StartState, ToolCall
from environments.benchmark import OfficialTask
from environments.command import Stage
from environments.registry import benchmark_of, parse_options
from environments.turns import behind, turn_id
from environments.verification.canonical import fingerprint
from environments.verification.verify import Refusal, can_train, verify
from graph.assembly import RunServices
from graph.branches import refuse_mistake
from graph.iteration import seed_graph
from graph.report.digest import counts_words
from graph.state import SeedState
from memory.records import Draft, DraftVerification, FailureContext, Interaction, Task
from memory.run import (
    BranchDirectory,
    StageDirectory,
    append_jsonl,
    read_json,
    read_jsonl,
    write_json,
)
from memory.run_files import Failure, KnownTasks
from memory.tasks import admitted_task, read_given, refuse_repeated

NAMED = 20  # held-out tasks that an error names
BRANCHES_AT_ONCE = 2  # of scripted roles, which are bound by the processor
_NAMED = 8  # tools that a sentence names
_PASSING = ("BudgetReached", "EndpointFailed")  # causes of failed branches that say nothing about them
BARREN_CHUNKS = 8  # whole chunks of contexts without a new task after which exploration gives up


async def verify_given(path: Path, services: RunServices, report: Callable[[str], None]) -> tuple[Task, ...]:
    """Return the tasks of ``path`` that verification accepts, in the order of the file.

    ``report`` receives one line, ``file:line: reason: detail``, for each task that is refused.
    Raises InputError when the file cannot be read or none of its tasks is accepted.
    """
    lines = await asyncio.to_thread(read_given, path)
    accepted: list[Task] = []
    held_out: list[str] = []
    known: set[str] = set()
    for number, task in lines:
        refusal = task if isinstance(task, str) else await asyncio.to_thread(_refusal, task, services, known)
        if isinstance(task, Task) and refusal is None:
            accepted.append(task)
            known.add(fingerprint(task))
            continue
        report(f"{path}:{number}: {refusal}")
        if isinstance(task, Task) and str(refusal).startswith(f"{Refusal.HELD_OUT}:"):
            held_out.append(task.id)
    if not accepted:
        held = f", {len(held_out)} are held out ({', '.join(held_out[:NAMED])})" if held_out else ""
        raise InputError(
            f"tasks.initial: none of the {len(lines)} tasks in {path} was accepted{held}: see the reasons above"
        )
    return tuple(accepted)


def _refusal(task: Task, services: RunServices, known: set[str]) -> str | None:
    if task.environment != services.environment.name:
        return f"environment: the run acts in {services.environment.name}, this task in {task.environment}"
    if task.split != "train":
        return f"split: only tasks of the train split may be trained on, this one is of {task.split}"
    result = verify(task, services.environment, known, services.held_out, services.settings.verification)
    return None if result.accepted else f"{result.reason}: {result.detail}"


def official_tasks(services: RunServices, report: Callable[[str], None]) -> tuple[Task, ...]:
    """Return the official training tasks that fit the environment's options, in the benchmark's order.

    ``report`` receives one line for each refused task and each that no agent can solve, and one with the number of
    tasks that do not fit. Raises InputError when none is left.
    """
    benchmark = benchmark_of(services.environment)
    found = benchmark.official_tasks(parse_options(benchmark, services.settings.environment.options))
    if found is None:
        raise InputError(f"tasks.initial: {benchmark.name} has no official tasks: name a file")
    if len(found.tasks) < found.total:
        report(f"tasks.initial: {found.total - len(found.tasks)} of {found.total} official tasks need {found.why}")
    for flawed in (one for one in found.tasks if one.flaw):
        report(f"tasks.initial: {flawed.id} is kept, but no agent can solve it: {flawed.flaw}")
    tasks = []
    for one in (task for whole in found.tasks for task in _parts(whole, services.settings.tasks.official)):
        result = can_train(one, services.environment, (), services.held_out)
        if result.accepted:
            tasks.append(one)
        else:
            report(f"tasks.initial: {one.id}: {result.reason}: {result.detail}")
    if not tasks:
        raise InputError("tasks.initial: none of the official tasks was accepted: see the reasons above")
    return tuple(tasks)


def _parts(whole: OfficialTask, parts: str) -> Iterator[Task]:
    """Yield an official task, its user turns with a reference call, or both, as ``tasks.official`` says."""
    if parts != "turns":
        yield Task(id=whole.id, origin="official", **dict(whole.spec))
    if parts == "tasks" or (parts == "both" and len(whole.spec.turns) == 1):
        return
    for turn, calls in enumerate(whole.spec.reference):
        if calls:
            one = behind(whole.spec, turn)
            yield Task(id=turn_id(whole.id, turn), origin="official", parents=(whole.id,), **dict(one))


@dataclass
class Seeds:
    """The results of unguided exploration so far: ``refused`` drafts by reason, ``failures`` of branches by cause."""

    tasks: list[Task] = field(default_factory=list)
    contexts: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    last_failure: str = ""
    offered: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)

    def uncalled(self) -> str:
        """Return one sentence on the tools that exploration never called; scripted rules had no value that fits."""
        never = sorted(self.offered - self.called)
        more = f" and {len(never) - _NAMED} more" if len(never) > _NAMED else ""
        return f"D_0: {len(never)} of {len(self.offered)} tools were never called: {', '.join(never[:_NAMED])}{more}"

    def failed(self) -> str:
        """Return one sentence on the contexts whose branches failed; D_0 was made without them."""
        failed = (
            f"{self.failures.total()} of {self.contexts} contexts failed ({counts_words(self.failures.most_common())})"
        )
        return f"D_0: {failed}, it was made without them; the last: {self.last_failure}"


async def make_seeds(services: RunServices, count: int, stage: Stage) -> Seeds:
    """Make ``count`` tasks, equal for equal settings: start states in turn, in chunks (``start_states``).

    Branches that an earlier, killed process finished are taken as they are: they were paid for. Their folders stay
    until ``graph.run.stages.make_tasks`` has the tasks. Raises InputError when the environment names no start state, or
    exploration finds no more tasks; BudgetReached when a budget of the chat roles is spent before there are enough.
    """
    starts = services.environment.starts()
    benchmark = benchmark_of(services.environment)
    if not starts:
        raise InputError(benchmark.explain_no_starts(services.environment.name))
    await asyncio.to_thread(_begin_again, services.run.seed)
    graph = seed_graph().compile()
    roles = services.settings.roles
    asks = roles.plays_locally() or bool(roles.by_chat().keys() - {"reflector"})
    drafts = unguided_exploration(roles, benchmark).drafts_per_context if asks else None
    at_once = roles.branches_at_once() if asks else BRANCHES_AT_ONCE
    seeds = Seeds()
    known: set[str] = set()
    barren, whole = 0, benchmark.exploration.seed_chunk
    while len(seeds.tasks) < count:
        services.ledger.check()
        chunk = start_states(min(whole, count), count - len(seeds.tasks), barren, drafts)
        contexts = await asyncio.to_thread(
            prepare, services, starts, range(seeds.contexts, seeds.contexts + chunk), known
        )
        begun = {one.id: services.run.seed.branch(one.id) for one in contexts}
        left = tuple(one for one, at in begun.items() if not (at.verdicts.exists() or at.failure.exists()))
        if left:
            await graph.ainvoke(SeedState(contexts=left), {"max_concurrency": at_once}, context=services)
        before = len(seeds.tasks)
        await asyncio.to_thread(join, services, contexts, seeds, known)
        barren = barren + chunk if len(seeds.tasks) == before else 0
        if barren >= BARREN_CHUNKS * whole:
            raise InputError(_barren(seeds, count))
        stage.update(min(len(seeds.tasks), count), count)
    del seeds.tasks[count:]
    return seeds


def start_states(whole: int, missing: int, barren: int, drafts: int | None) -> int:
    """Return how many start states the next chunk explores, at most ``whole``.

    ``drafts`` is the most that a start state can give where a model is asked for it, None elsewhere. With it, a chunk
    has the fewest start states that can give the ``missing`` tasks. Add ``barren``, the start states explored in vain
    since the last task was found, so that the search for a rare task widens.
    """
    return whole if drafts is None else min(whole, ceil(missing / drafts) + barren)


def _begin_again(folder: StageDirectory) -> None:
    """Remove what the joined branches of a killed process left; the branches themselves stay.

    What only a spent budget or a silent endpoint ended is to be tried again.
    """
    for path in (folder.contexts, folder.interactions, folder.drafts, folder.verdicts, folder.branch_failures):
        path.unlink(missing_ok=True)
    for root in folder.branches.iterdir() if folder.branches.is_dir() else ():
        branch = BranchDirectory(root)
        if branch.failure.exists() and read_json(branch.failure, Failure).cause in _PASSING:
            branch.failure.unlink()
        if branch.verdicts.exists() and any(
            one.reason == Refusal.NOT_VALIDATED for one in read_jsonl(branch.verdicts, DraftVerification)
        ):
            branch.verdicts.unlink()


def prepare(
    services: RunServices, starts: Sequence[StartState], places: range, known: set[str]
) -> list[FailureContext]:
    """Write the next chunk of contexts into their branches' folders, and the known tasks' fingerprints."""
    folder = services.run.seed
    contexts = [unguided_context(starts[position % len(starts)], position) for position in places]
    write_json(folder.known, KnownTasks(fingerprints=tuple(sorted(known))))
    for context in contexts:
        write_json(folder.branch(context.id).context, context)
    return contexts


def join(services: RunServices, contexts: Sequence[FailureContext], seeds: Seeds, known: set[str]) -> None:
    """Add the results of one chunk's branches to ``seeds`` and to the stage's files.

    The first task of every context comes before the second of any, so that a small count still covers many
    start states.
    """
    folder = services.run.seed
    made: list[list[Task]] = []
    failures: list[Failure] = []
    for context in contexts:
        branch = folder.branch(context.id)
        seeds.contexts += 1
        append_jsonl(folder.contexts, [context])
        if branch.failure.exists():
            failure = read_json(branch.failure, Failure)
            seeds.failures[failure.cause] += 1
            seeds.last_failure = failure.detail
            failures.append(failure)
            append_jsonl(folder.branch_failures, [failure])
            continue
        drafts = sorted(read_jsonl(branch.drafts, Draft), key=lambda draft: draft.id)
        verifications = refuse_repeated(drafts, read_jsonl(branch.verdicts, DraftVerification), known)
        accepted = [draft for draft, verification in zip(drafts, verifications, strict=True) if verification.accepted]
        known.update(fingerprint(draft) for draft in accepted)
        made.append([admitted_task(draft, context, "seed", None) for draft in accepted])
        seeds.refused.update(one.reason for one in verifications if one.reason is not None)
        interactions = [*read_jsonl(branch.interactions, Interaction)]
        seeds.offered.update(context.tools)
        actions = chain.from_iterable((one.action, *one.observation.calls) for one in interactions)
        seeds.called.update(one.name for one in actions if isinstance(one, ToolCall))
        append_jsonl(folder.interactions, interactions)
        append_jsonl(folder.drafts, drafts)
        append_jsonl(folder.verdicts, verifications)
    refuse_mistake(failures, len(contexts))
    seeds.tasks += [task for row in zip_longest(*made) for task in row if task is not None]


def _barren(seeds: Seeds, count: int) -> str:
    refused, failed = counts_words(seeds.refused.most_common()), counts_words(seeds.failures.most_common())
    found = (
        f"unguided exploration found {len(seeds.tasks)} of {count} tasks and no more after {seeds.contexts} contexts"
    )
    counts_text = f"{found} (drafts refused: {refused}; branches failed: {failed})"
    if 2 * seeds.failures.total() > seeds.contexts:
        return f"{counts_text}: most branches failed, the last with {seeds.last_failure}: put that right first"
    return f"{counts_text}: {'ask for fewer tasks' if seeds.tasks else 'put right what drafts are refused for'}"
