"""What an explorer learned in one context about which values a parameter takes, and where they come from."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pydantic import JsonValue

from agents.scripted.values import Sightings
from environments.base import Observation, ObservationStatus, ToolCall


@dataclass
class Experience:
    """Counts of outcomes by value and by source, for each parameter of each tool."""

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
        """From -1 (values of this source were refused) over 0 (not tried) to 1."""
        good, bad = self._sources.get((tool, parameter, source), (0, 0))
        return (good - bad) / (good + bad + 1)

    def used(self, tool: str, parameter: str, value: JsonValue) -> int:
        """How often the value was given here with success."""
        return self._used[tool, parameter, str(value)]

    def refused(self, tool: str, parameter: str, value: JsonValue) -> int:
        """How often the value was given here without success since it last had some."""
        return self._refused[tool, parameter, str(value)]

    def wrong(self, tool: str, parameter: str, value: JsonValue) -> int:
        """How often an answer that was not fine named the value."""
        return self._wrong[tool, parameter, str(value)]
