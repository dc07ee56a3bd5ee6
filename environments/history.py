"""Plays the user turns in which a task's reference acts in the agent's place (``TaskSpec.played``; ours).

Rollouts, evaluation and the chat validator open their episodes here, so that an agent begins in the same state and
after the same history wherever it acts.
"""

from __future__ import annotations

from typing import NamedTuple

from environments.base import EnvironmentFault, Episode, Observation, TaskSpec, ToolCall, UserTurn


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
