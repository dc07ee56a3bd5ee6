"""The environment of an OpenEnv server: its tools, its start states, and attempts at tasks on it.

An environment of OpenEnv has tools, or actions of one form. The form then becomes one tool, ``act``, whose parameters
are the action's fields. A start is what ``reset(split, index)`` leads to; environments without tasks get ``index`` as
the seed.

``compare`` says what two attempts are compared by. ``state``: what the server's ``state`` holds beside the id and the
number of steps. ``reward``: the highest reward so far (0 at least) and whether the episode is over, for a server that
shows no state. That is weaker: a call that changes something and earns nothing seems to have no effect, so verification
sees results and rewards alone. With either, an attempt has to receive the results that the reference received.

A task of the server's own has no reference. It is solved when the reward reaches the ``threshold``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import JsonValue, ValidationError

from environments.base import (
    EnvironmentFault,
    InputError,
    Observation,
    ObservationStatus,
    Outcome,
    Record,
    StartState,
    TaskSpec,
    ToolCall,
    ToolSpec,
    TurnOutcome,
)
from environments.openenv.host import Host, Refused, Session, Stepped
from environments.openenv.tools import ACT, read_tools
from environments.python_class.environment import check_own
from environments.python_class.episode import PythonEpisode
from environments.python_class.world import beyond_caps, error_observation, unknown_tool
from environments.verification.replay import argument_problem

NAME = "openenv"
LOW_REWARD = "low_reward"
_AGENTS_ERRORS = ("execution_error", "invalid_args", "tool_not_found")
_BOOKKEEPING = ("episode_id", "step_count")
_REQUESTS = ("user", "prompt", "instruction", "question", "task", "text", "message")
_WANTED = 4096  # tasks whose reference is remembered
Compare = Literal["state", "reward"]


class TaskPlace(Record):
    """Where an episode begins: the arguments of ``reset``."""

    split: str
    index: int


class Rules(Record):
    """What attempts are compared by, and the reward from which a task of the server's own is solved."""

    compare: Compare
    threshold: float


class HostWorld:
    """One episode on the server: ``environments.python_class.episode.EpisodeWorld``.

    The session may be taken away between two calls. The next call begins a new one and repeats the earlier actions.
    """

    def __init__(self, host: Host, place: TaskPlace, tools: Mapping[str, ToolSpec], compare: Compare) -> None:
        self._host = host
        self._place = place
        self._tools = tools
        self._compare = compare
        self._begun = False
        self._actions: list[tuple[dict[str, JsonValue], Stepped | str]] = []
        self._state: str | None = None
        self._done = False
        self.reward: float | None = None

    def begin(self, session: Session) -> None:
        """Reset ``session`` and repeat the actions so far. Raises EnvironmentFault where it answers differently."""
        first = start(session, self._place)
        if not self._begun:
            self._begun = True
            self._note(first)
        for action, answer in self._actions:
            if _answer(session, action) != answer:
                raise EnvironmentFault("the server answers the same actions differently the second time")

    def run(self, call: ToolCall) -> Observation:
        """Execute one call. Raises EnvironmentFault for anything that is not the agent's error."""
        tool = self._tools.get(call.name)
        if tool is None:
            return unknown_tool(call.name)
        if problem := beyond_caps(call) or argument_problem(call, tool):
            return error_observation(problem)
        with self._host.session_of(self) as session:
            before = self._read(session)
            if self._done:
                return error_observation("the episode is over")
            action: dict[str, JsonValue] = {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
            action = call.arguments if call.name == ACT else action
            answer = _answer(session, action)
            self._actions.append((action, answer))
            if isinstance(answer, Stepped):
                self._state = None
                self._note(answer)
            failed, value = (True, answer) if isinstance(answer, str) else _result(answer)
            if failed:
                return error_observation(_text(value)).model_copy(update={"calls": (call,)})
            informative = value not in (None, "", [], {}) or self._read(session) != before
            status = ObservationStatus.OK if informative else ObservationStatus.EMPTY
            return Observation(text=_text(value), status=status, calls=(call,))

    def state(self) -> str:
        """Return the text that attempts are compared by. Raises EnvironmentFault."""
        if self._state is not None:
            return self._state
        with self._host.session_of(self) as session:
            return self._read(session)

    def close(self) -> None:
        """Give the session up. Idempotent."""
        self._host.leave(self)

    def _read(self, session: Session) -> str:
        if self._state is None:
            # A reward below 0 is a price of acting, not progress: any call would seem to change something.
            compared: JsonValue = max(self.reward or 0.0, 0.0) if self._compare == "reward" else comparable(session)
            self._state = _text({"done": self._done, self._compare: compared})
        return self._state

    def _note(self, answer: Stepped) -> None:
        self._done = answer.done
        earned = [one for one in (self.reward, answer.reward) if one is not None]
        self.reward = max(earned, default=None)


class HostEpisode(PythonEpisode):
    """An attempt by the rule of ``PythonEpisode``; a task without a reference is solved by the server's reward.

    ``wanted`` remembers what references lead to: the server is not asked again for each attempt at a task.
    """

    def __init__(self, task: TaskSpec, make: Callable[[], HostWorld], wanted: dict[str, Any], threshold: float) -> None:
        super().__init__(task, make)
        self._remembered = wanted
        self._threshold = threshold

    def outcome(self) -> Outcome:
        """Return the outcome so far."""
        if any(self._task.reference):
            return super().outcome()
        turns = tuple(
            TurnOutcome(calls=turn.calls, malformed=turn.malformed, reference_calls=0) for turn in self._turns.played()
        )
        reward = getattr(self._live(), "reward", None)
        if reward is not None and reward >= self._threshold:
            return Outcome(success=True, turns=turns)
        return Outcome(success=False, turns=turns, failure=LOW_REWARD)

    def close(self) -> None:
        """Give the session up. Idempotent."""
        if isinstance(self._world, HostWorld):
            self._world.close()
        super().close()

    def _reference(self) -> Any:  # noqa: ANN401 - the base class's own type
        task = self._task
        key = task.model_dump_json(include={"initial_state", "setup", "reference", "played"})
        if key not in self._remembered:
            if len(self._remembered) >= _WANTED:
                self._remembered.clear()
            self._remembered[key] = super()._reference()
        return self._remembered[key]


class OpenEnvEnvironment:
    """Implements ``environments.base.Environment`` for a server.

    Args:
        host: the server.
        places: where exploration begins.
        rules: see the module.

    Raises InputError where the server cannot be asked, offers tools that cannot be used, or shows no state that can be
    compared though ``rules`` compare by it.
    """

    name = NAME

    def __init__(self, host: Host, places: Sequence[TaskPlace], rules: Rules) -> None:
        self._host = host
        self._rules = rules
        self._tools: dict[str, ToolSpec] = {}
        self._wanted: dict[str, Any] = {}
        self.requests: dict[TaskPlace, str] = {}
        try:
            self._starts = tuple(self._start(place) for place in places)
            if rules.compare == "state":
                self._check_state(places[0])
        except EnvironmentFault as fault:
            raise InputError(f"environment.options: {fault}") from None

    def open(self, task: TaskSpec) -> HostEpisode:
        """Open a fresh episode. Raises InputError for a task of another environment, or unknown tools or starts."""
        check_own(task, self, NAME)
        try:
            place = TaskPlace.model_validate(task.initial_state.get(NAME))
        except ValidationError:
            raise InputError(f"an initial state of {NAME} names split and index under {NAME!r}") from None

        def make() -> HostWorld:
            return HostWorld(self._host, place, self._tools, self._rules.compare)

        return HostEpisode(task, make, self._wanted, self._rules.threshold)

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the documentation of the named tools, in the given order. Raises InputError for an unknown one."""
        for name in names:
            if name not in self._tools:
                raise InputError(f"the server has no tool {name!r:.80}: use some of {', '.join(self._tools)}")
        return tuple(self._tools[name] for name in names)

    def starts(self) -> tuple[StartState, ...]:
        """Return what the server's first tasks begin with."""
        return self._starts

    def _start(self, place: TaskPlace) -> StartState:
        owner = HostWorld(self._host, place, {}, "reward")
        with self._host.session_of(owner) as session:
            self.requests[place] = request_of(start(session, place))
            found = read_tools(session, self._host, NAME)
        self._host.leave(owner)
        for name, tool in found.items():
            if self._tools.setdefault(name, tool) != tool:
                raise InputError(f"environment.options: the server documents {name} in two ways, at {place.index}")
        return StartState(
            id=f"{NAME}-{place.split}-{place.index}",
            environment=NAME,
            split="train",
            classes=(NAME,),
            initial_state={NAME: place.model_dump()},
            tools=tuple(found),
        )

    def _check_state(self, place: TaskPlace) -> None:
        states = []
        for _ in range(2):
            owner = HostWorld(self._host, place, {}, "state")
            with self._host.session_of(owner) as session:
                states.append(comparable(session))
            self._host.leave(owner)
        if not states[0] or states[0] != states[1]:
            what = "differs between two resets" if states[0] else "holds nothing beside the number of steps"
            raise InputError(
                f"environment.options.compare: the server's state {what}, so it cannot be compared: set it to reward "
                "(verification then sees results and rewards alone, which is weaker)"
            )


def start(session: Session, place: TaskPlace) -> Stepped:
    """Reset the server to ``place``. Raises EnvironmentFault where it refuses."""
    try:
        return session.reset(seed=place.index, split=place.split, index=place.index)
    except Refused as refused:
        raise EnvironmentFault(f"the server refuses to reset to {place.split} {place.index} ({refused})") from None


def comparable(session: Session) -> dict[str, JsonValue]:
    """Return what the server's state holds beside the id and the number of steps."""
    return {key: value for key, value in session.state().items() if key not in _BOOKKEEPING}


def request_of(first: Stepped) -> str:
    """Return what a task of the server asks for: the text of its first observation, or all of it as JSON."""
    shown: dict[str, JsonValue] = {
        key: value for key, value in first.observation.items() if key != "metadata" and value not in (None, "")
    }
    texts = [shown[key] for key in _REQUESTS if isinstance(shown.get(key), str)]
    return str(texts[0]) if texts else _text(shown)


def _answer(session: Session, action: Mapping[str, JsonValue]) -> Stepped | str:
    """Return the answer to an action, or why the server does not accept it: that is the agent's error."""
    try:
        return session.step(action)
    except Refused as refused:
        return str(refused)


def _result(answer: Stepped) -> tuple[bool, JsonValue]:
    """Return whether a call failed by the agent's error, and what it returned. Raises EnvironmentFault otherwise."""
    seen = answer.observation
    if "tool_name" not in seen:
        return False, {key: value for key, value in seen.items() if key != "metadata"}
    error, result = seen.get("error"), seen.get("result")
    if isinstance(error, dict):
        if error.get("error_type") not in _AGENTS_ERRORS:
            raise EnvironmentFault(f"a tool of the server failed ({_text(error):.200})")
        return True, error.get("message")
    if isinstance(result, dict) and "is_error" in result:  # a result of MCP
        data = result.get("data")
        return bool(result["is_error"]), result.get("content") if data is None else data
    return False, result


def _text(value: JsonValue) -> str:
    try:
        if not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
        value.encode()
    except (ValueError, RecursionError):
        raise EnvironmentFault("the server answers numbers or characters that JSON does not have") from None
    return value
