"""What is ours beside the paper's nodes: contexts that come from no signal, and composed drafts.

The nodes take the paper's steps and call ``contexts_without_signals`` and ``compositions``. A run has neither by
default. What else is ours is in the roles and the trainer: unguided exploration by rules (``agents.roles``), the
expert step and its rewording (``training.grpo.expert``).

The paper's signals mark rollouts, so that they point to where the tasks are; what no task asks for is never rolled out.
A *coverage context* is a start state and one tool, or two tools one after the other. The same explorer and abstractor
work on it as on a weakness. With the policy's success by function contexts come from need instead: first what few tasks
exercise and rollouts fail at. Pairs are of two tools of one group of the documentation that some start state has
together: across groups, most pairs have nothing to do with each other.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from agents.evidence import executed, facts_around
from agents.roles import baseline_contexts, unguided_exploration
from agents.scripted.reflector import with_neighbours
from agents.settings import ExplorationSettings
from environments.base import Environment, StartState, TaskSpec, ToolCall, ToolSpec
from environments.registry import benchmark_of
from environments.verification.programs import Exercised, Pair
from graph.assembly import RunServices
from graph.settings import check_starts
from memory.jsonl import derive_seed, record_id
from memory.records import Draft, FailureContext, Task, Trajectory, Unsignalled
from memory.run import IterationDirectory, read_jsonl
from memory.tasks import UNKNOWN, load_tasks, success_in, tasks_at


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
    by_need = settings.coverage_by == "need"
    success = success_in(services.run, range(iteration + 1), everything, services.environment) if by_need else None
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


_Drawn = tuple[Trajectory, tuple[int, int], ToolCall]
"""A trajectory, a (turn, step) of it, and a call that ran there."""


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
    does not matter. A context has the drawn call's place and tool, no cause, facts without errors, and to explore the
    drawn tool, those of the reference and as many neighbours as a reflector names.
    """
    open_calls: defaultdict[str, list[_Drawn]] = defaultdict(list)
    for one in sorted(trajectories, key=lambda trajectory: (trajectory.step, trajectory.sample, trajectory.id)):
        if one.infrastructure_error is None:
            ran = ((one, where, call) for where, step in one.own_steps() for call in step.observation.calls)
            open_calls[one.task_id] += [drawn for drawn in ran if drawn[2].name in tasks[one.task_id].tools]
    open_calls = defaultdict(list, {task_id: calls for task_id, calls in open_calls.items() if calls})
    rng = random.Random(seed)
    contexts: list[FailureContext] = []
    while open_calls and len(contexts) < count:
        for task_id in rng.sample(sorted(open_calls), min(len(open_calls), count - len(contexts))):
            drawn = rng.choice(open_calls[task_id])
            contexts.append(_random_context(drawn, tasks[task_id], environment, rng, iteration))
            open_calls[task_id] = [other for other in open_calls[task_id] if other[2] != drawn[2]]
            if not open_calls[task_id]:
                del open_calls[task_id]
    return tuple(sorted(contexts, key=lambda context: context.id))


def _random_context(
    drawn: _Drawn, task: Task, environment: Environment, rng: random.Random, iteration: int
) -> FailureContext:
    trajectory, where, call = drawn
    turn, place = where
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
        where=where,
        tool=call.name,
        how=f"Turn {turn + 1}, action {place + 1}: {executed(call)[:200]} was called.",
        why="The call was drawn uniformly from those of the round: no weakness is behind it.",
        facts=facts_around(task, trajectory, where, errors=False),
        explore=with_neighbours(named, tools[call.name], tuple(tools.values()), rng),
        classes=task.classes,
        initial_state=task.initial_state,
        setup=(*task.setup, *earlier),
        tools=task.tools,
    )


Names = tuple[str, ...]

ENOUGH = 8
"""Tasks of a tool that halve what a further context for it is worth (ours)."""

_NEIGHBOURS = 4
"""Further tools of the centre's group that a context by need names."""


def coverage_contexts(
    tasks: Iterable[TaskSpec],
    explored: Iterable[FailureContext],
    environment: Environment,
    count: int,
    seed: int,
    iteration: int,
    success: Mapping[str, float] | None = None,
    given: Sequence[Names] | None = None,
) -> tuple[FailureContext, ...]:
    """Return ``count`` contexts of an iteration, sorted by id; none where the environment has no start state.

    Each tool and pair has a number: it counts the ``tasks`` (D_t) that exercise it and the coverage contexts made for
    it. These are the ``explored`` ones of former iterations and those already chosen. First come the tools with the
    number 0, then in turn the tool and the pair with the smallest number. Of equals, ``seed`` draws. No order of the
    arguments matters. With ``success``, the policy's share of success by function, tools and their neighbours come by
    need (``_Turns.need``). ``given`` tools and pairs take turns in their order, and there are no others.
    """
    starts = environment.starts()
    if not starts:
        return ()
    tools = environment.tools(sorted({name for start in starts for name in start.tools}))
    turns = _Turns(tasks, explored, tools, starts, seed, success, given)
    contexts = [_coverage_context(turns.next(), turns, environment, seed, iteration) for _ in range(count)]
    return tuple(sorted(contexts, key=lambda context: context.id))


class _Turns:
    """Which tool or pair is next."""

    def __init__(
        self,
        tasks: Iterable[TaskSpec],
        explored: Iterable[FailureContext],
        tools: Sequence[ToolSpec],
        starts: Sequence[StartState],
        seed: int,
        success: Mapping[str, float] | None,
        given: Sequence[Names] | None,
    ) -> None:
        self.success = success
        self.given = given
        self.exercised = Exercised(tasks, tools)
        self.asked = Counter(one.focus_pattern for one in explored if one.kind is Unsignalled.COVERAGE)
        self.tools = {tool.name: tool for tool in tools}
        self._starts: defaultdict[str, list[StartState]] = defaultdict(list)
        for start in starts:
            for name in start.tools:
                self._starts[name].append(start)
        # Programs call other tools, which are explored by themselves.
        names = [tool.name for tool in ([tool for tool in tools if tool.program is None] or tools)]
        self._names = sorted(names, key=lambda name: derive_seed(seed, "coverage", name))
        self._paired = Counter(names[0] for names in self.asked.elements() if len(names) > 1)
        self._further = 0

    def number(self, names: Names) -> int:
        """Return how many tasks exercise a tool or pair, and how many contexts were for it."""
        tasks = self.exercised.functions[names[0]] if len(names) == 1 else self.exercised.pairs[names[0], names[1]]
        return tasks + self.asked[names]

    def need(self, name: str) -> float:
        """Return the share of failure that is left to lower, (1 - success) / (1 + tasks / ENOUGH + contexts).

        A tool that no rollout was asked for may be known or not: its success counts as UNKNOWN. The more tasks
        exercise a tool, or contexts were for it, the less a further one is worth.
        """
        assert self.success is not None
        spent = self.exercised.functions[name] / ENOUGH + self.asked[name,]
        return (1.0 - self.success.get(name, UNKNOWN)) / (1.0 + spent)

    def next(self) -> Names:
        """Return the next tool or pair, and count a context for it."""
        chosen: Names
        if self.given is not None:
            chosen = min(self.given, key=lambda names: self.asked[names])
        elif self.success is not None:
            chosen = (max(self._names, key=self.need),)
        else:
            chosen = (min(self._names, key=lambda name: self.number((name,))),)
            if self.number(chosen) > 0:
                self._further += 1
                chosen = (self._pair() if self._further % 2 == 0 else None) or chosen
        self.asked[chosen] += 1
        self._paired[chosen[0]] += len(chosen) > 1
        return chosen

    def _pair(self) -> Pair | None:
        """Return the pair with the smallest number, None where no group has two tools in a start state.

        Of equals, that whose first tool fewest contexts of pairs began with, then that of the rarest tools.
        """
        best: Pair | None = None
        for first in sorted(self._names, key=lambda name: (self._paired[name], self.number((name,)))):
            group = self.tools[first].group
            near = (name for name in self._names if name != first and self.tools[name].group == group)
            pairs = [(first, name) for name in near if self.starts_with((first, name))]
            if pairs:
                found = min(pairs, key=lambda pair: (self.number(pair), self.number(pair[1:])))
                best = found if best is None else min(best, found, key=self.number)
                if self.number(best) == 0:
                    break
        return best

    def starts_with(self, names: Names) -> list[StartState]:
        """Return the start states that have all of the tools."""
        return [start for start in self._starts[names[0]] if names[-1] in start.tools]


def _coverage_context(
    names: Names, turns: _Turns, environment: Environment, seed: int, iteration: int
) -> FailureContext:
    number = turns.asked[names]
    draw = derive_seed(seed, "coverage", iteration, *names, number)
    start = random.Random(draw).choice(turns.starts_with(names))
    tools = environment.tools(start.tools)
    last = turns.tools[names[-1]]
    if turns.success is None:
        explore = with_neighbours(names, last, tools, random.Random(draw))
    else:
        near = [tool.name for tool in tools if tool.group == last.group and tool.name not in names]
        explore = (*names, *sorted(near, key=lambda name: (-turns.need(name), name))[:_NEIGHBOURS])
    rolled = "" if turns.success is None else " No rollout was asked for it."
    if turns.success is not None and (share := turns.success.get(names[0])) is not None:
        rolled = f" Rollouts make about {100 * share:.0f} % of the calls to it that tasks ask for."
    tasks = turns.number(names) - number
    exercised = {0: "No task calls", 1: "One task calls"}.get(tasks, f"{tasks} tasks call")
    further = (
        f", then one of {last.name} that goes with it." if len(names) > 1 else ", and find out what it needs first."
    )
    return FailureContext(
        id=record_id("context", Unsignalled.COVERAGE, iteration, start.environment, start.id, *names, number),
        iteration=iteration,
        kind=Unsignalled.COVERAGE,
        environment=start.environment,
        tool=names[0],
        why=f"{exercised} {' and then '.join(names)} so far.{rolled}",
        focus_pattern=names,
        exploration_objectives=(f"Reach a successful call of {names[0]}{further}",),
        explore=explore,
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
    )
