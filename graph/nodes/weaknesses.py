"""The nodes that find new weaknesses: extract signals, reflect on each, set aside what was explored before.

SEAL's diagnosis joins a context where a run has SEAL. Contexts that come from no signal are of ``graph.ours``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from langgraph.runtime import Runtime

from agents.spending import RoleRefused
from environments.base import InputError
from environments.command import writing
from environments.verification.canonical import fingerprint
from environments.verification.programs import Exercised
from graph.assembly import RunServices
from graph.branches import describe, weaknesses
from graph.ours import contexts_without_signals, shuffled
from graph.records import ExtractionRecord, Failure, KnownTasks
from graph.report.digest import of_deduplicate, of_extract, of_reflect
from graph.state import IterationState, IterationUpdate
from memory.failures import DeduplicationResult, explored_before, indexed
from memory.jsonl import derive_seed
from memory.records import Evidence, FailureContext, Signal, Trajectory
from memory.run import IterationDirectory, RunDirectory, read_json, read_jsonl, write_json, write_jsonl
from memory.settings import RECUR_AFTER
from memory.tasks import load_tasks, tasks_at
from training.seal.diagnosis import with_diagnosis
from training.signals import GroupScore, PatternCount, choose
from training.signals import extract as extract_signals


async def extract(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Find signals of weakness in a round's rollouts and choose those to follow up.

    Reads trajectories.jsonl and what earlier rounds recorded, writes signals.jsonl, scores.jsonl and patterns.jsonl.
    known.json holds the fingerprints of D_t, which every branch refuses as duplicates. A baseline whose contexts do not
    come from signals records them all the same and chooses none.
    """
    chosen, digest = await asyncio.to_thread(_extract, runtime.context, state.iteration)
    return {"iteration": state.iteration, "signals": chosen, "digest": {"extract": digest}}


def _extract(services: RunServices, iteration: int) -> tuple[tuple[str, ...], list[str]]:
    folder = services.run.iteration(iteration)
    settings = services.settings.signals
    trajectories = read_jsonl(folder.trajectories, Trajectory)
    counted = counted_patterns(services.run, iteration)
    tasks = load_tasks(services.run)
    found = extract_signals(trajectories, earlier_scores(services.run, iteration), settings, iteration, counted)
    followed = found.signals if settings.contexts == "signals" else ()
    choice = choose(followed, settings, derive_seed(services.settings.seed, iteration, "choose"))
    chosen = tuple(signal.id for signal in choice.chosen)
    write_jsonl(folder.signals, found.signals)
    write_jsonl(folder.scores, found.scores)
    write_jsonl(folder.patterns, found.patterns)
    current = tasks_at(tasks, iteration)
    write_json(folder.known, KnownTasks(fingerprints=tuple(sorted({fingerprint(task) for task in current}))))
    offered = sorted({name for task in current for name in task.tools})
    exercised = Exercised(current, services.environment.tools(offered))
    record = ExtractionRecord(
        signals=dict(found.counts()),
        signal_tasks=dict(found.task_counts()),
        marked=found.marked(),
        chosen=chosen,
        repeated=dict(choice.repeated),
        left_out=dict(choice.left_out),
        pattern_occurrences=found.pattern_occurrences,
        different_patterns=found.different_patterns,
        infrastructure_errors=found.left_out,
        functions=len(exercised.functions),
        functions_offered=len(offered),
    )
    write_json(folder.extraction, record)
    name = f"{services.run.root.name}, iteration {iteration}"
    by_id = {task.id: task for task in tasks}
    return chosen, of_extract(name, record, trajectories, choice.chosen, by_id)


def earlier_scores(run: RunDirectory, iteration: int) -> Mapping[str, Sequence[GroupScore]]:
    earlier: dict[str, list[GroupScore]] = defaultdict(list)
    for number in range(iteration):
        for score in read_jsonl(run.iteration(number).scores, GroupScore):
            earlier[score.task_id].append(score)
    return earlier


def counted_patterns(run: RunDirectory, iteration: int) -> Sequence[PatternCount]:
    return [one for number in range(iteration) for one in read_jsonl(run.iteration(number).patterns, PatternCount)]


async def reflect(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Diagnose each failure: where, how and why it went wrong, and what to explore around it.

    Reads the chosen signals, the tasks and the trajectories, writes contexts.jsonl. Each reflection is kept in
    reflections/ as soon as it is there, so that a resumed node does not ask for it again. One that gives up is written
    to reflection_failures.jsonl; the others continue. With SEAL, its diagnosis of the turn joins the context.
    """
    services = runtime.context
    folder = services.run.iteration(state.iteration)
    contexts: Sequence[FailureContext]
    failures: Sequence[Failure] = ()
    if services.settings.signals.contexts == "signals":
        contexts, failures = await _reflected(services, folder, state)
        contexts = shuffled(contexts) if services.settings.signals.shuffled else contexts
    else:
        contexts = await asyncio.to_thread(contexts_without_signals, services, folder, state.iteration)
    await asyncio.to_thread(write_jsonl, folder.contexts, contexts)
    await asyncio.to_thread(write_jsonl, folder.reflection_failures, failures)
    weakness = await asyncio.to_thread(weaknesses, services.run, folder)
    signalled = sum(context.signal_id != "" for context in contexts)
    digest = of_reflect([*map(weakness, contexts)], failures, len(state.signals), len(contexts) - signalled)
    return {"contexts": tuple(context.id for context in contexts), "digest": {"reflect": digest}}


async def _reflected(
    services: RunServices, folder: IterationDirectory, state: IterationState
) -> tuple[Sequence[FailureContext], Sequence[Failure]]:
    evidences = await asyncio.to_thread(_evidence, services, folder, state)
    turnstile = asyncio.Semaphore(services.settings.roles.concurrency)
    results = await asyncio.gather(*(_reflect_one(services, folder, one, turnstile) for one in evidences))
    contexts = sorted((one for one in results if isinstance(one, FailureContext)), key=lambda context: context.id)
    failures = sorted((one for one in results if isinstance(one, Failure)), key=lambda failure: failure.id)
    return contexts, failures


def _evidence(services: RunServices, folder: IterationDirectory, state: IterationState) -> Sequence[Evidence]:
    chosen = set(state.signals)
    signals = [one for one in read_jsonl(folder.signals, Signal) if one.id in chosen]
    tasks = {task.id: task for task in load_tasks(services.run)}
    shown = {one.id: one for one in read_jsonl(folder.trajectories, Trajectory)}
    for signal in signals:
        named = [one for one in (signal.trajectory_id, signal.counterpart_id) if one]
        if signal.task_id not in tasks or any(one not in shown for one in named):
            raise InputError(f"{folder.root}: signal {signal.id} names a task or trajectory that the run does not have")
    return [
        Evidence(
            signal=one,
            task=tasks[one.task_id],
            trajectory=shown[one.trajectory_id],
            counterpart=shown.get(one.counterpart_id),
        )
        for one in signals
    ]


async def _reflect_one(
    services: RunServices, folder: IterationDirectory, evidence: Evidence, turnstile: asyncio.Semaphore
) -> FailureContext | Failure:
    path = folder.reflection(evidence.signal.id)
    deadline = services.settings.roles.branch_timeout
    async with turnstile:
        if path.exists():
            return await asyncio.to_thread(read_json, path, FailureContext)
        try:
            async with asyncio.timeout(deadline):
                context = await services.roles.reflector.reflect(evidence, services.environment)
        except (RoleRefused, TimeoutError) as error:
            return describe(error, evidence.signal.id, "reflect", deadline)
        if services.settings.training.seal is not None:
            context = with_diagnosis(context, evidence)
        await asyncio.to_thread(write_json, path, context)
        return context


async def deduplicate(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Set aside the weaknesses that were explored before, so that effort goes into new ones.

    Reads contexts.jsonl and the failure memory, writes judgements.jsonl and a folder for each new context. The memory
    is as of the iteration's start, made of the records of earlier ones. Without deduplication all are new,
    and so are those of unguided exploration and of coverage, which have no facts to compare.
    """
    new, digest = await asyncio.to_thread(_deduplicate, runtime.context, state.iteration, frozenset(state.contexts))
    return {"new": new, "digest": {"deduplicate": digest}}


def _deduplicate(services: RunServices, iteration: int, chosen: Collection[str]) -> tuple[tuple[str, ...], list[str]]:
    folder = services.run.iteration(iteration)
    written = read_jsonl(folder.contexts, FailureContext)
    contexts = {one.id: one for one in written if one.id in chosen}
    results = _compared(services, iteration, tuple(contexts.values()))
    write_jsonl(folder.judgements, results)
    new = sorted(one.context_id for one in results if one.status == "new")
    for context_id in new:
        write_json(folder.branch(context_id).context, contexts[context_id])
    name = weaknesses(services.run, folder)
    return tuple(new), of_deduplicate(results, {one.id: name(one) for one in contexts.values()})


def _compared(
    services: RunServices, iteration: int, contexts: Sequence[FailureContext]
) -> Sequence[DeduplicationResult]:
    if not services.deduplicates:
        return [DeduplicationResult(context_id=context.id, status="new") for context in contexts]
    compared = [context for context in contexts if context.comparable]
    run, settings = services.run, services.settings.memory
    # Older contexts no longer make another one known: what the index says of them changes no result.
    recent = explored_before(run, iteration, since=iteration - RECUR_AFTER + 1)
    with writing(run.failures_path), indexed(run.failures_path, settings, recent) as memory:
        results = {one.context_id: one for one in memory.compare(compared, iteration)}
    return [results.get(context.id) or DeduplicationResult(context_id=context.id, status="new") for context in contexts]
