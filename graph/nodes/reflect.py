"""Turns each chosen signal into a failure context: where, how and why it went wrong, and what to explore."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from langgraph.runtime import Runtime

from agents.assembly import baseline_contexts
from agents.roles import RoleRefused
from agents.scripted.baselines import random_contexts
from environments.base import Environment, InputError
from environments.registry import benchmark_of
from graph.assembly import Rooms, open_rooms
from graph.branches import describe
from graph.forks import on_its_run
from graph.records import Failure
from graph.state import IterationState, IterationUpdate, RunContext
from memory.explored import explored_before
from memory.jsonl import derive_seed
from memory.records import Evidence, FailureContext, Signal, SignalKind, Trajectory
from memory.run import read_json, read_jsonl, write_json, write_jsonl
from memory.tasks import load_tasks
from training.seal.diagnosis import FAILED, diagnose
from training.settings import SignalSettings
from training.signals import places

# Adds SEAL's diagnosis of the turn that went wrong to a failure context, so that it tells contexts apart.


def diagnosed(context: FailureContext, evidence: Evidence, environment: Environment) -> FailureContext:
    """``context`` with label and cause of the turn of its ``where``, else of the first turn that failed.

    As it is where no turn has a label that says the policy did something wrong (a success that is rare).
    """
    tools = {tool.name: tool for tool in environment.tools(evidence.task.tools)}
    found = diagnose(evidence.trajectory, evidence.task, tools, benchmark_of(environment))
    failed = [turn for turn in found.turns if turn.label in FAILED] if found is not None else []
    if not failed:
        return context
    turn = next((one for one in failed if one.turn == context.where[0]), failed[0])
    return context.model_copy(update={"label": turn.label, "turn_cause": turn.cause})


# Chooses among reflected contexts those whose place was explored least: novelty of tool and error class.

Place = tuple[str, str]


def most_novel(
    candidates: Sequence[FailureContext], explored: Iterable[FailureContext], settings: SignalSettings, seed: int
) -> tuple[FailureContext, ...]:
    """At most ``contexts_per_iteration`` of the ``candidates``, sorted by id, a share a kind (our choice).

    One after the other, the candidate whose (tool, error class) has the fewest of ``explored`` and of those chosen
    already; among equals by ``seed``. Contexts without a kind are never chosen. The order of the arguments does not
    matter.
    """
    by_kind = {kind: [one for one in candidates if one.kind is kind] for kind in SignalKind}
    share = places(
        settings.shares(), {kind: len(of_kind) for kind, of_kind in by_kind.items()}, settings.contexts_per_iteration
    )
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


# The contexts of the baselines, which look at no signal: uniformly drawn calls, or start states without a guide.


def contexts_without_signals(rooms: Rooms, folder: Path, iteration: int) -> tuple[FailureContext, ...]:
    """The iteration's contexts where ``signals.contexts`` is random or unguided, sorted by id.

    Both get what the same number of guided contexts would: ``contexts_per_iteration`` contexts of R x S environment
    calls each, or unguided episodes of as many calls. Raises InputError where a baseline has nothing to draw from.
    """
    settings, exploration = rooms.settings.signals, rooms.settings.roles.exploration
    if settings.contexts == "unguided":
        calls = settings.contexts_per_iteration * exploration.rounds * exploration.steps
        contexts = baseline_contexts(rooms.environment.starts(), calls, iteration)
        if not contexts:
            raise InputError(
                f"signals.contexts: unguided exploration needs a start state, and starts() of the environment "
                f"{rooms.environment.name} is empty: give it one"
            )
        return tuple(sorted(contexts, key=lambda context: context.id))
    return random_contexts(
        read_jsonl(folder / "trajectories.jsonl", Trajectory),
        {task.id: task for task in load_tasks(rooms.run)},
        rooms.environment,
        settings.contexts_per_iteration,
        derive_seed(rooms.settings.seed, iteration, "random contexts"),
        iteration,
    )


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
