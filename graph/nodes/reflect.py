"""Turns each chosen signal into a failure context: where, how and why it went wrong, and what to explore.

SEAL's diagnosis joins a context where a run has SEAL. Contexts that come from no signal are of ``graph.ours``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from langgraph.runtime import Runtime

from agents.roles import RoleRefused
from environments.base import InputError
from graph.assembly import RunServices
from graph.branches import describe, weaknesses
from graph.ours import contexts_without_signals, shuffled
from graph.records import Failure
from graph.report.digest import of_reflect
from graph.state import IterationState, IterationUpdate
from memory.records import Evidence, FailureContext, Signal, Trajectory
from memory.run import IterationDirectory, read_json, read_jsonl, write_json, write_jsonl
from memory.tasks import load_tasks
from training.seal.diagnosis import with_diagnosis


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
