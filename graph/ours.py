"""What is ours beside the paper's nodes: contexts that come from no signal, and composed drafts.

The nodes take the paper's steps and call ``contexts_without_signals`` and ``compositions``. A run has neither by
default. What else is ours is in the roles and the trainer: unguided exploration by rules (``agents.assembly``), the
expert step and its rewording (``training.grpo.expert``).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from agents.assembly import baseline_contexts, unguided_exploration
from agents.scripted.baselines import random_contexts
from agents.scripted.coverage import coverage_contexts
from agents.settings import ExplorationSettings
from environments.base import Environment, TaskSpec
from environments.registry import benchmark_of
from graph.assembly import RunServices
from graph.settings import check_starts
from memory.jsonl import derive_seed, record_id
from memory.mastery import success_in
from memory.records import Draft, FailureContext, Task, Trajectory
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


_TRIES = 16
"""Pairs that are drawn for each composition that is asked for; most do not fit each other."""

_JOINS = (", then ", ", after that ", " and ")
_STOPS = " .;!"


def compose(
    drafts: Sequence[Draft], tasks: Sequence[Task], settings: ExplorationSettings, environment: Environment, seed: int
) -> tuple[Draft, ...]:
    """Return up to ``settings.compositions`` drafts, each of one of ``drafts`` and one of ``tasks``.

    ``drafts`` are those of one context. Only those of one user turn are joined, ``settings.two_turns`` is the share
    that keeps two, and none is longer than ``settings.max_reference_calls``. The draft's start state counts where both
    have one (``Benchmark.join``). What the second reference needs may be gone after the first: verification finds out.
    Their texts stay as they are, joined. The parents of a composition are the draft and
    the task. Equal arguments give equal drafts.
    """
    first = [draft for draft in drafts if _plain(draft)]
    mates = [task for task in tasks if _plain(task)]
    rng, join = random.Random(seed), benchmark_of(environment).join
    composed: list[Draft] = []
    paired: set[tuple[str, str]] = set()
    for _ in range(_TRIES * settings.compositions if first and mates else 0):
        if len(composed) == settings.compositions:
            break
        draft, mate = rng.choice(first), rng.choice(mates)
        calls = len(draft.reference[0]) + len(mate.reference[0])
        if (draft.id, mate.id) in paired or calls > settings.max_reference_calls:
            continue
        start = join(draft, mate)
        if start is None:
            continue
        paired.add((draft.id, mate.id))
        parts: tuple[TaskSpec, TaskSpec] = (draft, mate) if rng.random() < 0.5 else (mate, draft)
        turns = tuple(one.turns[0] for one in parts)
        reference = tuple(one.reference[0] for one in parts)
        if rng.random() >= settings.two_turns:
            turns, reference = (_joined(turns, rng),), ((*reference[0], *reference[1]),)
        composed.append(
            draft.model_copy(
                update={
                    **{name: getattr(start, name) for name in ("classes", "initial_state", "setup", "tools")},
                    "turns": turns,
                    "reference": reference,
                    "id": record_id("draft", draft.context_id, "composed", len(composed)),
                    "parents": (draft.id, mate.id),
                    "difficulty": None,
                }
            )
        )
    return tuple(composed)


def _plain(task: TaskSpec) -> bool:
    return len(task.turns) == 1 and not task.withheld and not task.long_context


def _joined(turns: tuple[str, ...], rng: random.Random) -> str:
    first, second = turns
    return first.rstrip(_STOPS) + rng.choice(_JOINS) + second.lstrip()
