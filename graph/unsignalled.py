"""The contexts of the baselines, which look at no signal: uniformly drawn calls, or start states without a guide."""

from __future__ import annotations

from pathlib import Path

from agents.assembly import baseline_contexts
from agents.scripted.random_contexts import random_contexts
from environments.base import InputError
from graph.assembly import Rooms
from memory.ids import derive_seed
from memory.records import FailureContext, Trajectory
from memory.run import read_jsonl
from memory.tasks import load_tasks


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
