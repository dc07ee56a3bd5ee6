"""Implement the environment of a plain Python class: open episodes on instances of it and list its start states.

An episode is one attempt at one task; its state and answers are compared with the reference's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from pydantic import JsonValue, ValidationError

from environments.answers import compared
from environments.base import (
    Action,
    Environment,
    InputError,
    MalformedCall,
    Observation,
    ObservationStatus,
    Outcome,
    StartState,
    TaskSpec,
    ToolCall,
    ToolSpec,
    TurnOutcome,
)
from environments.python_class.world import CALL_SECONDS, ClassWorld, ToolRefused, documented_tools, unknown_tool
from environments.turns import EpisodeWorld, FailureNames, WorldEpisode, check_turns, outcome_of_turns
from environments.verification.replay import is_informative

STATE_MISMATCH = "state_mismatch"
RESPONSE_MISMATCH = "response_mismatch"
NOT_REACHED = "turn_not_reached"
_FAILURES = FailureNames(STATE_MISMATCH, RESPONSE_MISMATCH, NOT_REACHED)


class _Played(NamedTuple):
    """A turn: calls made, malformed actions, the state after it, and all results by then."""

    calls: int
    malformed: int
    state: str
    received: frozenset[str]


class _Wanted(NamedTuple):
    """The reference's final state of a turn, its informative results, and whether one of its calls fails.

    ``idle`` is the state, and ``given`` are the results, that an agent without actions has then.
    """

    state: str
    informative: frozenset[str]
    error: bool
    idle: str
    given: frozenset[str]


class PythonEpisode(WorldEpisode[EpisodeWorld, _Played]):
    """Implements ``environments.base.Episode``; single use, and used by one thread at a time.

    The rule (BFCL's, our choice for own environments): after every user turn that the reference acts in, the state is
    the reference's, and the agent has received every result that the reference received in that turn, in any order and
    among other answers; of both, floats are compared as ``answers.rounded``. Every turn has to be reached.
    ``Outcome.partial`` counts the checks of state and response that an agent without actions fails. A withheld tool is
    unknown before its turn. Methods that are called out of order raise RuntimeError.

    Args:
        task: the task.
        make: makes the world that the agent acts in.
        make_for_reference: makes the one that the reference is played in, where that may be answered from a cache.
    """

    def __init__(
        self,
        task: TaskSpec,
        make: Callable[[], EpisodeWorld],
        make_for_reference: Callable[[], EpisodeWorld] | None = None,
    ) -> None:
        super().__init__(task, make())
        self._make_for_reference = make_for_reference or make
        self._received: set[str] = set()
        self._wanted: tuple[_Wanted, ...] | None = None

    def step(self, action: Action) -> Observation:
        """Execute one action in the current turn; a malformed one is answered and counted."""
        self._turns.expect_open()
        if isinstance(action, MalformedCall):
            self._turns.malformed += 1
            return Observation(text=f"malformed call: {action.reason}", status=ObservationStatus.MALFORMED)
        self._turns.calls += 1
        known = action.name in self._turns.shown
        observation: Observation = self._live().run(action) if known else unknown_tool(action.name)
        if not observation.failed:
            self._received.add(compared(observation.text))
        return observation

    def outcome(self) -> Outcome:
        """Return the outcome so far; a turn that was not reached is compared with the current state."""
        if self._wanted is None:
            self._wanted = self._reference()
        turns = [
            self._checked(*pair) for pair in zip(self._turns.played(), self._wanted, self._task.reference, strict=True)
        ]
        earned = [passed for pair in zip(turns, self._wanted, strict=True) for passed in _earned(*pair)]
        partial = sum(earned) / len(earned) if earned else 0.0
        return outcome_of_turns(turns, self._turns.reached, _FAILURES, partial)

    def _measured(self, turn: int, calls: int, malformed: int) -> _Played:
        return _Played(calls, malformed, self.state(), frozenset(self._received))

    def _checked(self, played: _Played, wanted: _Wanted, calls: Sequence[ToolCall]) -> TurnOutcome:
        return TurnOutcome(
            calls=played.calls,
            malformed=played.malformed,
            reference_calls=len(calls),
            reference_error=wanted.error,
            state=played.state == wanted.state if calls else None,
            response=wanted.informative <= played.received if calls else None,
        )

    def _reference(self) -> tuple[_Wanted, ...]:
        with closing(self._make_for_reference()) as world:
            for call in self._task.setup:
                world.run(call)
            idle, given = world.state(), frozenset[str]()
            turns = []
            for turn, calls in enumerate(self._task.reference):
                observations = [world.run(call) for call in calls]
                informative = frozenset(compared(one.text) for one in observations if is_informative(one))
                error = any(observation.failed for observation in observations)
                if turn < self._task.played:
                    idle, given = (
                        world.state(),
                        given.union(compared(one.text) for one in observations if not one.failed),
                    )
                turns.append(_Wanted(world.state(), informative, error, idle, given))
            return tuple(turns)


def _earned(turn: TurnOutcome, wanted: _Wanted) -> Iterator[bool]:
    """Yield, for each check of the turn that an agent without actions fails, whether it passes."""
    if turn.state is not None and wanted.state != wanted.idle:
        yield turn.state
    if turn.response is not None and not wanted.informative <= wanted.given:
        yield turn.response


__all__ = ["PythonEnvironment", "ToolRefused"]

LONGEST_CALL = 3600.0
_NAME = re.compile(r"[A-Za-z][\w-]*")


def check_own(task: TaskSpec, environment: Environment, only_class: str) -> None:
    """Raise InputError for a task of another environment, without turns, or with unknown classes or tools."""
    name = environment.name
    check_turns(task, name, len(task.turns) - 1)
    if task.classes != (only_class,):
        raise InputError(f"{name} has the class {only_class}, not {', '.join(task.classes)}")
    if task.long_context:
        raise InputError(f"{name} has no long-context tasks: leave long_context out")
    environment.tools((*task.tools, *(tool for names in task.withheld.values() for tool in names)))


class ToolEnvironment:
    """Documentation and start states of an environment whose tools are all of one class, ``group``.

    ``group`` is also the key of an initial state. Subclasses open episodes.
    """

    name: str
    group: str

    def __init__(self, tools: Mapping[str, ToolSpec]) -> None:
        self._tools = tools
        self._starts: tuple[StartState, ...] = ()

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the documentation of the named tools, in the given order. Raises InputError for an unknown one."""
        for name in names:
            if name not in self._tools:
                raise InputError(f"{self.name} has no tool {name!r}: use some of {', '.join(self._tools)}")
        return tuple(self._tools[name] for name in names)

    def starts(self) -> tuple[StartState, ...]:
        """Return the start states that exploration begins at."""
        return self._starts

    def start_state(self, key: str | int, start: object, tools: Iterable[str] | None = None) -> StartState:
        """Return ``start`` as a start state with the id ``NAME-KEY`` and the named tools, all if None.

        Raises ValidationError where it is not made of JSON values.
        """
        return StartState.model_validate(
            {
                "id": f"{self.name}-{key}",
                "environment": self.name,
                "split": "train",
                "classes": (self.group,),
                "initial_state": {self.group: start},
                "tools": tuple(self._tools if tools is None else tools),
            }
        )


class PythonEnvironment(ToolEnvironment):
    """Implements ``environments.base.Environment`` for a class whose public methods are tools.

    Args:
        name: the environment's name in tasks.
        world: the class. Its public attributes are the state that is compared, so they hold JSON values; its public
            methods are the tools (see ``documented_tools``) and raise ``ToolRefused`` to refuse a call.
        starts: arguments of the class's constructor, once for each state that exploration may start from.
        call_seconds: timeout of one call into the class in seconds, an hour at most (ours).

    A tool must be deterministic and must not keep state outside its instance. Raises InputError for missing
    documentation and for a start that the class's constructor does not accept.
    """

    def __init__(
        self, name: str, world: type, starts: Sequence[Mapping[str, object]], call_seconds: float = CALL_SECONDS
    ) -> None:
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot name an environment: use a letter, then letters, digits, _ and -")
        if not 0 < call_seconds <= LONGEST_CALL:
            raise InputError(
                f"call_seconds of {name} is {call_seconds:g}: give more than 0 and {LONGEST_CALL:g} at most"
            )
        super().__init__(documented_tools(world))
        self.name, self.group = name, world.__name__
        self._call_seconds = call_seconds
        self._world = world
        self._starts = tuple(self._start(position, arguments) for position, arguments in enumerate(starts))

    def open(self, task: TaskSpec) -> PythonEpisode:
        """Open a fresh episode.

        Raises InputError for a task of another environment, or unknown classes, tools or states.
        """
        check_own(task, self, self.group)
        return PythonEpisode(task, lambda: self._make(task.initial_state))

    def _start(self, position: int, arguments: Mapping[str, object]) -> StartState:
        try:
            start = self.start_state(position, dict(arguments))
        except ValidationError as error:
            raise InputError(
                f"start {position} of {self.name} is not made of JSON values: {arguments!r:.200}"
            ) from error
        self._make(start.initial_state)
        return start

    def _make(self, initial_state: Mapping[str, JsonValue]) -> ClassWorld:
        return ClassWorld(self._world, self._tools, initial_state, self._call_seconds)
