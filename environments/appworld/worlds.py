"""Play actions in one world, a block of Python or one API by name, and read the world's state afterwards.

An execution becomes an observation: its text within a limit, its status, the calls that ran (``observe``).

``WorldRecord`` caches the results of calls by name from a start, so that a world is opened only for new calls. Worlds
are deterministic: time is frozen and the seed is fixed, which verification checks for each reference with fresh worlds.
The results of a sequence of changing calls, and of reads after it, are therefore kept for later episodes
(``RecordedWorld``). A request without a result opens a world, which first makes the changes so far. Results of code are
never cached, and neither are results that depend on a task's own words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from pydantic import JsonValue

from environments.appworld.client import World, WorldLost
from environments.appworld.engine.protocol import encodable, parsed
from environments.appworld.records import (
    PYTHON,
    ApiCall,
    Difference,
    Evaluation,
    Executed,
    ExecutionStatus,
    WorldOpening,
)
from environments.base import EnvironmentFault, Observation, ObservationStatus, ToolCall, ToolSpec


def call_code(name: str, arguments: Mapping[str, JsonValue]) -> str:
    """Return the line of Python that calls ``app.api`` with the arguments and prints the answer, as an agent's would.

    Name and parameters are documented ones, which are identifiers.
    """
    return f"print(apis.{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())}))"


MAX_CHARACTERS = 8000
"""Longest text of an observation (ours; the benchmark has no limit). A longer one is cut in the middle."""

MAX_CALLS = 400_000
"""Most characters of an observation's calls as JSON; further calls are left out (ours).

A thousand ordinary calls have fewer. A rollout is one line of a record, and lines have a limit (``memory.jsonl``).
"""

_REFUSAL = "Execution failed: "
_NOTHING_PRINTED = "Execution successful."  # the engine's words for it
_TELLS_NOTHING = frozenset({_NOTHING_PRINTED.casefold(), "", "none", "null", "[]", "{}"})


def observe(executed: Executed, reads: Collection[str], *, one_call: bool = False) -> Observation:
    """Return the observation of ``executed``.

    Args:
        executed: the engine's answer.
        reads: names of the APIs that change nothing.
        one_call: whether it was a call by name: a failure then shows the app's message, as ``{"error": ...}``, instead
            of the traceback of the executed line.

    ``empty`` is an execution that ended, printed nothing (or only null, [] or {}) and did not call an API that can
    change something. ``calls`` are those that the apps accepted, also where the code failed later, up to ``MAX_CALLS``
    characters.
    """
    calls = tuple(_recorded(executed.calls))
    failed = executed.status is not ExecutionStatus.OK
    text = json.dumps({"error": _said(executed.output)}) if one_call and failed else executed.output
    return Observation(text=shortened(text), status=_status(executed, reads), calls=calls)


def accepted(call: ApiCall) -> bool:
    """Return whether the app did what the call asked for."""
    return call.status is not None and 200 <= call.status < 300


def may_change(executed: Executed, reads: Collection[str]) -> bool:
    """Return whether an API other than ``reads`` was called, accepted or not."""
    return any(call.name not in reads for call in executed.calls)


def shortened(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return ``text`` stripped and, beyond ``limit`` characters, with a note in place of its middle."""
    text = text.strip()
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters left out]\n{text[len(text) - tail :]}"


def refused(reason: str) -> Observation:
    """Return the answer to a call that was not run."""
    return Observation(text=f"{_REFUSAL}{reason}", status=ObservationStatus.ERROR)


def _recorded(calls: Iterable[ApiCall]) -> Iterator[ToolCall]:
    left = MAX_CALLS
    for call in filter(accepted, calls):
        left -= len(call.name) + len(json.dumps(call.arguments))
        if left < 0:
            return
        yield ToolCall(name=call.name, arguments=call.arguments)


def _said(traceback: str) -> str:
    """Return the app's message in the traceback of a failure, else the last line."""
    _, raised, said = traceback.rpartition("Exception: ")
    said = said.strip() if raised else "".join(traceback.strip().splitlines()[-1:])
    body = said[said.find("{") :] if "{" in said else ""
    try:
        message = parsed(body)["message"]
    except (ValueError, KeyError, TypeError):
        return said
    return message if isinstance(message, str) else json.dumps(message)


def _status(executed: Executed, reads: Collection[str]) -> ObservationStatus:
    if executed.status is not ExecutionStatus.OK:
        return ObservationStatus.ERROR
    silent = executed.output.strip().casefold() in _TELLS_NOTHING
    return ObservationStatus.EMPTY if silent and not may_change(executed, reads) else ObservationStatus.OK


_T = TypeVar("_T")
_LOST = "the code ended this world"


class PlayedWorld:
    """A world and its last known state; for one thread at a time.

    ``tools`` documents the tools by name. ``reads`` are the APIs that change nothing: after only such calls the state
    is not read again.

    A world that agents' code ended or damaged is ``lost``: the action is answered with an error, further ones are not
    run, and there is no state to compare. Every method raises EnvironmentFault when the world is gone for another
    reason.
    """

    def __init__(self, world: World, tools: Mapping[str, ToolSpec], reads: Collection[str]) -> None:
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
    def opening(self) -> WorldOpening:
        """The supervisor, the time and the apps at the start."""
        return self._world.opening

    def run(self, call: ToolCall) -> Observation:
        """Run one call of a documented tool.

        After the task is marked complete further calls do not run, as in the benchmark. A call by name with a parameter
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
        """Return the canonical text of the state by the world's own report; for a lost world, a text that says so."""
        if self._state is None:
            self._state = self._unless_lost(self._world.state) or json.dumps({"world": "lost"})
        return self._state

    def difference(self) -> Difference | None:
        """Return the evaluator's changes since the start, out of reach of agents' code; None for a lost world."""
        if self._difference is None:
            self._difference = self._unless_lost(self._world.evaluated_diff)
        return self._difference

    def evaluation(self) -> Evaluation | None:
        """Return the official evaluation of the state; None for a lost world."""
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
        if executed is None or may_change(executed, self._reads):
            self._state = self._difference = self._evaluation = None
        if executed is None:
            return refused(f"{_LOST}: {self.lost}")
        self._completed = executed.completed
        return observe(executed, self._reads, one_call=one_call)

    def _unless_lost(self, answer: Callable[[], _T]) -> _T | None:
        if self.lost is None:
            try:
                return answer()
            except WorldLost as error:
                self.lost = str(error)
        return None


_UNREMEMBERED = (PYTHON, "supervisor.show_active_task")
MOST_CALLS = 20_000
"""Calls in the cache; when it is full, it is emptied (an answer has 8,000 characters at most)."""


Place = tuple[str, ...]
"""The start's task id and the changing calls so far, as JSON."""


class WorldRecord:
    """Cache of the results at each place. May be shared by threads: a race only repeats a call.

    ``observations`` are by the place with the call, ``openings`` by the start.
    """

    def __init__(self) -> None:
        self.observations: dict[Place, Observation] = {}
        self.states: dict[Place, str] = {}
        self.differences: dict[Place, Difference | None] = {}
        self.openings: dict[str, WorldOpening] = {}

    def keep(self, place: Place, observation: Observation) -> None:
        """Cache one more call."""
        if len(self.observations) >= MOST_CALLS:
            for results in (self.observations, self.states, self.differences):
                results.clear()
        self.observations.setdefault(place, observation)


class RecordedWorld:
    """A world like ``PlayedWorld`` that opens only for calls that are not cached; for one thread at a time.

    Args:
        record: the cache.
        task_id: the start.
        open_world: opens the world.
        reads: names of the APIs that change nothing.
        recalls: whether the record answers; otherwise every call is executed, and added to the record.

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
        self._changes: list[ToolCall] = []
        self._place: Place = (task_id,)
        self._done = 0  # of the changes, in the world
        self._strayed = False  # a call was made that the record cannot hold

    @property
    def opening(self) -> WorldOpening:
        """The supervisor, the time and the apps at the start."""
        openings = self._record.openings
        if self._task_id not in openings:
            openings[self._task_id] = self._current().opening
        return openings[self._task_id]

    def run(self, call: ToolCall) -> Observation:
        """Run one call of a documented tool, or return its cached result."""
        changes = call.name not in self._reads
        if self._strayed or call.name in _UNREMEMBERED:
            world = self._current()
            self._strayed = self._strayed or changes
            return world.run(call)
        place = (*self._place, json.dumps([call.name, call.arguments]))
        observation = self._record.observations.get(place) if self._recalls else None
        executes = observation is None
        if observation is None:
            world = self._current()
            observation = world.run(call)
            if world.lost is not None:  # which says something of this episode alone
                self._strayed = True
                return observation
            self._record.keep(place, observation)
        if changes:
            self._changes.append(call)
            self._place = place
            self._done += executes
        return observation

    def state(self) -> str:
        """Return the canonical text of the state."""
        return self._known(self._record.states, lambda world: world.state())

    def difference(self) -> Difference | None:
        """Return the changes since the start; None for a lost world."""
        return self._known(self._record.differences, lambda world: world.difference())

    def evaluation(self) -> Evaluation | None:
        """Return the official evaluation of the state, which is never cached; None for a lost world."""
        return self._current().evaluation()

    def close(self) -> None:
        """End the world. Idempotent."""
        self._closed = True
        if self._world is not None:
            self._world.close()

    def _known(self, known: dict[Place, _T], ask: Callable[[PlayedWorld], _T]) -> _T:
        """Return what the world says at the current place, which ``known`` keeps."""
        if self._strayed:
            return ask(self._current())
        if self._place not in known or not self._recalls:
            known[self._place] = self._not_lost(self._current(), ask)
        return known[self._place]

    @staticmethod
    def _not_lost(world: PlayedWorld, ask: Callable[[PlayedWorld], _T]) -> _T:
        """Return the answer of a world that ran only calls by name.

        Raises EnvironmentFault where it is lost, because agents' code was not the cause.
        """
        answer = ask(world)
        if world.lost is not None:
            raise EnvironmentFault(f"a world that ran calls by name alone is lost: {world.lost}")
        return answer

    def _current(self) -> PlayedWorld:
        if self._closed:
            raise RuntimeError("the world is closed: open another one")
        if self._world is None:
            self._world = self._open_world()
        while self._done < len(self._changes):
            again = self._world
            self._not_lost(again, lambda world: world.run(self._changes[self._done]))
            self._done += 1
        return self._world
