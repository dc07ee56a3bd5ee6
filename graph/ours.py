"""What is ours beside the paper's nodes: contexts that come from no signal, and composed drafts.

The nodes take the paper's steps and call these two functions. A run has neither by default. What else is ours is in the
roles and the trainer: unguided exploration by rules (``agents.assembly``), the expert step and its rewording
(``training.grpo.expert``).
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.assembly import baseline_contexts, unguided_exploration
from agents.composition import compose
from agents.scripted.baselines import random_contexts
from agents.scripted.coverage import coverage_contexts
from environments.registry import benchmark_of
from graph.assembly import RunServices
from graph.settings import check_starts
from memory.jsonl import derive_seed
from memory.mastery import success_in
from memory.records import Draft, FailureContext, Trajectory
from memory.run import IterationDirectory, read_jsonl
from memory.tasks import load_tasks, tasks_at


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
    """Return the iteration's contexts from coverage, sorted by id."""
    settings = services.settings.signals
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
        settings.limit,
        services.settings.seed,
        iteration,
        success,
    )


def compositions(services: RunServices, context: FailureContext, drafts: Sequence[Draft]) -> tuple[Draft, ...]:
    """Return further drafts of an iteration's context, composed of ``drafts`` and of tasks of D_t; none for D_0.

    ``roles.exploration.compositions`` is their number, 0 by default.
    """
    exploration = services.settings.roles.exploration
    if not exploration.compositions or context.iteration is None:
        return ()
    present = tasks_at(load_tasks(services.run), context.iteration)
    seed = derive_seed(services.settings.seed, context.iteration, "compose", context.id)
    return compose(drafts, present, exploration, services.environment, seed)
