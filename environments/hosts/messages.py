"""Define what a host of an environment and its clients say to each other: JSON over HTTP, with limits on both sides.

A client opens an episode under an id that it draws, and numbers what it does in it: start, step and end_turn, from 0.
A host keeps the last answer, so that a request which is sent again after its answer was lost executes nothing twice.

| request | answers |
|---|---|
| ``GET /health`` | ``Health``: what is served, and how full the host is |
| ``POST /tools`` ``{"names": [...]}`` | documentation of tools |
| ``POST /starts`` ``{}`` | start states |
| ``POST /episodes`` ``Opening`` | ``{}``: the episode is open |
| ``POST /episodes/ID`` ``Act`` | a user turn, null after the last one, or an observation |
| ``GET /episodes/ID/state``, ``GET /episodes/ID/outcome`` | the state's text, the outcome |
| ``DELETE /episodes/ID`` | ``{}``: the episode is released, also where it was before |

Any other status than 200 has a ``HostFailure`` as its body: never a made-up observation. The protocol is ours.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, JsonValue

from environments.base import Action, Environment, Record, TaskSpec, ToolCall
from environments.declared import source_file
from environments.registry import Chosen, find_benchmark, is_import_path, parse_options

PROTOCOL = 1
TOKEN = "COEVOLVE_ENVIRONMENT_TOKEN"
"""The variable that holds the shared token of hosts and clients; without it a host answers everybody."""

MAX_REQUEST = 16 * 1024 * 1024  # bytes of a request
MAX_REPLY = 64 * 1024 * 1024  # bytes of an answer
MAX_DEPTH = 64
"""Most levels of lists and objects in an action's arguments (ours); a record can hold about 250."""

_DETAIL = 4000  # characters of a failure's cause
_PACKAGE = Path(__file__).resolve().parents[1]


class FailureKind(StrEnum):
    """Why a host did not do what a request asked for, and the HTTP status that says so."""

    MESSAGE = "message"
    """The request cannot be read, or has no place in the protocol."""
    TOKEN = "token"
    """The shared token is missing or wrong."""
    EPISODE = "episode"
    """The episode is unknown: it was never opened here, was released, or was open when the host ended."""
    ORDER = "order"
    """A method was called out of order; the environment's RuntimeError."""
    NUMBER = "number"
    """The act's number is neither the next one nor the last one with the same content."""
    IDENTITY = "identity"
    """The host serves something else than the client plays."""
    TOO_LONG = "too long"
    """The request or its answer is longer than the limit."""
    INPUT = "input"
    """The environment's InputError."""
    FAULT = "fault"
    """The environment's EnvironmentFault."""
    DEFECT = "defect"
    """The environment's EnvironmentDefect, or an error that it should not have raised."""
    RECURSION = "recursion"
    """The environment's RecursionError: a state without a finite text."""
    BUSY = "busy"
    """As many episodes are open as the host can have."""


STATUS = {
    FailureKind.MESSAGE: HTTPStatus.BAD_REQUEST,
    FailureKind.TOKEN: HTTPStatus.UNAUTHORIZED,
    FailureKind.EPISODE: HTTPStatus.NOT_FOUND,
    FailureKind.ORDER: HTTPStatus.CONFLICT,
    FailureKind.NUMBER: HTTPStatus.CONFLICT,
    FailureKind.IDENTITY: HTTPStatus.PRECONDITION_FAILED,
    FailureKind.TOO_LONG: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    FailureKind.INPUT: HTTPStatus.UNPROCESSABLE_ENTITY,
    FailureKind.FAULT: HTTPStatus.INTERNAL_SERVER_ERROR,
    FailureKind.DEFECT: HTTPStatus.INTERNAL_SERVER_ERROR,
    FailureKind.RECURSION: HTTPStatus.INTERNAL_SERVER_ERROR,
    FailureKind.BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
}


class HostFailure(Record):
    """The body of every answer that is not 200: the kind of failure, and its cause in words."""

    kind: FailureKind
    detail: str = Field(max_length=_DETAIL)


class HostRefusal(Exception):
    """A request that a host does not carry out; ``failure`` is what it answers."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.failure = HostFailure(kind=kind, detail=detail[:_DETAIL])


class Identity(Record):
    """The environment of a host or of a client: the two must be equal.

    ``options`` are all of the environment's, with their defaults. ``source`` is the hash of the code that plays
    (``environments/``, and the user's own module), ``content`` that of the tools' documentation and the start states,
    which come from a benchmark's package.
    """

    protocol: int = PROTOCOL
    environment: str
    options: dict[str, JsonValue]
    source: str
    content: str

    @property
    def fingerprint(self) -> str:
        """The hash of all of it."""
        return _sha256(self.model_dump_json())

    def difference(self, other: Identity) -> str | None:
        """Return the first field in which the two differ with both values, in words; None where they are equal."""
        for name in type(self).model_fields:
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                return f"{name} {_short(others)} instead of {_short(mine)}"
        return None


class Health(Record):
    """The environment of a host, its limit of open episodes (``capacity``), those open, and how many it has opened."""

    identity: Identity
    capacity: int = Field(ge=1)
    open: int = Field(ge=0)
    opened: int = Field(ge=0)


class ToolNames(Record):
    """The tools whose documentation is asked for."""

    names: tuple[str, ...] = Field(max_length=10_000)


class Opening(Record):
    """Opens an episode of ``task`` under ``id``, on a host with ``fingerprint`` only.

    ``recorded``: calls may be answered from the environment's cache (``environments.base.recorded``).
    """

    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    fingerprint: str
    task: TaskSpec
    recorded: bool = False


class Act(Record):
    """The act with ``number`` in an episode: its methods by name; a step has an action."""

    number: int = Field(ge=0, lt=1_000_000)
    does: Literal["start", "step", "end_turn"]
    action: Action | None = None


def identity_of(environment: Environment, chosen: Chosen) -> Identity:
    """Return what ``environment``, opened as ``chosen`` says, is to a host and its clients."""
    starts = environment.starts()
    names = sorted({name for start in starts for name in start.tools})
    documented = [tool.model_dump_json() for tool in environment.tools(names)]
    return Identity(
        environment=environment.name,
        options=parse_options(find_benchmark(chosen.name), chosen.options).model_dump(mode="json"),
        source=_sha256(_source(), _own_source(chosen.name)),
        content=_sha256(*documented, *(start.model_dump_json() for start in starts)),
    )


def written(value: BaseModel | Any) -> bytes:  # noqa: ANN401 - a record, or JSON
    """Return a message as JSON. What Python reads of it equals ``value``, also half surrogates, which stay escaped."""
    plain = value.model_dump() if isinstance(value, BaseModel) else value
    return json.dumps(plain, separators=(",", ":")).encode()


def read(body: bytes) -> Any:  # noqa: ANN401 - JSON
    """Parse untrusted JSON. Raises ValueError for anything else, and for what is nested too deeply for the parser."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def too_deep(action: Action) -> bool:
    """Return whether the arguments of a call are nested deeper than ``MAX_DEPTH``."""
    if not isinstance(action, ToolCall):
        return False
    level: list[Any] = [action.arguments]
    for _ in range(MAX_DEPTH + 1):
        inner = [item for item in level if isinstance(item, list | dict)]
        if not inner:
            return False
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]
    return True


@cache
def _source() -> str:
    """Return the hash of the source of this package."""
    return _sha256(*(f"{path.relative_to(_PACKAGE)}\n{path.read_text()}" for path in sorted(_PACKAGE.rglob("*.py"))))


def _own_source(name: str) -> str:
    """Return the source of a user's module that ``module:attribute`` names; empty for a benchmark's name."""
    if not is_import_path(name):
        return ""
    find_benchmark(name)
    file = source_file(name)
    return "" if file is None else file.read_text()


def _sha256(*texts: str) -> str:
    joined = "\0".join(texts).encode(errors="backslashreplace")
    return hashlib.sha256(joined).hexdigest()[:16]


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 300 else f"{text[:300]}..."
