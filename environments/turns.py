"""What the episodes of all environments share: one world, the user turns of a task, and the outcome of all of them.

``open_for_agent`` plays the user turns in which a task's reference acts in the agent's place (``TaskSpec.played``;
ours). Rollouts, evaluation and the chat validator open their episodes here, so that an agent begins in the same state
and after the same history wherever it acts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from environments.base import (
    EnvironmentFault,
    Episode,
    InputError,
    Observation,
    Outcome,
    TaskSpec,
    ToolCall,
    TurnOutcome,
    UserTurn,
)


class FailureNames(NamedTuple):
    """An environment's names for failures of a turn: of its state, of its response, and that it was not reached."""

    state: str
    response: str
    not_reached: str


def outcome_of_turns(
    turns: Sequence[TurnOutcome], reached: int, names: FailureNames, partial: float | None = None
) -> Outcome:
    """Return the outcome of an episode whose agent was shown ``reached`` of its turns: success when no check fails.

    The failure is that of the first turn with a failed check, its state before its response; without one, that of the
    first turn that was not reached.
    """
    checked = tuple(turns)
    for index, turn in enumerate(checked):
        if turn.state is False or turn.response is False:
            failure = names.state if turn.state is False else names.response
            return Outcome(success=False, turns=checked, failure=failure, failed_turn=index, partial=partial)
    if reached < len(checked):
        return Outcome(success=False, turns=checked, failure=names.not_reached, failed_turn=reached, partial=partial)
    return Outcome(success=True, turns=checked, partial=partial)


Played = TypeVar("Played")


class Turns(Generic[Played]):
    """The user turns of one attempt at ``task``: begun once, ended one after the other, and measured.

    ``callable`` are the tools that the task has in any of its turns, those withheld at first included; ``shown`` are
    those on offer in the current turn. ``steps``, ``calls`` and ``malformed`` count actions of the current turn; the
    episode adds to them. ``measure`` returns what the episode records of a turn, as the world is now, by the turn's
    index, calls and malformed actions.
    """

    def __init__(self, task: TaskSpec, measure: Callable[[int, int, int], Played]) -> None:
        withheld = {name for names in task.withheld.values() for name in names}
        self.callable = withheld.union(task.tools)
        self.index = -1
        self.over = False
        self.steps = self.calls = self.malformed = 0
        self._measure = measure
        self._ended: list[Played] = []
        self._task = task
        self.shown = tuple(name for name in task.tools if name not in withheld)

    def expect_new(self) -> None:
        """Raise RuntimeError when the first turn was opened already."""
        if self.index >= 0:
            raise RuntimeError("the episode has already started: open another one")

    def first(self) -> UserTurn:
        """Open the first turn."""
        self.expect_new()
        return self._open()

    def end(self) -> UserTurn | None:
        """End the open turn and return the next one, or None when the episode is over."""
        self.expect_open()
        if self.index + 1 == len(self._task.turns):
            self.over = True
            return None
        self._ended.append(self._current())
        self.steps = self.calls = self.malformed = 0
        return self._open()

    def played(self) -> tuple[Played, ...]:
        """Return what each turn of the task came to: an ended one at its end, any other as the world is now.

        A turn that was not reached has no action.
        """
        self.expect_started()
        rest = range(self.index + 1, len(self._task.turns))
        return (*self._ended, self._current(), *(self._measure(turn, 0, 0) for turn in rest))

    @property
    def reached(self) -> int:
        """How many turns the agent was shown."""
        return self.index + 1

    def _current(self) -> Played:
        return self._measure(self.index, self.calls, self.malformed)

    def expect_started(self) -> None:
        """Raise RuntimeError before ``start``."""
        if self.index < 0:
            raise RuntimeError("the episode has not started: call start() first")

    def expect_open(self) -> None:
        """Raise RuntimeError unless a turn is open."""
        self.expect_started()
        if self.over:
            raise RuntimeError("the episode is over: its last turn has ended")

    def _open(self) -> UserTurn:
        self.index += 1
        self.shown += self._task.withheld.get(self.index, ())
        return UserTurn(index=self.index, text=self._task.turns[self.index], tools=self.shown)


class EpisodeWorld(Protocol):
    """What an episode acts on: simulators, an instance of a class, a server's state; for one thread at a time."""

    def run(self, call: ToolCall) -> Any:  # noqa: ANN401 - an Observation, or what an environment makes one of
        """Execute one call; wrong arguments are answered, not raised."""
        ...

    def state(self) -> str:
        """Return the canonical text of the state after the last call."""
        ...

    def close(self) -> None:
        """Release what the world holds. Idempotent."""
        ...


World = TypeVar("World", bound=EpisodeWorld)


class WorldEpisode(Generic[World, Played]):
    """The part of an ``Episode`` that environments share: one world, and the user turns of ``task``. Single use.

    Subclasses execute actions, measure turns (``Turns``) and compute the outcome. Methods that are called out of order
    raise RuntimeError.
    """

    def __init__(self, task: TaskSpec, world: World) -> None:
        self._task = task
        self._world: World | None = world
        self._turns = Turns(task, self._measured)

    def start(self) -> UserTurn:
        """Run the setup and return the first user turn."""
        self._turns.expect_new()
        for call in self._task.setup:
            self._live().run(call)
        return self._turns.first()

    def end_turn(self) -> UserTurn | None:
        """End the turn and return the next one, or None when the episode is over."""
        return self._turns.end()

    def state(self) -> str:
        """Return the canonical text of the world's state."""
        return self._live().state()

    def close(self) -> None:
        """Close the world. Idempotent."""
        if self._world is not None:
            self._world.close()
        self._world = None

    def _measured(self, turn: int, calls: int, malformed: int) -> Played:
        raise NotImplementedError

    def _live(self) -> World:
        if self._world is None:
            raise RuntimeError("the episode is closed: open another one")
        return self._world


def check_turns(task: TaskSpec, name: str, last: int) -> None:
    """Raise InputError for a task of another environment than ``name``, without turns, or with tools withheld too long.

    ``last`` is the last turn, from 0, at which withheld tools may become available.
    """
    if task.environment != name:
        raise InputError(f"a task of the environment {task.environment!r} was given to {name!r}: open it there")
    if not task.turns:
        raise InputError("the task has no user turn: give one at least")
    for turn in task.withheld:
        if not 0 <= turn <= last:
            raise InputError(f"tools are withheld until turn {turn}, but the task has {len(task.turns)} turns")


REFERENCES_KEPT = 512


@dataclass(frozen=True)
class _Reference:
    """A task by what its reference depends on."""

    key: str
    task: TaskSpec = field(compare=False)


class References(Generic[Played]):
    """What the references of tasks come to; the last ``REFERENCES_KEPT`` are cached. May be used from several threads.

    ``replay`` plays the reference of a task, which depends on these ``fields`` of the task alone.
    """

    def __init__(self, replay: Callable[[TaskSpec], Played], *fields: str) -> None:
        self._fields = frozenset(fields)
        self._cached = lru_cache(REFERENCES_KEPT)(lambda reference: replay(reference.task))

    def of(self, task: TaskSpec) -> Played:
        """Return what the reference of ``task`` comes to. Raises what ``replay`` raises."""
        return self._cached(_Reference(task.model_dump_json(include=set(self._fields)), task))


class GivenTurn(NamedTuple):
    """A user turn in which the reference acted: as it was opened, and its calls with their observations."""

    opened: UserTurn
    steps: tuple[tuple[ToolCall, Observation], ...]


def open_for_agent(episode: Episode, task: TaskSpec) -> tuple[tuple[GivenTurn, ...], UserTurn]:
    """Start ``episode``, play the first ``task.played`` turns; return them and the turn that the agent begins with.

    Calls are those of the reference as it is, whatever is answered. Raises EnvironmentFault when the environment failed
    or ended the episode before the agent's turn.
    """
    turn = episode.start()
    played = []
    for calls in task.reference[: task.played]:
        played.append(GivenTurn(turn, tuple((call, episode.step(call)) for call in calls)))
        following = episode.end_turn()
        if following is None:
            raise EnvironmentFault(f"the episode ended in turn {turn.index + 1}, before the agent's first")
        turn = following
    return tuple(played), turn


def agent_calls(task: TaskSpec) -> int:
    """Count the calls of the reference in the turns that the agent plays."""
    return sum(map(len, task.reference[task.played :]))


def lengths_words(tasks: Iterable[TaskSpec]) -> str:
    """Return how many tasks have how many calls, as in ``3 of 1 calls, 5 of 2 calls``."""
    lengths = Counter(map(agent_calls, tasks))
    return ", ".join(f"{lengths[length]} of {length} calls" for length in sorted(lengths))


def turn_id(task_id: str, turn: int) -> str:
    """Return the id of user turn ``turn``, from 0, of the task ``task_id`` as a task of its own."""
    return f"{task_id}-turn-{turn + 1}"


def behind(task: TaskSpec, turn: int) -> TaskSpec:
    """Return ``task`` cut after user turn ``turn``, from 0, with the reference in the agent's place before it.

    Tools that become available only later stay withheld to the end. Raises IndexError for a turn that is not there.
    """
    if not 0 <= turn < len(task.turns):
        raise IndexError(f"the task has {len(task.turns)} turns, no turn {turn}")
    withheld: dict[int, tuple[str, ...]] = {}
    for revealed, names in task.withheld.items():
        at = min(revealed, turn + 1)
        withheld[at] = (*withheld.get(at, ()), *names)
    kept = {"turns": task.turns[: turn + 1], "reference": task.reference[: turn + 1]}
    return task.model_copy(update=kept | {"withheld": withheld, "played": turn})
