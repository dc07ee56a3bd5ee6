"""Plays the user turns in which a task's reference acts in the agent's place (``TaskSpec.played``; ours).

Rollouts, evaluation and the chat validator open their episodes here, so that an agent begins in the same state and
after the same history wherever it acts.
"""

from __future__ import annotations

from typing import NamedTuple

from environments.base import EnvironmentFault, Episode, Observation, TaskSpec, ToolCall, UserTurn


class PlayedTurn(NamedTuple):
    """A user turn in which the reference acted: as it was opened, and its calls with their observations."""

    opened: UserTurn
    steps: tuple[tuple[ToolCall, Observation], ...]


def open_for_agent(episode: Episode, task: TaskSpec) -> tuple[tuple[PlayedTurn, ...], UserTurn]:
    """Start ``episode``, play the first ``task.played`` turns; return them and the turn that the agent begins with.

    Calls are those of the reference as it is, whatever is answered. Raises EnvironmentFault when the environment failed
    or ended the episode before the agent's turn.
    """
    turn = episode.start()
    played = []
    for calls in task.reference[: task.played]:
        played.append(PlayedTurn(turn, tuple((call, episode.step(call)) for call in calls)))
        following = episode.end_turn()
        if following is None:
            raise EnvironmentFault(f"the episode ended in turn {turn.index + 1}, before the agent's first")
        turn = following
    return tuple(played), turn


def agent_calls(task: TaskSpec) -> int:
    """Count the calls of the reference in the turns that the agent plays."""
    return sum(map(len, task.reference[task.played :]))
