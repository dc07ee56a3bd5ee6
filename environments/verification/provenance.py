"""Find where the values of a reference's arguments come from.

The value is looked up in the order of ``Source``, in what an agent has read before the call (``task_text`` has the rule
of a look-up), and the first match counts. ``HIDDEN`` sources are not found in anything that an agent reads: grounding
refuses them (``replay.ungrounded``), and metrics of tasks count all sources (``evaluation.task_quality``).

The items of lists and the values of objects are looked up one by one, and so are the literals of a program
(``programs.literals``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple, Protocol

from pydantic import JsonValue

from environments.base import Environment, InputError, Observation, Parameter, TaskSpec, ToolCall, ToolSpec
from environments.task_text import Seen, documented, leaves
from environments.verification.programs import Literal, Reach, called, literals


class Source(StrEnum):
    """Where a value is found, in the order of the look-up.

    ``words``: the user turn of the call. ``earlier_turn``: a user turn before it. ``observation``: the answer to an
    earlier call. ``documentation``: that of the tool, with choices and defaults; all booleans and null. ``state``: the
    start state, or an answer of the setup. ``none``: none of them.
    """

    WORDS = "words"
    EARLIER_TURN = "earlier_turn"
    OBSERVATION = "observation"
    DOCUMENTATION = "documentation"
    STATE = "state"
    NONE = "none"


HIDDEN = frozenset((Source.STATE, Source.NONE))
"""Sources that an agent does not read."""

Place = tuple[int, int]
"""A turn and a call in it, both from 0."""


class SourcedValue(NamedTuple):
    """A value of an argument, and its source.

    ``literal``: it is a literal of the program that the argument is. ``documented``: the documentation states it,
    whatever its source. ``producer`` is the first call whose answer has the value, None where the source is not an
    observation.
    """

    place: Place
    tool: str
    parameter: str
    value: JsonValue
    literal: bool
    documented: bool
    source: Source
    producer: Place | None = None

    def __str__(self) -> str:
        """Return a phrase that names the value and its place, from 1."""
        said = f"{self.value!r:.80} in the {self.parameter}" if self.literal else f"{self.parameter}={self.value!r:.80}"
        return f"turn {self.place[0] + 1}, call {self.place[1] + 1}: {said} of {self.tool}"


class AnsweredTurn(Protocol):
    """The calls of one user turn, with an observation for each (``replay.ReplayedTurn``)."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls, in their order."""
        ...

    @property
    def observations(self) -> tuple[Observation, ...]:
        """The observation of each call."""
        ...


def sources(
    environment: Environment, task: TaskSpec, turns: Sequence[AnsweredTurn], hidden: Seen | None = None
) -> Iterator[SourcedValue]:
    """Yield each argument value of the calls in ``turns`` with its source, in their order.

    ``turns`` are those of a replay of the task's reference, or of a part of it. ``hidden`` has the texts of the start
    state and of the setup's answers; without it a value of the state has the source none. Raises InputError for a tool
    that the environment does not have.
    """
    names = sorted({call.name for turn in turns for call in turn.calls})
    tools = {tool.name: tool for tool in environment.tools(names)}
    programs = _Programs(environment, turns, tools)
    said: list[Seen] = []
    answers: dict[Place, Seen] = {}
    for t, (text, turn) in enumerate(zip(task.turns, turns, strict=True)):
        said.append(Seen([text]))
        for c, (call, observation) in enumerate(zip(turn.calls, turn.observations, strict=True)):
            for name, value, literal, known in _values(call, tools[call.name], programs):
                producer = None
                if said[-1].has(value):
                    source = Source.WORDS
                elif any(earlier.has(value) for earlier in said):
                    source = Source.EARLIER_TURN
                elif producer := next((place for place, answer in answers.items() if answer.has(value)), None):
                    source = Source.OBSERVATION
                elif known:
                    source = Source.DOCUMENTATION
                else:
                    source = Source.STATE if hidden is not None and hidden.has(value) else Source.NONE
                yield SourcedValue((t, c), call.name, name, value, literal, known, source, producer)
            answers[t, c] = Seen([observation.text])


def _values(call: ToolCall, tool: ToolSpec, programs: _Programs) -> Iterator[tuple[str, JsonValue, bool, bool]]:
    """Yield each value of a call: its parameter, itself, whether it is a literal, and whether it is documented."""
    for name, argument in call.arguments.items():
        parameter = tool.parameter(name)
        if _is_program(argument, parameter):
            for one in programs.read(str(argument)):
                yield name, one.value, True, programs.documented(one)
        else:
            for value in leaves(argument):
                yield name, value, False, parameter is not None and documented(value, tool, parameter)


class _Programs:
    """The programs of a replay, read in their order, and the documentation of the tools that they call."""

    def __init__(self, environment: Environment, turns: Sequence[AnsweredTurn], tools: Mapping[str, ToolSpec]) -> None:
        self._environment = environment
        self._reach = Reach()
        self._tools: dict[str, ToolSpec | None] = {}
        arguments = (
            (value, tools[call.name].parameter(name))
            for turn in turns
            for call in turn.calls
            for name, value in call.arguments.items()
        )
        self._groups: set[str] = set()
        with suppress(ValueError):
            names = called("\n".join(str(value) for value, parameter in arguments if _is_program(value, parameter)))
            self._groups = {tool.group for tool in map(self._tool, names) if tool is not None}

    def read(self, code: str) -> tuple[Literal, ...]:
        """Return the literals of the next program, or its whole text where it is not Python."""
        try:
            return literals(code, self._reach)
        except ValueError:
            return (Literal(code),)

    def documented(self, literal: Literal) -> bool:
        """Return whether documentation states the value where the program gives it."""
        if literal.value in self._groups:
            return True
        tool = self._tool(literal.tool) if literal.tool else None
        parameter = tool.parameter(literal.parameter) if tool else None
        return bool(tool and parameter and documented(literal.value, tool, parameter))

    def _tool(self, name: str) -> ToolSpec | None:
        if name not in self._tools:
            try:
                self._tools[name] = self._environment.tools((name,))[0]
            except InputError:
                self._tools[name] = None
        return self._tools[name]


def _is_program(value: JsonValue, parameter: Parameter | None) -> bool:
    return isinstance(value, str) and parameter is not None and parameter.type == "code"
