"""An episode's user turns: which is open, which tools it has, what is out of order, and the verdict on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from environments.base import Outcome, TaskSpec, TurnOutcome, UserTurn


class FailureNames(NamedTuple):
    """What an environment calls a turn's failures: of its state, of its response, and that it was not reached."""

    state: str
    response: str
    not_reached: str


def verdict(turns: Sequence[TurnOutcome], reached: int, names: FailureNames, partial: float | None = None) -> Outcome:
    """The outcome of an episode whose agent was shown ``reached`` of its turns: success when no check fails.

    The first turn with a failed check is to blame, its state before its response; without one, the first turn that was
    not reached.
    """
    checked = tuple(turns)
    for index, turn in enumerate(checked):
        if turn.state is False or turn.response is False:
            failure = names.state if turn.state is False else names.response
            return Outcome(success=False, turns=checked, failure=failure, failed_turn=index, partial=partial)
    if reached < len(checked):
        return Outcome(success=False, turns=checked, failure=names.not_reached, failed_turn=reached, partial=partial)
    return Outcome(success=True, turns=checked, partial=partial)


class Turns:
    """The user turns of one attempt at ``task``: begun once, ended one after the other.

    ``callable`` are the tools that the task has in any of its turns, those withheld at first included.
    """

    def __init__(self, task: TaskSpec) -> None:
        withheld = {name for names in task.withheld.values() for name in names}
        self.callable = withheld.union(task.tools)
        self.index = -1
        self.over = False
        self._task = task
        self._shown = tuple(name for name in task.tools if name not in withheld)

    def expect_new(self) -> None:
        """Raises RuntimeError when the first turn was opened already."""
        if self.index >= 0:
            raise RuntimeError("the episode has already started: open another one")

    def first(self) -> UserTurn:
        """Open the first turn."""
        self.expect_new()
        return self._open()

    def end(self) -> UserTurn | None:
        """End the open turn: the next one, or None when the episode is over."""
        self.expect_open()
        if self.index + 1 == len(self._task.turns):
            self.over = True
            return None
        return self._open()

    def expect_started(self) -> None:
        """Raises RuntimeError before ``start``."""
        if self.index < 0:
            raise RuntimeError("the episode has not started: call start() first")

    def expect_open(self) -> None:
        """Raises RuntimeError unless a turn is open."""
        self.expect_started()
        if self.over:
            raise RuntimeError("the episode is over: its last turn has ended")

    def _open(self) -> UserTurn:
        self.index += 1
        self._shown += self._task.withheld.get(self.index, ())
        return UserTurn(index=self.index, text=self._task.turns[self.index], tools=self._shown)
