"""Offer tasks of an environment over OpenEnv 0.10: the environment, in the classes of that package.

Runs in OpenEnv's own virtual environment (``make openenv``), started by ``graph.interop.openenv.serve``. An attempt
begins with ``reset(split=..., index=...)``, goes on with OpenEnv's own ``call_tool`` actions, and ends a user turn with
the tool ``finish_turn``. The reward is 1 or 0, at the end. A fault of the environment is an error of the protocol and
ends the attempt: it has no reward.

A trainer that has attempts recorded says of which draw each is (``reset(episode_id="17")``), ends one that its agent
could not end by ``finish_turn(give_up=True)``, and may say there how many tokens it sampled. What it only breaks off is
not recorded: the trainer failed, not its agent.

Clients may be hostile. Limits hold before one has shown its token:

- A connection that is not a WebSocket states a whole request within ``SECONDS``, or it ends.
- ``WAITING`` wait for a request at most. One more ends the oldest, so that those that send nothing keep nobody out.
- A request names one of the few ``PATHS``, and has a body of at most ``BODY`` bytes, whose length it states.
- A WebSocket is accepted with the token alone, or on a loopback address from a program, not from a web page. It is
  closed when its client sends nothing for ``idle`` seconds. Messages have a largest size. OpenEnv's server counts
  sessions, and refuses one too many.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import signal
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import h11
import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment as ServedEnvironment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, State
from pydantic import JsonValue
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose
from uvicorn.protocols.http.h11_impl import H11Protocol

from environments.base import Environment, EnvironmentFault, Outcome, UserTurn
from environments.command import ending_signals
from graph.interop.attempt import FINISH_TURN, Attempt, shown_tools
from memory.records import Task
from training.elsewhere.rollouts import RolloutWriter

__all__ = ["application", "serve"]

DRAW = re.compile(r"\d{1,18}")
SECONDS = 10.0
WAITING = 64
BODY = 65_536
MESSAGE = 1_048_576
PATHS = re.compile(
    r"/ws|/mcp|/health|/metadata|/schema|/list_environments|/[\w.-]+/(splits|tasks|num_tasks|task|task_range)"
)
_POLICY_VIOLATION = 1008


class TurnObservation(Observation):  # type: ignore[misc]  # OpenEnv is not installed where types are checked
    """What ``reset`` answers: the user's message, and the turns before it, which the reference played.

    Tools are listed by ``list_tools``: OpenEnv's client reads no other field of an observation that has ``tools``.
    """

    user: str
    history: list[dict[str, JsonValue]] = []


class AttemptState(State):  # type: ignore[misc]
    """What ``state`` answers: the task, and the state that the environment compares, as JSON text.

    It is for a trainer, not for an agent.
    """

    task_id: str = ""
    world: str = ""


def application(
    environment: Environment,
    tasks: Callable[[], Sequence[Task]],
    sessions: int,
    idle: float,
    recorder: RolloutWriter | None = None,
) -> ASGIApp:
    """Return the server of ``tasks`` for at most ``sessions`` clients at a time.

    A session in which nothing happens for ``idle`` seconds is closed. ``tasks`` is asked at each request: later ones
    follow those that a client knows. ``environment`` has to open episodes in several threads.
    """

    def splits() -> dict[str, list[Task]]:
        found: dict[str, list[Task]] = defaultdict(list)
        for task in tasks():
            found[task.split].append(task)
        return found

    class Served(ServedEnvironment[Action, Observation, AttemptState]):  # type: ignore[misc]
        """One client's session: an attempt after the other."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._attempt: Attempt | None = None
            self._state = AttemptState()
            self._turn: UserTurn | None = None
            self._task: Task | None = None
            self._draw: int | None = None
            self._sampled = 0

        def list_splits(self) -> list[str]:
            return [*splits()]

        def num_tasks(self, split: str) -> int:
            return len(splits().get(split, ()))

        def list_tasks(self, split: str) -> list[dict[str, JsonValue]]:
            return self.get_task_range(split)

        def get_task(self, split: str, index: int) -> dict[str, JsonValue]:
            if index < 0:
                raise IndexError("an index counts from 0")
            return self.get_task_range(split, index, index + 1)[0]

        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
            there = splits().get(split, [])
            indices = range(*slice(start, stop).indices(len(there)))
            return [{"index": index, **_listed(environment, there[index])} for index in indices]

        def reset(
            self, seed: int | None = None, episode_id: str | None = None, split: str | None = None, index: int = 0
        ) -> TurnObservation:
            """Begin an attempt at a task; ``seed`` changes nothing."""
            self.close()
            there = splits()
            name = next(iter(there)) if split is None else split
            if not isinstance(index, int) or name not in there or not 0 <= index < len(there[name]):
                known = ", ".join(f"{one} has indices 0 to {len(keys) - 1}" for one, keys in there.items())
                raise ValueError(f"there is no such task: {known}")
            self._task, self._sampled = there[name][index], 0
            self._draw = int(episode_id) if episode_id and DRAW.fullmatch(episode_id) else None
            try:
                self._attempt = Attempt(environment, self._task)
            except EnvironmentFault as fault:
                self._record(fault=fault)
                raise
            self._state = AttemptState(episode_id=episode_id, task_id=self._task.id)
            self._turn = turn = self._attempt.turn
            return TurnObservation(user=_message(turn), history=_history(self._attempt))

        def step(self, action: Action, timeout_s: float | None = None, **_: object) -> Observation:
            if self._attempt is None or self._turn is None:
                raise RuntimeError("no attempt is open: reset first")
            if isinstance(action, ListToolsAction):
                return ListToolsObservation(tools=_tools(environment, self._turn))
            self._state.step_count += 1
            ending = action.arguments if action.tool_name == FINISH_TURN.name else {}
            if isinstance(sampled := ending.get("sampled_tokens"), int):
                self._sampled = max(0, sampled)
            try:
                if ending.get("give_up") is True:
                    answer = self._attempt.give_up()
                else:
                    answer = self._attempt.call(action.tool_name, action.arguments)
                if answer.done:
                    self._record(self._attempt.outcome())
            except BaseException as raised:
                if isinstance(raised, EnvironmentFault):
                    self._record(fault=raised)
                self.close()
                raise
            told: dict[str, Any] = {"tool_name": action.tool_name, "result": answer.text}
            if answer.failed:
                error = ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=answer.text)
                told = {"tool_name": action.tool_name, "error": error}
            if answer.turn is not None:
                self._turn = answer.turn
                tools = [tool.model_dump() for tool in _tools(environment, answer.turn)]
                told["result"] = {"user": answer.text, "tools": tools}
            if answer.done:
                self.close()
            return CallToolObservation(**told, done=answer.done, reward=answer.reward)

        def _record(self, outcome: Outcome | None = None, fault: EnvironmentFault | None = None) -> None:
            if recorder is not None and self._draw is not None and self._task is not None:
                turns = () if self._attempt is None else self._attempt.turns
                cause = None if fault is None else f"{type(fault).__name__}: {fault}"
                recorder.keep(self._draw, self._task, turns, outcome, cause, self._sampled)

        @property
        def state(self) -> AttemptState:
            if self._attempt is not None:
                self._state.world = self._attempt.state()
            return self._state

        def get_metadata(self) -> EnvironmentMetadata:
            return EnvironmentMetadata(name=environment.name, description=f"{len(tasks())} tasks of {environment.name}")

        def close(self) -> None:
            if self._attempt is not None:
                self._attempt.close()
                self._attempt = None

    app: ASGIApp = create_fastapi_app(
        Served,
        CallToolAction,
        CallToolObservation,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=idle),
        env_name=environment.name,
        state_cls=AttemptState,
        reset_observation_cls=TurnObservation,
        mode="simulation",  # else a variable of the user's shell could switch reset off
    )
    return app


def _listed(environment: Environment, task: Task) -> dict[str, JsonValue]:
    """Return what the list of tasks has of one: what its agent reads first, and nothing of the reference."""
    attempt = Attempt(environment, task)
    try:
        return {
            "id": task.id,
            "user": _message(attempt.turn),
            "turns": len(task.turns),
            "played": task.played,
            "tools": [*attempt.turn.tools],
        }
    finally:
        attempt.close()


def _message(turn: UserTurn) -> str:
    return f"{turn.preface}\n\n{turn.full_text}" if turn.preface else turn.full_text


def _tools(environment: Environment, turn: UserTurn) -> list[Tool]:
    functions = [shown["function"] for shown in shown_tools(environment, turn)]
    return [Tool(name=f["name"], description=f["description"], input_schema=f["parameters"]) for f in functions]


def _history(attempt: Attempt) -> list[dict[str, JsonValue]]:
    return [
        {
            "user": given.opened.full_text,
            "calls": [
                {"tool_name": call.name, "arguments": call.arguments, "result": observation.full_text}
                for call, observation in given.steps
            ],
        }
        for given in attempt.history
    ]


class Guard:
    """Middleware that passes on what the module allows.

    Args:
        app: the server behind it.
        token: what a client sends as ``Authorization: Bearer TOKEN``; None for one of this machine alone.
        hosts: values of the header Host that are answered where there is no token.
        idle: seconds between two messages of a WebSocket's client, at most.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str], idle: float) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._idle = idle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or let the server answer."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        status, words = self._refusal(scope["path"], Headers(scope=scope))
        if scope["type"] == "websocket":
            if words:
                await WebSocketClose(_POLICY_VIOLATION, words)(scope, receive, send)
            else:
                await self._app(scope, self._timed(receive), send)
        elif words:
            await PlainTextResponse(f"{words}\n", status)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str]:
        if self._token is not None:
            given = headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                return 401, "send the token as Authorization: Bearer TOKEN"
        elif headers.getlist("host") not in [[host] for host in self._hosts] or "origin" in headers:
            return 403, "this server answers programs of its own machine only"
        if not PATHS.fullmatch(path):
            return 404, "this server has no such address"
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal() or int(length[:20]) > BODY:
            return 413, f"state the length of a body of at most {BODY} bytes"
        return 200, ""

    def _timed(self, receive: Receive) -> Receive:
        async def within() -> Message:
            try:
                return await asyncio.wait_for(receive(), self._idle)
            except TimeoutError:
                return {"type": "websocket.disconnect", "code": 1001, "reason": "idle"}

        return within


class _Connection(H11Protocol):
    """A connection that ends unless it becomes a WebSocket, or states a whole request, in time."""

    _began = 0.0
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._began = self.loop.time()
        waiting = [one for one in self.connections if isinstance(one, _Connection) and not one.is_answering]
        if len(waiting) >= WAITING:
            min(waiting, key=lambda one: one._began).transport.abort()
        super().connection_made(transport)
        self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect()

    @property
    def is_answering(self) -> bool:
        """Whether a whole request was received, and its answer is being made."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return answering and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY, h11.ERROR)

    def _expect(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self.loop.call_later(SECONDS, self._end)

    def _end(self) -> None:
        if self not in self.connections:  # it is closed, or a WebSocket has taken its place
            return
        if self.is_answering:  # the environment has limits of its own
            self._expect()
        else:
            self.transport.abort()


def serve(app: ASGIApp, listening: socket.socket, token: str | None, idle: float) -> None:
    """Serve ``app`` behind the limits on a bound socket, until a signal ends the process."""
    address, port = listening.getsockname()[:2]
    hosts = {f"{name}:{port}" for name in ("localhost", f"[{address}]" if ":" in address else address)}
    config: dict[str, Any] = {
        "http": _Connection,
        "ws_max_size": MESSAGE,
        "ws_max_queue": 4,
        "ws_per_message_deflate": False,  # a small message must not become a large one
        "timeout_graceful_shutdown": 2,
        "log_level": "warning",
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
    }
    server = uvicorn.Server(uvicorn.Config(Guard(app, token, hosts, idle), **config))
    if signal.SIGHUP in ending_signals():
        signal.signal(signal.SIGHUP, server.handle_exit)  # as the library does for the others
    server.run(sockets=[listening])
