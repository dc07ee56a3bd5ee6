"""The nodes that find new weaknesses: extract signals, reflect on each, set aside what was explored before.

SEAL's diagnosis joins a context where a run has SEAL. A function under ``@ours`` takes the paper's step; what the
decorator adds is described in ``graph.ours``, and happens only where the settings ask for it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence

from langgraph.runtime import Runtime

from agents.spending import RoleRefused
from environments.base import InputError
from environments.command import writing
from environments.verification.canonical import fingerprint
from environments.verification.programs import Exercised
from graph import ours
from graph.assembly import RunServices
from graph.branches import describe, weaknesses
from graph.report.digest import of_deduplicate, of_extract, of_reflect
from graph.state import IterationState, IterationUpdate
from memory.failures import DeduplicationResult, explored_before, indexed
from memory.jsonl import derive_seed
from memory.records import Evidence, FailureContext, Signal, Trajectory
from memory.run import IterationDirectory, read_json, read_jsonl, write_json, write_jsonl
from memory.run_files import ExtractionRecord, Failure, KnownTasks
from memory.tasks import load_tasks, tasks_at
from training.seal.diagnosis import with_diagnosis
from training.signals import Choice, GroupScore, PatternCount, choose
from training.signals import extract as extract_signals


async def extract(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Find signals of weakness in a round's rollouts and choose those to follow up.

    Reads trajectories.jsonl and what earlier rounds recorded, writes signals.jsonl, scores.jsonl and patterns.jsonl.
    known.json holds the fingerprints of D_t, which every branch refuses as duplicates.
    """
    chosen, digest = await asyncio.to_thread(_extract, runtime.context, state.iteration)
    return {"iteration": state.iteration, "signals": chosen, "digest": {"extract": digest}}


def _extract(services: RunServices, iteration: int) -> tuple[tuple[str, ...], list[str]]:
    folder = services.run.iteration(iteration)
    settings = services.settings.signals
    trajectories = read_jsonl(folder.trajectories, Trajectory)
    earlier, counted = defaultdict[str, list[GroupScore]](list), list[PatternCount]()
    for before in map(services.run.iteration, range(iteration)):
        counted += read_jsonl(before.patterns, PatternCount)
        for score in read_jsonl(before.scores, GroupScore):
            earlier[score.task_id].append(score)
    tasks = load_tasks(services.run)
    found = extract_signals(trajectories, earlier, settings, iteration, counted)
    choice = _choice(services, iteration, found.signals)
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


@ours.choice
def _choice(services: RunServices, iteration: int, signals: Sequence[Signal]) -> Choice:
    return choose(signals, services.settings.signals, derive_seed(services.settings.seed, iteration, "choose"))


async def reflect(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Diagnose each failure: where, how and why it went wrong, and what to explore around it.

    Reads the chosen signals, the tasks and the trajectories, writes contexts.jsonl. Each reflection is kept in
    reflections/ as soon as it is there, so that a resumed node does not ask for it again. One that gives up is written
    to reflection_failures.jsonl; the others continue. With SEAL, its diagnosis of the turn joins the context.
    """
    services = runtime.context
    folder = services.run.iteration(state.iteration)
    contexts, failures = await _contexts(services, state)
    await asyncio.to_thread(write_jsonl, folder.contexts, contexts)
    await asyncio.to_thread(write_jsonl, folder.reflection_failures, failures)
    weakness = await asyncio.to_thread(weaknesses, services.run, folder)
    unsignalled = sum(not context.signal_id for context in contexts)
    digest = of_reflect([*map(weakness, contexts)], failures, len(state.signals), unsignalled)
    return {"contexts": tuple(context.id for context in contexts), "digest": {"reflect": digest}}


@ours.contexts
async def _contexts(services: RunServices, state: IterationState) -> tuple[Sequence[FailureContext], Sequence[Failure]]:
    folder = services.run.iteration(state.iteration)
    evidences = await asyncio.to_thread(_evidence, services, folder, state)
    turnstile = asyncio.Semaphore(services.settings.roles.concurrency)
    results = await asyncio.gather(*(_reflect_one(services, folder, one, turnstile) for one in evidences))
    contexts = sorted((one for one in results if isinstance(one, FailureContext)), key=lambda context: context.id)
    failures = sorted((one for one in results if isinstance(one, Failure)), key=lambda failure: failure.id)
    return contexts, failures


def _evidence(services: RunServices, folder: IterationDirectory, state: IterationState) -> Sequence[Evidence]:
    chosen = set(state.signals)
    tasks = {task.id: task for task in load_tasks(services.run)}
    shown = {one.id: one for one in read_jsonl(folder.trajectories, Trajectory)}
    found = []
    for signal in read_jsonl(folder.signals, Signal):
        if signal.id not in chosen:
            continue
        task, marked = tasks.get(signal.task_id), shown.get(signal.trajectory_id)
        other = shown.get(signal.counterpart_id)
        if task is None or marked is None or (signal.counterpart_id and other is None):
            raise InputError(f"{folder.root}: signal {signal.id} names a task or trajectory that the run does not have")
        found.append(Evidence(signal=signal, task=task, trajectory=marked, counterpart=other))
    return found


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
    and so are contexts without facts to compare.
    """
    new, digest = await asyncio.to_thread(_deduplicate, runtime.context, state.iteration, frozenset(state.contexts))
    return {"new": new, "digest": {"deduplicate": digest}}


def _deduplicate(services: RunServices, iteration: int, chosen: Collection[str]) -> tuple[tuple[str, ...], list[str]]:
    run, settings, folder = services.run, services.settings, services.run.iteration(iteration)
    contexts = {one.id: one for one in read_jsonl(folder.contexts, FailureContext) if one.id in chosen}
    results = {one: DeduplicationResult(context_id=one, status="new") for one in contexts}
    comparable = [one for one in contexts.values() if one.comparable]
    if settings.memory.deduplicate and comparable:
        explored = explored_before(run, iteration)
        with writing(run.failures_path), indexed(run.failures_path, settings.memory, explored) as memory:
            compared = memory.compare(comparable)
        results |= {one.context_id: one for one in compared}
    write_jsonl(folder.judgements, results.values())
    new = sorted(one for one, result in results.items() if result.status == "new")
    for context_id in new:
        write_json(folder.branch(context_id).context, contexts[context_id])
    name = weaknesses(run, folder)
    return tuple(new), of_deduplicate([*results.values()], {one.id: name(one) for one in contexts.values()})
