"""Ask an OpenEnv server over WebSockets. It is a stranger's, so every answer is read once, with limits.

Of an answer, one text frame of at most ``MAX_BYTES`` is accepted, within ``STEP_SECONDS``, as JSON of the documented
shape. Anything else raises ``EnvironmentFault`` and ends the session: a fault is never the agent's.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, FiniteFloat, JsonValue, ValidationError, field_validator
from pydantic_core import from_json

from environments.addresses import Origin, origin_of
from environments.answers import content_text, rounded, says_error
from environments.base import EnvironmentFault, Record, ToolCall, ToolSpec
from environments.json_schema import documented_tool, plain_line, why_none
from environments.served import NoRoom, ServerAnswer

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


Compare = Literal["state", "reward"]
_AGENTS_ERRORS = ("execution_error", "invalid_args", "tool_not_found")
_BOOKKEEPING = ("episode_id", "step_count")


class TaskPlace(Record):
    """Where an episode begins: the arguments of ``reset``."""

    split: str
    index: int


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
    reward: FiniteFloat | None = None
    done: bool = False


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

    def action_schema(self) -> dict[str, JsonValue]:
        """Return the schema of an action as the server documents it. Raises EnvironmentFault."""
        import httpx

        due, text = time.monotonic() + CONNECT_SECONDS, b""
        try:
            with httpx.stream(
                "GET", f"{self.url.rstrip('/')}/schema", headers=self.headers, timeout=CONNECT_SECONDS
            ) as answer:
                for part in answer.raise_for_status().iter_raw():
                    text += part
                    if len(text) > MAX_BYTES or time.monotonic() > due:
                        raise ValueError("it is too long, or takes too long")
            return _Schemas.model_validate(from_json(text, allow_inf_nan=False)).action
        except ValidationError as error:
            raise EnvironmentFault(f"the server's /schema cannot be used: {plain_line(str(error), 300)}") from None
        except (httpx.HTTPError, ValueError) as error:
            raise EnvironmentFault(f"the server {self.origin} does not answer /schema ({_line(str(error))})") from None


class Session:
    """One WebSocket, which is one environment of the server: ``environments.served.PlayedServer``.

    ``first`` is the answer to the last reset. Raises EnvironmentFault where the server cannot be reached, NoRoom where
    it allows no further session.
    """

    first: Stepped

    def __init__(self, host: Host, compare: Compare) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self._compare = compare
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

    def begin(self, start: TaskPlace) -> None:
        """Reset the server. Raises EnvironmentFault where it refuses."""
        place: dict[str, JsonValue] = {"seed": start.index, "split": start.split, "index": start.index}
        try:
            self.first = self._stepped({"type": "reset", "data": place})
        except Refused as refused:
            raise EnvironmentFault(f"the server refuses to reset to {start.split} {start.index} ({refused})") from None
        self._done, self._reward = self.first.done, self.first.reward

    def call(self, call: ToolCall) -> ServerAnswer:
        """Take one action; one that the server does not accept is the agent's error, as is any once it is over."""
        if self._done:
            return ServerAnswer("the episode is over", True)
        action: dict[str, JsonValue] = {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
        try:
            stepped = self.step(call.arguments if call.name == ACT else action)
        except Refused as refused:
            return ServerAnswer(str(refused), True)
        self._done = stepped.done
        self._reward = max((one for one in (self._reward, stepped.reward) if one is not None), default=None)
        return _answer(stepped)

    def look(self) -> tuple[str, float | None]:
        """Return what attempts are compared by, and the highest reward."""
        # A reward below 0 is a price of acting, not progress: any call would seem to change something.
        compared: JsonValue = max(self._reward or 0.0, 0.0) if self._compare == "reward" else self.state()
        try:
            compared = rounded(compared)
        except RecursionError:
            raise self._fault("shows a state that is nested too deeply") from None
        return as_text({"done": self._done, self._compare: compared}), self._reward

    def step(self, action: dict[str, JsonValue]) -> Stepped:
        """Take one action. Raises Refused, EnvironmentFault."""
        return self._stepped({"type": "step", "data": action})

    def state(self) -> dict[str, JsonValue]:
        """Return what the server's state holds beside the id and the number of steps. Raises EnvironmentFault."""
        try:
            state = self._asked({"type": "state"}, "state")
        except Refused as refused:
            raise _Reported(f"the server {self._origin} does not show its state ({refused})") from None
        return {key: value for key, value in state.items() if key not in _BOOKKEEPING}

    def close(self) -> None:
        """Close the WebSocket without waiting for the server."""
        with suppress(Exception):  # whatever the socket is in the middle of
            self._connection.close_socket()

    leave = close

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


def _answer(stepped: Stepped) -> ServerAnswer:
    """Return what a call returned, or the agent's error. Raises EnvironmentFault for an error of the tool's own."""
    seen = stepped.observation
    error, result = seen.get("error"), seen.get("result")
    if "tool_name" not in seen:  # its other fields describe the world: "success" is whether the goal is reached
        text = as_text({key: value for key, value in seen.items() if key != "metadata"})
        return ServerAnswer(text, says_error({"error": error}))
    if isinstance(error, dict):
        if error.get("error_type") not in _AGENTS_ERRORS:
            raise EnvironmentFault(f"a tool of the server failed ({as_text(error):.200})")
        return ServerAnswer(as_text(error.get("message")), True)
    if says_error({"error": error}):
        return ServerAnswer(as_text(error), True)
    marked = False
    if isinstance(result, dict) and "is_error" in result:  # a result of MCP
        marked, data, content = bool(result["is_error"]), result.get("data"), result.get("content")
        blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
        if isinstance(content, list) and len(blocks) == len(content):
            content = content_text(blocks) or None
        result = content if data is None else data
    return ServerAnswer(as_text(result), marked or says_error(result))


def as_text(value: JsonValue) -> str:
    """Return a text as it is, any other value as JSON. Raises EnvironmentFault for what cannot be written."""
    try:
        if not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
        value.encode()
    except (ValueError, RecursionError):
        raise EnvironmentFault("the server answers numbers or characters that JSON does not have") from None
    return value


class _Tool(BaseModel):
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")
    description: JsonValue = None
    input_schema: JsonValue


class _Listed(BaseModel):
    tools: list[JsonValue] = Field(max_length=MOST_TOOLS)


class _Schemas(BaseModel):
    action: dict[str, JsonValue]

    @field_validator("action")
    @classmethod
    def _without_metadata(cls, action: dict[str, JsonValue]) -> dict[str, JsonValue]:
        properties = action.get("properties")
        if not isinstance(properties, dict):
            raise ValueError("it has no properties")
        return {**action, "properties": {key: one for key, one in properties.items() if key != "metadata"}}


def read_tools(session: Session, host: Host, group: str, left_out: dict[str, str]) -> dict[str, ToolSpec]:
    """Return the tools that the server lists, by name, else ``act``. ``left_out`` gets the reason for any other one.

    Raises EnvironmentFault where the list cannot be read, or no tool of it can be used.
    """
    try:
        listed = session.step({"type": "list_tools"}).observation
    except Refused:  # its actions are not calls of tools
        listed = {"tools": [{"name": ACT, "description": "Take an action.", "input_schema": host.action_schema()}]}
    found: dict[str, ToolSpec] = {}
    try:
        entries = _Listed.model_validate(listed).tools
    except ValidationError as error:
        raise EnvironmentFault(f"the server lists tools that cannot be used: {_first(error)}") from None
    reasons: dict[str, str] = {}
    for place, entry in enumerate(entries, 1):
        name = entry.get("name") if isinstance(entry, dict) else None
        try:
            tool = _Tool.model_validate(entry)
            if tool.name in found:
                raise ValueError("it is listed twice")
            found[tool.name] = documented_tool(tool.name, group, tool.description, tool.input_schema, _LONGEST)
        except ValueError as error:
            said = _first(error) if isinstance(error, ValidationError) else str(error)
            reasons[_line(name)[:80] if isinstance(name, str) and _line(name) else f"tool {place} of its list"] = said
    if not found:
        raise EnvironmentFault(f"the server lists no tool that can be used{why_none(reasons)}")
    left_out |= reasons
    return found


def _line(text: str) -> str:
    return plain_line(text, _SHOWN)


def _first(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    return _line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
