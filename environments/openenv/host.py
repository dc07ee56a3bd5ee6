"""Ask an OpenEnv server over WebSockets. It is a stranger's, so every answer is read once, with limits.

Of an answer, one text frame of at most ``MAX_BYTES`` is accepted, within ``STEP_SECONDS``, as JSON of the documented
shape. Anything else raises ``EnvironmentFault`` and ends the session: a fault is never the agent's.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, JsonValue, ValidationError, field_validator
from pydantic_core import from_json

from environments.addresses import Origin, origin_of
from environments.base import EnvironmentFault, ToolSpec
from environments.json_schema import documented_tool, plain_line
from environments.served import NoRoom

MAX_BYTES = 1_048_576
CONNECT_SECONDS = 10.0
STEP_SECONDS = 60.0
IDLE_SECONDS = 1.0
SESSIONS = 64
ACT = "act"
"""The one tool of a server without tools."""

MOST_TOOLS = 256
_LONGEST = 2000

_SHOWN = 200
_CAPACITY = "CAPACITY_REACHED"
_INVALID = "VALIDATION_ERROR"


class Refused(Exception):
    """The server does not accept an action, by its own schema. The message is the server's."""


class _Reported(EnvironmentFault):
    """The server reports an error of its own."""


class _Message(BaseModel):
    type: Literal["observation", "state", "error"]
    data: dict[str, JsonValue]


class Stepped(BaseModel):
    """The answer to a reset or an action. ``reward`` is finite, or None."""

    observation: dict[str, JsonValue]
    reward: float | None = None
    done: bool = False

    @field_validator("reward")
    @classmethod
    def _is_finite(cls, reward: float | None) -> float | None:
        if reward is not None and not math.isfinite(reward):
            raise ValueError("the reward is not finite")
        return reward


class Host(NamedTuple):
    """Address of a server, of the form that ``environments.addresses`` checks, and what is sent as its Bearer token."""

    url: str
    token: str | None = None

    @property
    def origin(self) -> Origin:
        """The server that faults name."""
        return origin_of(self.url)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def get(self, path: str) -> JsonValue:
        """Return what the server answers to a GET of ``path``. Raises EnvironmentFault."""
        import httpx

        due, text = time.monotonic() + CONNECT_SECONDS, b""
        try:
            with httpx.stream(
                "GET", f"{self.url.rstrip('/')}/{path}", headers=self.headers, timeout=CONNECT_SECONDS
            ) as answer:
                for part in answer.raise_for_status().iter_raw():
                    text += part
                    if len(text) > MAX_BYTES or time.monotonic() > due:
                        raise ValueError("it is too long, or takes too long")
            found: JsonValue = from_json(text, allow_inf_nan=False)
        except (httpx.HTTPError, ValueError) as error:
            raise EnvironmentFault(f"the server {self.origin} does not answer /{path} ({_line(str(error))})") from None
        return found


class Session:
    """One WebSocket, which is one environment of the server; used by one thread at a time."""

    def __init__(self, host: Host) -> None:
        """Connect. Raises EnvironmentFault, NoRoom where the server allows no further session."""
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self._origin = host.origin
        try:
            self._connection: Any = connect(
                f"ws{host.url.rstrip('/').removeprefix('http')}/ws",
                additional_headers=host.headers,
                compression=None,  # a small message must not become a large one
                max_size=MAX_BYTES,
                open_timeout=CONNECT_SECONDS,
                close_timeout=1,
                proxy=None if self._origin.is_loopback else True,
            ).__enter__()  # close() ends what this begins
        except (WebSocketException, OSError, EOFError, ValueError) as error:
            raise self._fault(f"cannot be reached ({_line(str(error))})") from None
        # A server without room says so in place of its first answer. One may have no state before a reset.
        try:
            with suppress(_Reported):
                self.state()
        except BaseException:
            self.close()
            raise

    def reset(self, **arguments: JsonValue) -> Stepped:
        """Begin an episode. Raises Refused, EnvironmentFault."""
        return self._stepped({"type": "reset", "data": arguments})

    def step(self, action: Mapping[str, JsonValue]) -> Stepped:
        """Take one action. Raises Refused, EnvironmentFault."""
        return self._stepped({"type": "step", "data": dict(action)})

    def state(self) -> dict[str, JsonValue]:
        """Return the server's state. Raises EnvironmentFault."""
        try:
            return self._asked({"type": "state"}, "state")
        except Refused as refused:
            raise _Reported(f"the server {self._origin} does not show its state ({refused})") from None

    def close(self) -> None:
        """Close the WebSocket without waiting for the server."""
        with suppress(Exception):  # whatever the socket is in the middle of
            self._connection.close_socket()

    def _stepped(self, message: dict[str, JsonValue]) -> Stepped:
        data = self._asked(message, "observation")
        try:
            return Stepped.model_validate(data)
        except ValidationError as error:
            raise self._fault(f"answered an observation of another shape ({_first(error)})") from None

    def _asked(self, message: dict[str, JsonValue], kind: str) -> dict[str, JsonValue]:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            with suppress(TimeoutError):
                early = self._connection.recv(timeout=0)
                # A server over its capacity says so before it is asked.
                self._read(early, kind)
                raise self._fault("answered without being asked")
            with suppress(ConnectionClosed):  # what the server said before can still be read
                self._connection.send(json.dumps(message))
            return self._read(self._connection.recv(timeout=STEP_SECONDS), kind)
        except TimeoutError:
            raise self._fault(f"did not answer within {STEP_SECONDS:g} s") from None
        except (WebSocketException, OSError, EOFError) as error:
            raise self._fault(f"ended the connection ({_line(str(error))})") from None

    def _read(self, text: str | bytes, kind: str) -> dict[str, JsonValue]:
        if not isinstance(text, str):
            raise self._fault("answered bytes, not text")
        try:
            message = _Message.model_validate(from_json(text, allow_inf_nan=False))
        except ValidationError as error:
            raise self._fault(f"answered another message than documented ({_first(error)})") from None
        except ValueError as error:
            raise self._fault(f"answered no JSON ({_line(str(error))})") from None
        if message.type == "error":
            code, said = message.data.get("code"), _line(str(message.data.get("message")))
            if code == _CAPACITY:
                raise NoRoom(f"the server {self._origin} has no room for a session")
            if code == _INVALID:
                raise Refused(_line(json.dumps(message.data.get("errors", said), ensure_ascii=False)))
            raise _Reported(f"the server {self._origin} reports an error ({said})")
        if message.type != kind:
            raise self._fault(f"answered a message of the type {message.type}, not {kind}")
        return message.data

    def _fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(f"the server {self._origin} {what}")


class _Tool(BaseModel):
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")
    description: str | None = None
    input_schema: dict[str, JsonValue]


class _Listed(BaseModel):
    tools: list[_Tool] = Field(max_length=MOST_TOOLS)


class _Schemas(BaseModel):
    action: dict[str, JsonValue]

    @field_validator("action")
    @classmethod
    def _without_metadata(cls, action: dict[str, JsonValue]) -> dict[str, JsonValue]:
        properties = action.get("properties")
        if not isinstance(properties, dict):
            raise ValueError("it has no properties")
        return {**action, "properties": {key: one for key, one in properties.items() if key != "metadata"}}


def read_tools(session: Session, host: Host, group: str) -> dict[str, ToolSpec]:
    """Return the tools that the server lists, by name, else ``act``. Raises EnvironmentFault for unusable ones."""
    try:
        listed = session.step({"type": "list_tools"}).observation
    except Refused:  # its actions are not calls of tools
        listed = {"tools": [{"name": ACT, "description": "Take an action.", "input_schema": _schema_of(host)}]}
    try:
        found = {tool.name: _spec(tool, group) for tool in _Listed.model_validate(listed).tools}
    except (ValidationError, ValueError, RecursionError) as error:
        raise EnvironmentFault(f"the server lists tools that cannot be used: {plain_line(str(error), 300)}") from None
    if not found:
        raise EnvironmentFault("the server lists no tool")
    return found


def _schema_of(host: Host) -> dict[str, JsonValue]:
    try:
        return _Schemas.model_validate(host.get("schema")).action
    except ValidationError as error:
        raise EnvironmentFault(f"the server's /schema cannot be used: {plain_line(str(error), 300)}") from None


def _spec(tool: _Tool, group: str) -> ToolSpec:
    try:
        return documented_tool(tool.name, group, tool.description, tool.input_schema, _LONGEST)
    except ValueError as error:
        raise ValueError(f"{tool.name}: {error}") from None


def _line(text: str) -> str:
    return plain_line(text, _SHOWN)


def _first(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    return _line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
