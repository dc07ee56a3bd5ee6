"""One turn's actions beside its reference: which calls of the reference were made, and by which action.

Whoever explains a failure may read references; none of their values may reach a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pydantic import JsonValue

from environments.base import Action, Observation, ToolCall, ToolSpec
from environments.replay import failed


class Played(Protocol):
    """One action and what the environment answered."""

    @property
    def action(self) -> Action:
        """What the agent did."""
        ...

    @property
    def observation(self) -> Observation:
        """What it was answered."""
        ...


class TurnComparison:
    """The steps of one turn beside its reference.

    ``made`` maps the positions of reference calls to the steps that made them. ``tools`` documents the task's tools by
    name; a tool that is not among them is compared by its arguments as they are.
    """

    def __init__(self, steps: Sequence[Played], reference: Sequence[ToolCall], tools: Mapping[str, ToolSpec]) -> None:
        self.steps = steps
        self.reference = reference
        self._tools = tools
        self.made: dict[int, int] = {}
        for place, step in enumerate(steps):
            if failed(step.observation) or not isinstance(step.action, ToolCall):
                continue
            wanted = [k for k in range(len(reference)) if k not in self.made and self.same(step.action, reference[k])]
            if wanted:
                self.made[wanted[0]] = place

    @property
    def missing(self) -> tuple[int, ...]:
        """Positions of the reference calls that no step made."""
        return tuple(k for k in range(len(self.reference)) if k not in self.made)

    def missing_names(self) -> frozenset[str]:
        """Tools of the missing calls."""
        return frozenset(self.reference[k].name for k in self.missing)

    def same(self, call: ToolCall, wanted: ToolCall) -> bool:
        """Equal calls: documented defaults may be left out, and lists of documented choices are sets."""
        return call.name == wanted.name and self._plain(call) == self._plain(wanted)

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
