"""An explorer's aims, and its knowledge of a round or a context: tools, calls, their needs, and which values worked."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from agents.evidence import executed
from agents.scripted.guidance import PLAIN, Guidance
from agents.scripted.values import Sightings
from environments.base import Environment, Observation, ObservationStatus, ToolCall
from environments.benchmark import KnownValue
from memory.records import FailureContext

_AVOIDED = 99  # as if a call had been made so often


class Aims:
    """The aims and successes so far; the caller counts each aim in ``aimed`` and each success in ``succeeded``.

    Args:
        names: every tool that can be aimed at, in the order in which ``rng`` draws.
        wanted: the tools worth reaching, most wanted first.
        patience: number of attempts at a wanted tool before others are preferred.
        rng: the random generator.
    """

    def __init__(self, names: Sequence[str], wanted: Sequence[str], patience: int, rng: random.Random) -> None:
        self.aimed: Counter[str] = Counter()
        self.succeeded: Counter[str] = Counter()
        self._names = tuple(names)
        self._rank = {name: rank for rank, name in enumerate(dict.fromkeys(wanted))}
        self._patience = patience
        self._rng = rng
        self._guidance = PLAIN
        self._due: list[str] = []
        self._turn = 0

    def follow(self, guidance: Guidance) -> None:
        """Aim by ``guidance`` from here on; its path comes first."""
        self._guidance = guidance
        self._due = [name for name in guidance.path if name in self._names]
        self._turn = 0

    def next(self) -> str:
        """Return the next tool of the guidance's path, else the first wanted tool that was not reached yet or tried
        too often, else any."""
        if self._due:
            return self._due.pop(0)
        for name in self._rank:
            if name in self._names and not self.succeeded[name] and self.aimed[name] < self._patience:
                return name
        return self.any()

    def any(self) -> str:
        """Return the next tool of the guidance's path, else one of those that it takes in turn, else one by weight."""
        if self._due:
            return self._due.pop(0)
        turn = self._guidance.turn
        if not turn or self._rng.random() >= self._guidance.share:
            return self._drawn(self._names)
        self._turn += 1
        return turn[(self._turn - 1) % len(turn)] or self._unusual(turn)

    def _unusual(self, turn: Sequence[str]) -> str:
        """Draw a tool outside of ``turn``, of those that were aimed at least often."""
        others = [name for name in self._names if name not in turn] or self._names
        fewest = min(self.aimed[name] for name in others)
        return self._rng.choice([name for name in others if self.aimed[name] == fewest])

    def _drawn(self, names: Sequence[str]) -> str:
        return self._rng.choices(names, [self._weight(name) for name in names])[0]

    def _weight(self, tool: str) -> float:
        """Return the weight of a tool: larger if it is high on the list of wanted ones and not yet reached or tried."""
        rank = self._rank.get(tool)
        base = self._guidance.elsewhere if rank is None else 1.0 / (1 + 0.5 * rank)
        return self._guidance.weight(tool) * base / (1 + self.succeeded[tool] + 0.5 * self.aimed[tool])


@dataclass
class Experience:
    """Counts of outcomes by value and by source of values, for each parameter of each tool."""

    _sources: defaultdict[tuple[str, str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    _used: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _refused: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _wrong: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def learn(self, call: ToolCall, observation: Observation, sightings: Sightings) -> None:
        """Count the outcome of a call for its values and for the sources they came from."""
        fine = observation.status is ObservationStatus.OK
        for name, argument in call.arguments.items():
            key = (call.name, name, str(argument))
            self._used[key] += fine
            self._refused[key] = 0 if fine else self._refused[key] + 1
            self._wrong[key] += not fine and str(argument) in observation.text
            for source in {s.source for s in sightings if s.value == argument and not s.piece}:
                self._sources[call.name, name, source][0 if fine else 1] += 1

    def trust(self, tool: str, parameter: str, source: str) -> float:
        """Return the trust in a source, from -1 (its values were refused) over 0 (not tried) to 1."""
        good, bad = self._sources.get((tool, parameter, source), (0, 0))
        return (good - bad) / (good + bad + 1)

    def used(self, tool: str, parameter: str, value: JsonValue) -> int:
        """Return how often the value was given here with success."""
        return self._used[tool, parameter, str(value)]

    def refused(self, tool: str, parameter: str, value: JsonValue) -> int:
        """Return how often the value was given here without success since its last success."""
        return self._refused[tool, parameter, str(value)]

    def wrong(self, tool: str, parameter: str, value: JsonValue) -> int:
        """Return how often the answer to a failed call named the value."""
        return self._wrong[tool, parameter, str(value)]


_PATIENCE = 3


class Knowledge:
    """Tools and their documentation, calls made, what succeeded, and what a tool needs to be called first."""

    def __init__(
        self, context: FailureContext, environment: Environment, given: Sequence[KnownValue], rng: random.Random
    ) -> None:
        self.rng = rng
        self.tools = {tool.name: tool for tool in environment.tools(context.tools)}
        self.experience = Experience()
        self._made: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        wanted = (context.tool, *context.explore) if context.tool else context.explore
        self.aims = Aims(sorted(self.tools), wanted, _PATIENCE, rng)
        self.needs: dict[str, tuple[ToolCall, ...]] = {}
        self.in_view: dict[str, tuple[ToolCall, Observation]] = {}
        self.guidance = PLAIN
        self._context = context
        self._given = given

    def follow(self, guidance: Guidance) -> None:
        """Let ``guidance`` guide the next round."""
        self.guidance = guidance
        self.aims.follow(guidance)

    def sightings(self) -> Sightings:
        """Return what is visible at the start of a round: state, training values, facts, and earlier looks."""
        seen = Sightings()
        seen.see_state(self._context.initial_state)
        for value in self._given:
            if value.tool in self.tools:
                seen.see_for(value.tool, value.parameter, value.value, value.near)
        seen.see_facts(self._context.facts)
        for call, observation in self.in_view.values():
            seen.see_observation(call, observation)
        return seen

    def record(self, call: ToolCall, succeeded: bool) -> None:
        """Count a call as made. Its failures are forgotten once it succeeds."""
        key = _key(call)
        self._made[key] += succeeded
        self._failed[key] = 0 if succeeded else self._failed[key] + 1
        self.aims.succeeded[call.name] += succeeded

    def newest(self, calls: Sequence[ToolCall]) -> ToolCall:
        """Return the call that was made least often in this context, failures counted double; the first of equals.

        Those that the guidance avoids come last.
        """
        return min(calls, key=self._times)

    def _times(self, call: ToolCall) -> int:
        avoided = bool(self.guidance.avoided) and executed(call) in self.guidance.avoided
        return self._made[_key(call)] + 2 * self._failed[_key(call)] + _AVOIDED * avoided


def _key(call: ToolCall) -> str:
    return f"{call.name}{sorted(call.arguments.items())}"
