"""Remembers what calls by name did from a start, so that a world is opened for what was never done before.

Worlds are deterministic: time stands still and the seed is fixed, which verification shows for each reference with
fresh worlds. What a sequence of changing calls leads to, and what reads answer there, is therefore kept in a tree, one
for a start, and an episode walks it. Its world opens when something is asked that the tree does not hold, and does the
earlier changes first. Code is never remembered, and neither is what depends on a task's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from environments.appworld.played_world import PYTHON, PlayedWorld
from environments.appworld.records import Difference, Evaluation, Opening
from environments.base import Observation, ToolCall

_UNREMEMBERED = (PYTHON, "supervisor.show_active_task")
MOST_CALLS = 20_000
"""Calls that are kept; beyond them everything is forgotten and kept anew (an answer has 8,000 characters at most)."""


@dataclass(slots=True)
class _Node:
    """What is known after a sequence of changing calls; ``observation`` is the last one's, None at the start."""

    observation: Observation | None = None
    reads: dict[str, Observation] = field(default_factory=dict)
    state: str | None = None
    difference: Difference | None = None
    after: dict[str, _Node] = field(default_factory=dict)


class WorldRecord:
    """What was done from every start, by task id. May be shared by threads: at worst something is kept twice."""

    def __init__(self) -> None:
        self._starts: dict[str, _Node] = {}
        self._openings: dict[str, Opening] = {}
        self._calls = 0

    def start(self, task_id: str) -> _Node:
        """The tree of a start."""
        return self._starts.setdefault(task_id, _Node())

    def opening(self, task_id: str, tell: Callable[[], Opening]) -> Opening:
        """What is known at a start, told once; it has the words of the first task that asked."""
        if task_id not in self._openings:
            self._openings[task_id] = tell()
        return self._openings[task_id]

    def keep(self, before: _Node, key: str, observation: Observation, *, reads: bool) -> _Node:
        """Remember one more call; where one stands after it."""
        if self._calls >= MOST_CALLS:
            self._starts.clear()
            self._calls = 0
        self._calls += 1
        if reads:
            before.reads.setdefault(key, observation)
            return before
        return before.after.setdefault(key, _Node(observation))


class RecordedWorld:
    """A world like ``PlayedWorld`` that opens when something new is asked; for one thread at a time.

    Args:
        record: what is known.
        task_id: the start.
        open_world: opens the world.
        reads: names of the APIs that change nothing.
        recalls: whether the record answers; otherwise everything is executed, and kept in the record.

    Every method but ``close`` raises EnvironmentFault when the world is needed and gone or cannot be opened.
    """

    def __init__(
        self,
        record: WorldRecord,
        task_id: str,
        open_world: Callable[[], PlayedWorld],
        reads: Collection[str],
        *,
        recalls: bool,
    ) -> None:
        self._record = record
        self._task_id = task_id
        self._open_world = open_world
        self._reads = reads
        self._recalls = recalls
        self._world: PlayedWorld | None = None
        self._closed = False
        self._due: list[ToolCall] = []
        self._node: _Node | None = record.start(task_id)

    @property
    def opening(self) -> Opening:
        """What is known at the start."""
        return self._record.opening(self._task_id, lambda: self._current().opening)

    def run(self, call: ToolCall) -> Observation:
        """Run one call of a documented tool, or say what it did before."""
        if self._node is None or call.name in _UNREMEMBERED:
            if call.name not in self._reads:
                self._node = None
            return self._current().run(call)
        key, reads = call.model_dump_json(), call.name in self._reads
        known = self._known(self._node, key, reads=reads) if self._recalls else None
        if known is not None:
            if not reads:
                self._due.append(call)
                self._node = self._node.after[key]
            return known
        observation = self._current().run(call)
        self._node = self._record.keep(self._node, key, observation, reads=reads)
        return observation

    def state(self) -> str:
        """Canonical text of the state."""
        node = self._node
        if node is not None and node.state is not None and self._recalls:
            return node.state
        state = self._current().state()
        if node is not None:
            node.state = state
        return state

    def difference(self) -> Difference:
        """What changed since the start."""
        node = self._node
        if node is not None and node.difference is not None and self._recalls:
            return node.difference
        difference = self._current().difference()
        if node is not None:
            node.difference = difference
        return difference

    def evaluation(self) -> Evaluation:
        """The official verdict on the state, which is never remembered."""
        return self._current().evaluation()

    def close(self) -> None:
        """End the world if there is one. Idempotent."""
        self._closed = True
        if self._world is not None:
            self._world.close()
            self._world = None

    @staticmethod
    def _known(node: _Node, key: str, *, reads: bool) -> Observation | None:
        if reads:
            return node.reads.get(key)
        after = node.after.get(key)
        return None if after is None else after.observation

    def _current(self) -> PlayedWorld:
        """The world, with every change made in it that was made so far."""
        if self._closed:
            raise RuntimeError("the world is closed: open another one")
        if self._world is None:
            self._world = self._open_world()
        for call in self._due:
            self._world.run(call)
        self._due.clear()
        return self._world
