"""Turns each chosen signal into a failure context: where, how and why it went wrong, and what to explore."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from langgraph.runtime import Runtime

from agents.roles import RoleRefused
from environments.base import InputError
from graph.assembly import Rooms, open_rooms
from graph.branches import describe
from graph.diagnosed import diagnosed
from graph.explored import explored_before
from graph.forks import on_its_run
from graph.novelty import most_novel
from graph.records import Failure
from graph.state import IterationState, IterationUpdate, RunContext
from graph.unsignalled import contexts_without_signals
from memory.ids import derive_seed
from memory.records import Evidence, FailureContext, Signal, Trajectory
from memory.run import read_json, read_jsonl, write_json, write_jsonl
from memory.tasks import load_tasks


@on_its_run
async def reflect(state: IterationState, runtime: Runtime[RunContext]) -> IterationUpdate:
    """Reads the chosen signals, the tasks and the trajectories, writes contexts.jsonl.

    Each reflection is kept in reflections/ as soon as it is there, so that a killed node does not ask for it again.
    One that gives up is written to reflection_failures.jsonl; the others go on. With ``signals.novelty`` the contexts
    whose place was explored least are kept. Where training is SEAL's, its diagnosis of the turn joins the context.
    A baseline's contexts are made without a signal and without a reflector.
    """
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    folder = rooms.run.iteration(state.iteration)
    failures: Sequence[Failure] = ()
    if rooms.settings.signals.contexts == "signals":
        contexts, failures = await _reflected(rooms, folder, state)
        if rooms.settings.signals.novelty:
            contexts = await asyncio.to_thread(_most_novel, rooms, contexts, state.iteration)
    else:
        contexts = await asyncio.to_thread(contexts_without_signals, rooms, folder, state.iteration)
    await asyncio.to_thread(write_jsonl, folder / "contexts.jsonl", contexts)
    await asyncio.to_thread(write_jsonl, folder / "reflection_failures.jsonl", failures)
    return {"contexts": tuple(context.id for context in contexts)}


async def _reflected(
    rooms: Rooms, folder: Path, state: IterationState
) -> tuple[Sequence[FailureContext], Sequence[Failure]]:
    """The contexts of the chosen signals and the reflections that gave up, each sorted by id."""
    evidences = await asyncio.to_thread(_evidence, rooms, folder, state)
    turnstile = asyncio.Semaphore(rooms.settings.roles.concurrency)
    results = await asyncio.gather(*(_reflect_one(rooms, folder, evidence, turnstile) for evidence in evidences))
    contexts = sorted((one for one in results if isinstance(one, FailureContext)), key=lambda context: context.id)
    failures = sorted((one for one in results if isinstance(one, Failure)), key=lambda failure: failure.id)
    return contexts, failures


def _most_novel(rooms: Rooms, contexts: Sequence[FailureContext], iteration: int) -> Sequence[FailureContext]:
    explored = explored_before(rooms.run, iteration).contexts
    seed = derive_seed(rooms.settings.seed, iteration, "novelty")
    return most_novel(contexts, explored, rooms.settings.signals, seed)


def _evidence(rooms: Rooms, folder: Path, state: IterationState) -> Sequence[Evidence]:
    chosen = set(state.signals)
    signals = [one for one in read_jsonl(folder / "signals.jsonl", Signal) if one.id in chosen]
    tasks = {task.id: task for task in load_tasks(rooms.run)}
    shown = {one.id: one for one in read_jsonl(folder / "trajectories.jsonl", Trajectory)}
    for signal in signals:
        if signal.task_id not in tasks or signal.trajectory_id not in shown:
            raise InputError(f"{folder}: signal {signal.id} names a task or trajectory that the run does not have")
    return [Evidence(signal=one, task=tasks[one.task_id], trajectory=shown[one.trajectory_id]) for one in signals]


async def _reflect_one(
    rooms: Rooms, folder: Path, evidence: Evidence, turnstile: asyncio.Semaphore
) -> FailureContext | Failure:
    path = folder / "reflections" / f"{evidence.signal.id}.json"
    deadline = rooms.settings.roles.branch_timeout
    async with turnstile:
        if path.exists():
            return await asyncio.to_thread(read_json, path, FailureContext)
        try:
            async with asyncio.timeout(deadline):
                context = await rooms.roles.reflector.reflect(evidence, rooms.environment)
        except (RoleRefused, TimeoutError) as error:
            return describe(error, evidence.signal.id, "reflect", deadline)
        if rooms.settings.training.seal is not None:
            context = await asyncio.to_thread(diagnosed, context, evidence, rooms.environment)
        await asyncio.to_thread(write_json, path, context)
        return context
