"""Check calls against the documentation of their tool, and replay them in a fresh episode."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing

from pydantic import JsonValue

from environments.base import (
    Environment,
    Observation,
    ObservationStatus,
    Outcome,
    Parameter,
    Record,
    StartState,
    TaskSpec,
    ToolCall,
    ToolSpec,
)
from environments.json_schema import measure, schema_problem


def argument_problem(call: ToolCall, tool: ToolSpec) -> str | None:
    """Return a phrase for the first error in the arguments of ``call`` by the documentation of ``tool``, else None.

    A whole number is accepted where a float is documented, and a whole float where an integer is. Null is accepted for
    an optional parameter whose default is null. A tool with a JSON Schema is checked against that instead.
    """
    for name, value in call.arguments.items():
        parameter = tool.parameter(name)
        if parameter is None:
            return f"{call.name} has no parameter {name!r}"
        if tool.json_schema or (value is None and not parameter.required and parameter.default is None):
            continue
        problem = _value_problem(value, parameter)
        if problem:
            return f"{name}={value!r:.80} of {call.name} {problem}"
    missing = [p.name for p in tool.parameters if p.required and p.name not in call.arguments]
    if missing:
        return f"{call.name} requires {missing[0]!r}"
    return schema_problem(call.name, call.arguments, tool.json_schema) if tool.json_schema else None


MAX_CHARACTERS = 20_000
"""Characters of a call's arguments as JSON, at most (our choice)."""

MAX_DEPTH = 20
"""Levels of lists and objects in a call's arguments, at most (our choice)."""


def beyond_caps(call: ToolCall) -> str | None:
    """Return a phrase where the arguments of a call are too deep or too long, or cannot be written, else None."""
    try:
        measure(call.arguments, MAX_DEPTH)
        text = json.dumps(call.arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return f"the arguments are no JSON of at most {MAX_DEPTH} levels"
    return f"the arguments have more than {MAX_CHARACTERS} characters" if len(text) > MAX_CHARACTERS else None


def _value_problem(value: JsonValue, parameter: Parameter) -> str | None:
    if not _has_type(value, parameter.type):
        return f"is not of type {parameter.type}"
    items = value if isinstance(value, list) else [value]
    if isinstance(value, list) and parameter.items:
        for item in items:
            if not _has_type(item, parameter.items):
                return f"has the item {item!r:.80}, which is not of type {parameter.items}"
    if parameter.choices:
        for item in items:
            if item not in parameter.choices:
                return f"is outside the documented choices {list(parameter.choices)}"
    return None


def _has_type(value: JsonValue, name: str) -> bool:
    if name == "integer":
        return _finite(value) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    if name == "float":
        return _finite(value)
    kinds: dict[str, type] = {"string": str, "boolean": bool, "array": list, "dict": dict, "code": str}
    return isinstance(value, kinds.get(name, object))


def _finite(value: JsonValue) -> bool:
    """Return whether the value is a number that a float can hold: infinity and NaN are not JSON."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


_NOTHING = frozenset(("", "none", "null", "{}", "[]", '""', "''"))


class ReplayedTurn(Record):
    """The calls of one user turn with an observation and the state text after it for each call, in order."""

    calls: tuple[ToolCall, ...]
    observations: tuple[Observation, ...]
    states: tuple[str, ...]


class Replay(Record):
    """One complete replay. ``initial`` is the state text after the setup, before the first call."""

    initial: str
    turns: tuple[ReplayedTurn, ...]
    outcome: Outcome

    def end_states(self) -> tuple[str, ...]:
        """Return the state text at the end of each turn."""
        ends: list[str] = []
        for turn in self.turns:
            before = ends[-1] if ends else self.initial
            ends.append(turn.states[-1] if turn.states else before)
        return tuple(ends)

    def errors(self) -> tuple[tuple[int, int], ...]:
        """Return (turn, call), from 0, of every call that failed or was malformed."""
        return tuple(
            (t, c)
            for t, turn in enumerate(self.turns)
            for c, observation in enumerate(turn.observations)
            if observation.failed
        )


def is_informative(observation: Observation) -> bool:
    """Return whether the result is informative: not failed, not of status empty, not null or blank."""
    return observation.status is ObservationStatus.OK and observation.text.strip().casefold() not in _NOTHING


def replay(environment: Environment, task: TaskSpec, calls: Sequence[Sequence[ToolCall]] | None = None) -> Replay:
    """Play ``calls`` (one sequence per turn; by default the task's reference) in a fresh episode, to its end.

    Raises InputError for a task that the environment cannot open, EnvironmentFault when the environment itself
    failed, and RecursionError where the environment cannot write down its state.
    """
    played = task.reference if calls is None else calls
    with closing(environment.open(task)) as episode:
        episode.start()
        initial = episode.state()
        turns = []
        for sequence in played:
            observations, states = [], []
            for call in sequence:
                observations.append(episode.step(call))
                states.append(episode.state())
            turns.append(ReplayedTurn(calls=tuple(sequence), observations=tuple(observations), states=tuple(states)))
            episode.end_turn()
        return Replay(initial=initial, turns=tuple(turns), outcome=episode.outcome())


def bare_task(place: StartState | TaskSpec, turns: int = 1) -> TaskSpec:
    """Return a task that begins where ``place`` does, with user turns that have no text and no reference."""
    return TaskSpec(
        environment=place.environment,
        split=place.split,
        classes=place.classes,
        turns=("",) * turns,
        initial_state=place.initial_state,
        tools=place.tools,
        reference=((),) * turns,
    )


def attempt(environment: Environment, task: TaskSpec, calls: Sequence[Sequence[ToolCall]]) -> Outcome:
    """Return the outcome of playing ``calls`` (one sequence per turn) in a fresh episode; cheaper than a replay.

    Raises the errors of ``replay``.
    """
    with closing(environment.open(task)) as episode:
        episode.start()
        for sequence in calls:
            for call in sequence:
                episode.step(call)
            episode.end_turn()
        return episode.outcome()


def setup_as_turns(task: TaskSpec) -> TaskSpec:
    """Return the task with each setup call as a user turn of its own, in front of the others.

    An episode hides the results of the setup. Official tools have no setup: they replay it as turns, and its results
    then count like any other.
    """
    return task.model_copy(
        update={
            "setup": (),
            "turns": ("",) * len(task.setup) + task.turns,
            "reference": (*((call,) for call in task.setup), *task.reference),
            "tools": tuple(dict.fromkeys((*task.tools, *(call.name for call in task.setup)))),
            "withheld": {},
        }
    )


def succeeds(environment: Environment, task: TaskSpec, calls: Sequence[Sequence[ToolCall]]) -> bool:
    """Return whether ``calls`` (one sequence per turn) solve the task, with the setup hidden or played as turns.

    Raises the errors of ``replay``.
    """
    if attempt(environment, task, calls).success:
        return True
    if not task.setup:
        return False
    return attempt(environment, setup_as_turns(task), (*((call,) for call in task.setup), *calls)).success
