"""The order of an episode's user turns: which is open, which tools it has, and what may not be done out of order."""

from __future__ import annotations

from environments.base import TaskSpec, UserTurn


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
