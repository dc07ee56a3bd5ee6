"""Check a reference by replays: arguments by their documentation, values that come from nowhere, superfluous calls.

The official response check asks for as many results as the reference has, so inside one turn every omitted call fails
it, useful or not. A call is therefore superfluous (our rule) when the reference without it

- succeeds by the official rule, also where that counts results of the setup, or
- ends every turn in the same state, returns everything that the full reference had returned by the end of that
  turn, and makes no remaining call fail,

and every value in a remaining call is still grounded (``grounding``): where the user turn does not ask for the results
of reads, later calls may need their values.

A call's information is the text of its result, unless the environment marks it empty or it is by its value. A read
adds its result once; a second read of the same text adds nothing, and neither does a change that is overwritten before
the turn ends and has an empty result. Conversely, whenever a call is not superfluous, the trajectory without it fails
the official check.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import accumulate

from pydantic import JsonValue

from environments.answers import is_empty
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
from environments.json_schema import schema_problem, takes
from environments.task_text import written
from environments.verification.provenance import HIDDEN, sources

Calls = tuple[tuple[ToolCall, ...], ...]


def argument_problem(call: ToolCall, tool: ToolSpec) -> str | None:
    """Return a phrase for the first error in the arguments of ``call`` by the documentation of ``tool``, else None.

    A whole number is accepted where a float is documented, and a whole float where an integer is. Null is accepted for
    an optional parameter whose default is null. A tool with a JSON Schema is checked against that instead: it may take
    arguments that it does not name.
    """
    for name, value in call.arguments.items():
        parameter = tool.parameter(name)
        if parameter is None and not takes(tool.json_schema, name):
            return f"{call.name} has no parameter {name!r}"
        if (
            parameter is None
            or tool.json_schema
            or (value is None and not parameter.required and parameter.default is None)
        ):
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
        written(call.arguments, MAX_DEPTH, MAX_CHARACTERS)
    except ValueError as error:
        return f"the arguments are {error}"
    return None


def _value_problem(value: JsonValue, parameter: Parameter) -> str | None:
    if not _has_type(value, parameter.type):
        return f"is not of type {parameter.type}"
    items = value if isinstance(value, list) else [value]
    for item in items if isinstance(value, list) and parameter.items else ():
        if not _has_type(item, str(parameter.items)):
            return f"has the item {item!r:.80}, which is not of type {parameter.items}"
    if parameter.choices and not all(item in parameter.choices for item in items):
        return f"is outside the documented choices {list(parameter.choices)}"
    return None


def _has_type(value: JsonValue, name: str) -> bool:
    if name in ("integer", "float"):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            return False  # infinity and NaN are not JSON
        return name == "float" or float(value).is_integer()
    kinds: dict[str, type] = {"string": str, "boolean": bool, "array": list, "dict": dict, "code": str}
    return isinstance(value, kinds.get(name, object))


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
        ends = accumulate(self.turns, lambda before, turn: (before, *turn.states)[-1], initial=self.initial)
        return tuple(ends)[1:]

    def errors(self) -> tuple[tuple[int, int], ...]:
        """Return (turn, call), from 0, of every call that failed or was malformed."""
        found = ((t, c, one) for t, turn in enumerate(self.turns) for c, one in enumerate(turn.observations))
        return tuple((t, c) for t, c, one in found if one.failed)

    def results(self, turn: int) -> set[str]:
        """Return the results of calls that did not fail, up to the end of the turn."""
        return {one.text for one in self._until(turn) if not one.failed}

    def informative(self, turn: int) -> set[str]:
        """Return the informative results up to the end of the turn."""
        return {one.text for one in self._until(turn) if is_informative(one)}

    def _until(self, turn: int) -> list[Observation]:
        return [observation for played in self.turns[: turn + 1] for observation in played.observations]


def is_informative(observation: Observation) -> bool:
    """Return whether the result is informative: not failed, not of status empty, and not ``answers.is_empty``."""
    return observation.status is ObservationStatus.OK and not is_empty(observation.text)


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
    return attempt(environment, task, calls).success or _solves_after_setup_turns(environment, task, calls)


def _solves_after_setup_turns(environment: Environment, task: TaskSpec, calls: Sequence[Sequence[ToolCall]]) -> bool:
    whole = (*((call,) for call in task.setup), *calls)
    return bool(task.setup) and attempt(environment, setup_as_turns(task), whole).success


def ungrounded(environment: Environment, task: TaskSpec, played: Replay) -> tuple[str, ...]:
    """Return a phrase for each ungrounded argument value of the calls in ``played``, in their order.

    ``played`` is a replay of the task's reference, or of a part of it. The rule is that of ``environments.task_text``.
    Raises InputError for a tool that the environment does not have.
    """
    return tuple(str(one) for one in sources(environment, task, played.turns) if one.source in HIDDEN)


class PlayedReference:
    """A task's reference in replays: whole (``full``), and without one of its calls. Each is made once."""

    def __init__(self, environment: Environment, task: TaskSpec, full: Replay) -> None:
        self.environment = environment
        self.task = task
        self.full = full
        self._rests: dict[tuple[int, int], Replay] = {}

    def rest(self, turn: int, call: int) -> Replay:
        """Return a replay without call ``call`` of turn ``turn``, both counted from 0. Raises like ``replay``."""
        if (turn, call) not in self._rests:
            self._rests[turn, call] = replay(self.environment, self.task, _without(self.task.reference, turn, call))
        return self._rests[turn, call]

    def superfluous(self, turn: int, call: int) -> bool:
        """Return whether the reference has the same effects and results without a call; both are counted from 0."""
        full = self.full
        try:
            rest = self.rest(turn, call)
            solved = rest.outcome.success or _solves_after_setup_turns(
                self.environment, self.task, [played.calls for played in rest.turns]
            )
        except RecursionError:
            return False
        if not solved and (rest.errors() or rest.end_states() != full.end_states()):
            return False
        if not solved and not all(full.informative(t) <= rest.results(t) for t in range(len(full.turns))):
            return False
        return self.is_grounded(rest)

    def is_grounded(self, rest: Replay) -> bool:
        """Return whether every value that is grounded in the whole reference is so in ``rest``, a part of it."""
        missing, anyway = (
            Counter(phrase.partition(": ")[2] for phrase in ungrounded(self.environment, self.task, played))
            for played in (rest, self.full)
        )
        return missing <= anyway


def reduce(environment: Environment, task: TaskSpec) -> TaskSpec | None:
    """Return the task with its reference reduced by replays until no call is superfluous; None if no call remains.

    Use it for paths before their text is written: turns that lose their last call are dropped with their text. Calls
    that fail are dropped first. Of two calls with the same information, the later one is dropped, so that the earlier
    result can ground the calls between. The result is a fixed point: reducing it again changes nothing. Raises
    InputError for a task that the environment cannot open, EnvironmentFault when the environment itself failed.
    """
    current = _drop_empty_turns(task, task.reference)
    while current is not None:
        try:
            played = PlayedReference(environment, current, replay(environment, current))
        except RecursionError:
            return None
        places = [(t, c) for t, turn in enumerate(current.reference) for c in range(len(turn))]
        failed = next(iter(played.full.errors()), None)
        place = failed or next((place for place in reversed(places) if played.superfluous(*place)), None)
        if place is None:
            return current
        current = _drop_empty_turns(current, _without(current.reference, *place))
    return None


def _without(reference: Calls, turn: int, call: int) -> Calls:
    left = reference[turn][:call] + reference[turn][call + 1 :]
    return (*reference[:turn], left, *reference[turn + 1 :])


def _drop_empty_turns(task: TaskSpec, reference: Calls) -> TaskSpec | None:
    kept = [(text, calls) for text, calls in zip(task.turns, reference, strict=True) if calls]
    if not kept:
        return None
    turns, calls = zip(*kept, strict=True)
    return task.model_copy(update={"turns": turns, "reference": calls})
