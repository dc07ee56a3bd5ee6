"""What is ours beside the paper's nodes: contexts that come from no signal, and composed drafts.

The nodes take the paper's steps and call ``contexts_without_signals`` and ``compositions``. A run has neither by
default. What else is ours is in the roles and the trainer: unguided exploration by rules (``agents.roles``), the
expert step and its rewording (``training.grpo.expert``).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from agents.evidence import executed, facts_around
from agents.roles import baseline_contexts, unguided_exploration
from agents.scripted.coverage import coverage_contexts
from agents.scripted.reflector import with_neighbours
from agents.settings import ExplorationSettings
from environments.base import Environment, TaskSpec, ToolCall
from environments.registry import benchmark_of
from graph.assembly import RunServices
from graph.settings import check_starts
from memory.jsonl import derive_seed, record_id
from memory.records import Draft, FailureContext, Task, Trajectory, Unsignalled
from memory.run import IterationDirectory, read_jsonl
from memory.tasks import load_tasks, success_in, tasks_at


def contexts_without_signals(
    services: RunServices, folder: IterationDirectory, iteration: int
) -> tuple[FailureContext, ...]:
    """Return the iteration's contexts where ``signals.contexts`` is random, unguided or coverage, sorted by id.

    All sources get the budget of as many guided contexts: ``contexts_per_iteration`` contexts of R x S environment
    calls each, or unguided episodes of as many calls. Raises InputError where a baseline has nothing to draw from.
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
        settings.functions,
    )


_REFLECTED = (
    *("cause", "tool", "error_class", "label", "how", "why", "summary", "instability_pattern", "focus_pattern"),
    *("exploration_objectives", "do_not_repeat", "facts", "explore"),
)
"""What a reflector says of a failure; the other fields of a context say where it is explored."""


def shuffled(contexts: Sequence[FailureContext]) -> tuple[FailureContext, ...]:
    """Return the contexts, each with the reflection of another one with the same tools: a control (ours).

    It is of another task unless one task has more than half of them. A context whose tools no other one has keeps its
    own. The order of ``contexts`` does not matter.
    """
    groups: defaultdict[tuple[str, ...], list[FailureContext]] = defaultdict(list)
    for context in sorted(contexts, key=lambda one: (one.task_id, one.id)):
        groups[context.tools].append(context)
    changed = []
    for group in groups.values():
        # Sorted by task and moved on in a circle by the largest task, no context meets its own.
        largest = max(Counter(one.task_id for one in group).values())
        step = largest if largest < len(group) else 1
        for place, context in enumerate(group):
            other = group[(place + step) % len(group)]
            changed.append(context.model_copy(update={name: getattr(other, name) for name in _REFLECTED}))
    return tuple(sorted(changed, key=lambda context: context.id))


def compositions(services: RunServices, context: FailureContext, drafts: Sequence[Draft]) -> tuple[Draft, ...]:
    """Return further drafts of an iteration's context, composed of ``drafts`` and of tasks of D_t; none for D_0."""
    if context.iteration is None:
        return ()
    present = tasks_at(load_tasks(services.run), context.iteration)
    seed = derive_seed(services.settings.seed, context.iteration, "compose", context.id)
    return compose(drafts, present, services.settings.roles.exploration, services.environment, seed)


_TRIES = 16
"""Pairs that are drawn for each composition that is asked for; most do not fit each other."""

_JOINS = (", then ", ", after that ", " and ")
_STOPS = " .;!"


def compose(
    drafts: Sequence[Draft], tasks: Sequence[Task], settings: ExplorationSettings, environment: Environment, seed: int
) -> tuple[Draft, ...]:
    """Return up to ``settings.compositions`` drafts, each of one of ``drafts`` and one of ``tasks``.

    Only those of one user turn are joined, ``settings.two_turns`` is the share that keeps two, and none is longer than
    ``settings.max_reference_calls``. The draft's start state counts where both have one (``Benchmark.join``). What the
    second reference needs may be gone after the first: verification finds out. Equal arguments give equal drafts.
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


_WHY = "The call was drawn uniformly from those of the round: no weakness is behind it."


class _Drawn(NamedTuple):
    trajectory: Trajectory
    where: tuple[int, int]
    call: ToolCall


def random_contexts(
    trajectories: Iterable[Trajectory],
    tasks: Mapping[str, Task],
    environment: Environment,
    count: int,
    seed: int,
    iteration: int,
) -> tuple[FailureContext, ...]:
    """Draw ``count`` contexts, sorted by id; fewer if the round's tasks have fewer different calls.

    Every task is drawn once before any is drawn twice, and none twice with the same call. The order of ``trajectories``
    does not matter. A context has the fields of a reflector's. Those that depend on a failure have their unconditional
    counterpart (ours): the drawn call's place and tool, no cause, facts without errors, and to explore the drawn tool,
    those of the reference and as many neighbours as a reflector names.
    """
    open_calls = _calls(trajectories, tasks)
    rng = random.Random(seed)
    contexts: list[FailureContext] = []
    while open_calls and len(contexts) < count:
        for task_id in rng.sample(sorted(open_calls), min(len(open_calls), count - len(contexts))):
            drawn = rng.choice(open_calls[task_id])
            contexts.append(_context(drawn, tasks[task_id], environment, rng, iteration))
            open_calls[task_id] = [other for other in open_calls[task_id] if other.call != drawn.call]
            if not open_calls[task_id]:
                del open_calls[task_id]
    return tuple(sorted(contexts, key=lambda context: context.id))


def _calls(trajectories: Iterable[Trajectory], tasks: Mapping[str, Task]) -> dict[str, Sequence[_Drawn]]:
    """Collect every call of the agent that ran, by task; tasks whose rollouts called nothing are left out."""
    made: defaultdict[str, list[_Drawn]] = defaultdict(list)
    for one in sorted(trajectories, key=lambda trajectory: (trajectory.step, trajectory.sample, trajectory.id)):
        if one.infrastructure_error is not None:
            continue
        for where, step in one.own_steps():
            made[one.task_id] += [
                _Drawn(one, where, call) for call in step.observation.calls if call.name in tasks[one.task_id].tools
            ]
    return {task_id: calls for task_id, calls in made.items() if calls}


def _context(drawn: _Drawn, task: Task, environment: Environment, rng: random.Random, iteration: int) -> FailureContext:
    trajectory, (turn, place), call = drawn
    tools = {tool.name: tool for tool in environment.tools(task.tools)}
    wanted = [each.name for calls in task.reference for each in calls]
    named = [name for name in dict.fromkeys((call.name, *wanted)) if name in tools]
    earlier = tuple(each for calls in task.reference[:turn] for each in calls)
    return FailureContext(
        id=record_id("context", Unsignalled.RANDOM, iteration, trajectory.id, turn, place),
        task_id=task.id,
        trajectory_id=trajectory.id,
        iteration=iteration,
        kind=Unsignalled.RANDOM,
        environment=task.environment,
        where=drawn.where,
        tool=call.name,
        how=f"Turn {turn + 1}, action {place + 1}: {executed(call)[:200]} was called.",
        why=_WHY,
        facts=facts_around(task, trajectory, drawn.where, errors=False),
        explore=with_neighbours(named, tools[call.name], tuple(tools.values()), rng),
        classes=task.classes,
        initial_state=task.initial_state,
        setup=(*task.setup, *earlier),
        tools=task.tools,
    )
