"""Turns each chosen signal into a failure context: where, how and why it went wrong, and what to explore.

Variants live here, too: contexts that come from no signal (``contexts_without_signals``), alone or beside those of
signals, the choice of the least explored contexts (``most_novel``), and SEAL's diagnosis in a context (``diagnosed``).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from langgraph.runtime import Runtime

from agents.assembly import baseline_contexts, unguided_exploration
from agents.roles import RoleRefused
from agents.scripted.baselines import random_contexts
from agents.scripted.coverage import coverage_contexts
from environments.base import InputError
from environments.registry import benchmark_of
from graph.assembly import RunServices
from graph.branches import describe, weaknesses
from graph.digests import of_reflect, progress
from graph.records import Failure
from graph.report.digest import named_weakness
from graph.settings import check_starts
from graph.state import IterationState, IterationUpdate
from memory.explored import explored_before
from memory.jsonl import derive_seed
from memory.mastery import success_in
from memory.records import Evidence, FailureContext, Signal, SignalKind, Trajectory
from memory.run import IterationDirectory, read_json, read_jsonl, write_json, write_jsonl
from memory.tasks import load_tasks, tasks_at
from training.choice import places
from training.seal.diagnosis import with_diagnosis
from training.signal_settings import SignalSettings

Place = tuple[str, str]


async def reflect(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Diagnose each failure: where, how and why it went wrong, and what to explore around it.

    Reads the chosen signals, the tasks and the trajectories, writes contexts.jsonl. Each reflection is kept in
    reflections/ as soon as it is there, so that a resumed node does not ask for it again. One that gives up is written
    to reflection_failures.jsonl; the others continue. ``signals.experimental.novelty`` keeps the contexts whose place
    was explored least. With SEAL, its diagnosis of the turn joins the context. A baseline's contexts, and those of
    ``signals.uncovered``, are made without a signal and without a reflector.
    """
    services = runtime.context
    folder = services.run.iteration(state.iteration)
    failures: Sequence[Failure] = ()
    if services.settings.signals.contexts == "signals":
        contexts, failures = await _reflected(services, folder, state, runtime.stream_writer)
        if services.settings.signals.experimental.novelty:
            contexts = await asyncio.to_thread(_most_novel, services, contexts, state.iteration)
        if services.settings.signals.uncovered:
            beside = await asyncio.to_thread(_uncovered, services, state.iteration)
            contexts = sorted((*contexts, *beside), key=lambda context: context.id)
    else:
        contexts = await asyncio.to_thread(contexts_without_signals, services, folder, state.iteration)
    await asyncio.to_thread(write_jsonl, folder.contexts, contexts)
    await asyncio.to_thread(write_jsonl, folder.reflection_failures, failures)
    words = await asyncio.to_thread(weaknesses, services.run, folder)
    signalled = sum(context.signal_id != "" for context in contexts)
    names = [words.name(context) for context in contexts]
    digest = of_reflect(names, failures, len(state.signals), len(contexts) - signalled)
    return {"contexts": tuple(context.id for context in contexts), "digest": {"reflect": digest}}


async def _reflected(
    services: RunServices, folder: IterationDirectory, state: IterationState, report: Callable[[object], None]
) -> tuple[Sequence[FailureContext], Sequence[Failure]]:
    """Return the contexts of the chosen signals and the reflections that gave up, each sorted by id."""
    evidences = await asyncio.to_thread(_evidence, services, folder, state)
    turnstile = asyncio.Semaphore(services.settings.roles.concurrency)
    done = itertools.count(1)

    async def reflect_one(evidence: Evidence) -> FailureContext | Failure:
        result = await _reflect_one(services, folder, evidence, turnstile)
        if isinstance(result, Failure):
            text = f"gave up, {result.detail}"
        else:
            text = named_weakness(result, evidence.signal, evidence.task)
        report(progress("reflect", next(done), len(evidences), "signals reflected", text))
        return result

    results = await asyncio.gather(*(reflect_one(evidence) for evidence in evidences))
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
            context = await asyncio.to_thread(with_diagnosis, context, evidence, services.environment)
        await asyncio.to_thread(write_json, path, context)
        return context


def _most_novel(services: RunServices, contexts: Sequence[FailureContext], iteration: int) -> Sequence[FailureContext]:
    explored = explored_before(services.run, iteration).contexts
    seed = derive_seed(services.settings.seed, iteration, "novelty")
    return most_novel(contexts, explored, services.settings.signals, seed)


def most_novel(
    candidates: Sequence[FailureContext], explored: Iterable[FailureContext], settings: SignalSettings, seed: int
) -> tuple[FailureContext, ...]:
    """Return as many of the ``candidates`` as signals may have contexts, by id, a share per kind (ours).

    One after the other, the candidate whose (tool, error class) has the fewest of ``explored`` and of those already
    chosen; ties are broken by ``seed``. Contexts without a kind are never chosen. The order of the arguments does not
    matter.
    """
    by_kind = {kind: [one for one in candidates if one.kind is kind] for kind in SignalKind}
    budget = settings.limit - settings.uncovered
    share = places(settings.shares(), {kind: len(of_kind) for kind, of_kind in by_kind.items()}, budget)
    seen: Counter[Place] = Counter(_place(context) for context in explored)
    chosen: list[FailureContext] = []
    for kind, of_kind in by_kind.items():
        left = sorted(of_kind, key=lambda context: derive_seed(seed, context.id))
        for _ in range(share[kind]):
            best = min(left, key=lambda context: seen[_place(context)])
            left.remove(best)
            seen[_place(best)] += 1
            chosen.append(best)
    return tuple(sorted(chosen, key=lambda context: context.id))


def _place(context: FailureContext) -> Place:
    return context.tool, context.error_class


def contexts_without_signals(
    services: RunServices, folder: IterationDirectory, iteration: int
) -> tuple[FailureContext, ...]:
    """Return the iteration's contexts where ``signals.contexts`` is random, unguided or coverage, sorted by id.

    Random draws calls uniformly from the round; unguided takes start states; coverage takes what no task of D_t
    exercises, or few do. All get the budget of the same number of guided contexts: ``contexts_per_iteration`` contexts
    of R x S environment calls each, or unguided episodes of as many calls. Raises InputError where a baseline has
    nothing to draw from.
    """
    settings, exploration = services.settings.signals, services.settings.roles.exploration
    check_starts(settings, services.environment)
    if settings.contexts == "coverage":
        return _uncovered(services, iteration)
    if settings.contexts == "unguided":
        calls = settings.limit * exploration.rounds * exploration.steps
        unguided = unguided_exploration(services.settings.roles, benchmark_of(services.environment))
        contexts = baseline_contexts(services.environment.starts(), calls, iteration, unguided)
        return tuple(sorted(contexts, key=lambda context: context.id))
    return random_contexts(
        read_jsonl(folder.trajectories, Trajectory),
        {task.id: task for task in load_tasks(services.run)},
        services.environment,
        settings.limit,
        derive_seed(services.settings.seed, iteration, "random contexts"),
        iteration,
    )


def _uncovered(services: RunServices, iteration: int) -> tuple[FailureContext, ...]:
    """Return the iteration's contexts from coverage, sorted by id. Raises InputError without a start state."""
    settings = services.settings.signals
    check_starts(settings, services.environment)
    folders = [services.run.iteration(number) for number in range(iteration)]
    before = [one for folder in folders for one in read_jsonl(folder.contexts, FailureContext)]
    everything = load_tasks(services.run)
    success = None
    if settings.coverage_by == "need":
        success = success_in(services.run, range(iteration + 1), everything, services.environment)
    return coverage_contexts(
        tasks_at(everything, iteration),
        before,
        services.environment,
        settings.from_coverage,
        services.settings.seed,
        iteration,
        success,
    )
