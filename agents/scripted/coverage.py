"""Contexts around what no task exercises, or few do: they come from the tasks alone, never from the policy (ours).

The paper's signals mark rollouts, so that they point to where the tasks are; what no task asks for is never rolled out.
A *coverage context* is a start state and one tool, or two tools one after the other. The same explorer and abstractor
work on it as on a weakness. With the policy's success by function contexts come from need instead: first what few tasks
exercise and rollouts fail at.

Pairs are of two tools of one group of the documentation that some start state has together: across groups, most pairs
have nothing to do with each other.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from agents.scripted.reflector import with_neighbours
from environments.base import Environment, StartState, TaskSpec, ToolSpec
from environments.verification.programs import Exercised, Pair
from memory.jsonl import derive_seed, record_id
from memory.records import FailureContext, Unsignalled
from memory.tasks import UNKNOWN

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

    A tool's or pair's number is that of the ``tasks`` that exercise it and of the coverage contexts that were for it,
    among the ``explored`` ones of former iterations and those chosen before it: a tool that exploration cannot reach
    does not come up again and again. First come the tools with the number 0, then in turn the tool and the pair with
    the smallest number. Of equals, ``seed`` draws. ``tasks`` are D_t. No order of the arguments matters.

    ``success`` is the policy's share of success by function (``memory.tasks``). With it, the tool with the greatest
    need comes first, and its neighbours to explore are those with the greatest need (``_Turns.need``). With ``given``
    tools and pairs there are no others; they take turns in their order, whatever tasks exercise them.
    """
    starts = environment.starts()
    if not starts:
        return ()
    tools = environment.tools(sorted({name for start in starts for name in start.tools}))
    turns = _Turns(tasks, explored, tools, starts, seed, success, given)
    contexts = [_context(turns.next(), turns, environment, seed, iteration) for _ in range(count)]
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
        callable_ = [tool for tool in tools if tool.program is None] or tools
        self._names = sorted((tool.name for tool in callable_), key=lambda name: derive_seed(seed, "coverage", name))
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
        chosen = self._chosen()
        self.asked[chosen] += 1
        self._paired[chosen[0]] += len(chosen) > 1
        return chosen

    def _chosen(self) -> Names:
        if self.given is not None:
            return min(self.given, key=lambda names: self.asked[names])
        if self.success is not None:
            return (max(self._names, key=self.need),)
        rarest = (min(self._names, key=lambda name: self.number((name,))),)
        if self.number(rarest) == 0:
            return rarest
        self._further += 1
        return (self._pair() if self._further % 2 == 0 else None) or rarest

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


def _context(names: Names, turns: _Turns, environment: Environment, seed: int, iteration: int) -> FailureContext:
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
    rolled = ""
    if turns.success is not None:
        share = turns.success.get(names[0])
        rolled = " No rollout was asked for it."
        if share is not None:
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
