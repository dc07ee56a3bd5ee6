"""Compare one turn's actions with its reference: which reference calls were made, and by which action.

An explanation of a failure may read references; their values must not reach a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pydantic import JsonValue

from environments.base import Action, Observation, ToolCall, ToolSpec


class Played(Protocol):
    """One action and its observation."""

    @property
    def action(self) -> Action:
        """The agent's action."""
        ...

    @property
    def observation(self) -> Observation:
        """The environment's answer."""
        ...


class TurnComparison:
    """The steps of one turn compared with its reference.

    ``made`` maps the positions of reference calls to the steps that made them: a program makes those that are among the
    calls it ran. ``tools`` documents the task's tools by name; other tools are compared by their arguments as they are.
    """

    def __init__(self, steps: Sequence[Played], reference: Sequence[ToolCall], tools: Mapping[str, ToolSpec]) -> None:
        self.steps = steps
        self.reference = reference
        self._tools = tools
        self.made: dict[int, int] = {}
        for place, step in enumerate(steps):
            self._take(place, step)

    @property
    def missing(self) -> tuple[int, ...]:
        """Positions of the reference calls that no step made."""
        return tuple(k for k in range(len(self.reference)) if k not in self.made)

    def missing_names(self) -> frozenset[str]:
        """Return the tools of the missing calls."""
        return frozenset(self.reference[k].name for k in self.missing)

    def same(self, call: ToolCall, wanted: ToolCall) -> bool:
        """Return whether the calls are equal; defaults may be left out, and lists of documented choices are sets."""
        return call.name == wanted.name and self._plain(call) == self._plain(wanted)

    def _take(self, place: int, step: Played) -> None:
        """Record the reference calls that the step made."""
        action, observation = step.action, step.observation
        if isinstance(action, ToolCall) and (observation.failed or not self._makes(action, place)):
            for call in observation.calls:
                if call.name != action.name:
                    self._makes(call, place)

    def _makes(self, call: ToolCall, place: int) -> bool:
        for k, wanted in enumerate(self.reference):
            if k not in self.made and self.same(call, wanted):
                self.made[k] = place
                return True
        return False

    def _plain(self, call: ToolCall) -> dict[str, JsonValue]:
        tool = self._tools.get(call.name)
        plain: dict[str, JsonValue] = {}
        for name, value in call.arguments.items():
            parameter = tool.parameter(name) if tool else None
            if parameter is not None and not parameter.required and value == parameter.default:
                continue
            plain[name] = value
            if parameter is not None and parameter.choices and isinstance(value, list):
                plain[name] = [*sorted(str(item) for item in value)]
        return plain
