"""Replays of calls in a fresh episode: what verification, reduction and grounding look at."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from environments.base import Environment, Observation, ObservationStatus, Outcome, Record, TaskSpec, ToolCall

_NOTHING = frozenset(("", "none", "null", "{}", "[]", '""', "''"))


class ReplayedTurn(Record):
    """What the calls of one user turn did: an observation and the state text after it for each call, in order."""

    calls: tuple[ToolCall, ...]
    observations: tuple[Observation, ...]
    states: tuple[str, ...]


class Replay(Record):
    """One complete replay. ``initial`` is the state text after the setup, before the first call."""

    initial: str
    turns: tuple[ReplayedTurn, ...]
    outcome: Outcome

    def end_states(self) -> tuple[str, ...]:
        """The state text at the end of each turn."""
        ends: list[str] = []
        for turn in self.turns:
            before = ends[-1] if ends else self.initial
            ends.append(turn.states[-1] if turn.states else before)
        return tuple(ends)

    def errors(self) -> tuple[tuple[int, int], ...]:
        """(turn, call) of every call that the environment refused or did not take for a call."""
        return tuple(
            (t, c)
            for t, turn in enumerate(self.turns)
            for c, observation in enumerate(turn.observations)
            if observation.failed
        )


def is_informative(observation: Observation) -> bool:
    """Return whether the result is informative: no failure, not empty by the environment's word, not null or blank."""
    return observation.status is ObservationStatus.OK and observation.text.strip().casefold() not in _NOTHING


def replay(environment: Environment, task: TaskSpec, calls: Sequence[Sequence[ToolCall]] | None = None) -> Replay:
    """Play ``calls`` (one sequence a turn; by default the task's reference) in a fresh episode, to its end.

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


def attempt(environment: Environment, task: TaskSpec, calls: Sequence[Sequence[ToolCall]]) -> Outcome:
    """The outcome of playing ``calls`` (one sequence a turn) in a fresh episode; cheaper than a replay.

    Raises what ``replay`` raises.
    """
    with closing(environment.open(task)) as episode:
        episode.start()
        for sequence in calls:
            for call in sequence:
                episode.step(call)
            episode.end_turn()
        return episode.outcome()


def setup_as_turns(task: TaskSpec) -> TaskSpec:
    """The task with each setup call as a user turn of its own, in front of the others.

    An episode hides what the setup answers. Official tools know no setup: who replays a task with them plays it as
    turns, whose results then count like any other.
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
    """Whether ``calls`` (one sequence a turn) solve the task, with the setup hidden or played as turns.

    Raises what ``replay`` raises.
    """
    if attempt(environment, task, calls).success:
        return True
    if not task.setup:
        return False
    return attempt(environment, setup_as_turns(task), (*((call,) for call in task.setup), *calls)).success
