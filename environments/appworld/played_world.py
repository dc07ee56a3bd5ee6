"""Plays actions in one world: a block of Python, or one API by name, and what the world is like afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from environments.appworld.backend import BackendWorld, WorldLost
from environments.appworld.call_code import call_code
from environments.appworld.engine.protocol import encodable
from environments.appworld.observations import may_change, observe, refused
from environments.appworld.records import Difference, Evaluation, Opening
from environments.base import Observation, ToolCall, ToolSpec

_T = TypeVar("_T")
_LOST = "the code ended this world"
PYTHON = "python"
"""The tool that runs a block of code, its argument ``code``: the benchmark's way to act."""


class PlayedWorld:
    """A world and what was last known of its state; for one thread at a time.

    ``tools`` documents the tools by name. ``reads`` are the APIs that change nothing: after calls of these alone the
    state is not looked at anew.

    A world that agents' code ended or spoilt is ``lost``: the action is answered with an error, further ones are not
    run, and there is no state to compare. Every method raises EnvironmentFault when the world is gone for another
    reason.
    """

    def __init__(self, world: BackendWorld, tools: Mapping[str, ToolSpec], reads: Collection[str]) -> None:
        self._world = world
        self._tools = tools
        self._reads = reads
        self._completed = False
        self.lost: str | None = None
        """Why the world is lost, None while it is not."""
        self._state: str | None = None
        self._difference: Difference | None = None
        self._evaluation: Evaluation | None = None

    @property
    def opening(self) -> Opening:
        """What is known at the start."""
        return self._world.opening

    @property
    def alive(self) -> bool:
        """Whether the world is there."""
        return self._world.alive

    def run(self, call: ToolCall) -> Observation:
        """Run one call of a documented tool.

        Once the task is marked complete nothing runs any more, as in the benchmark. A call by name with a parameter
        that the API does not have is refused here: the apps would ignore the parameter.
        """
        if self.lost is not None:
            return refused(f"{_LOST}, nothing was run")
        if self._completed:
            return refused("the task was marked complete, nothing was run")
        foreign = [name for name in call.arguments if self._tools[call.name].parameter(name) is None]
        if foreign:
            return refused(f"{call.name} has no parameter {foreign[0]!r}")
        if call.name != PYTHON:
            return self._execute(call_code(call.name, call.arguments), one_call=True)
        code = call.arguments.get("code")
        if not isinstance(code, str):
            return refused(f"{PYTHON} needs its argument code, a text")
        return self._execute(code)

    def state(self) -> str:
        """Canonical text of the state, as the world itself says; of a lost one, that it is lost."""
        if self._state is None:
            self._state = self._unless_lost(self._world.state) or json.dumps({"world": "lost"})
        return self._state

    def difference(self) -> Difference | None:
        """What changed since the start, as the judge says, which no agent's code can reach; None of a lost world."""
        if self._difference is None:
            self._difference = self._unless_lost(self._world.judged_diff)
        return self._difference

    def evaluation(self) -> Evaluation | None:
        """The official verdict on the state; None of a lost world."""
        if self._evaluation is None:
            self._evaluation = self._unless_lost(self._world.evaluate)
        return self._evaluation

    def close(self) -> None:
        """End the world. Idempotent."""
        self._world.close()

    def _execute(self, code: str, *, one_call: bool = False) -> Observation:
        if not code.isascii() and encodable(code) != code:
            return refused("the code holds half a surrogate, which no file can hold")
        executed = self._unless_lost(lambda: self._world.execute(code))
        if executed is None:
            self._state = self._difference = self._evaluation = None
            return refused(f"{_LOST}: {self.lost}")
        if may_change(executed, self._reads):
            self._state = self._difference = self._evaluation = None
        self._completed = executed.completed
        return observe(executed, self._reads, one_call=one_call)

    def _unless_lost(self, answer: Callable[[], _T]) -> _T | None:
        if self.lost is None:
            try:
                return answer()
            except WorldLost as error:
                self.lost = str(error)
        return None
