"""Replay calls in a fresh episode, for verification, reduction and grounding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from environments.base import (
    Environment,
    Observation,
    ObservationStatus,
    Outcome,
    Record,
    StartState,
    TaskSpec,
    ToolCall,
)

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
