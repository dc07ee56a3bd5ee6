"""Values in AppWorld's answers, each with its key and its object; and the calls that log in to an app by them.

What a login takes is read from the documentation of tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from environments.base import Observation, ObservationStatus, Parameter, ToolCall, ToolSpec

PROFILE = "supervisor.show_profile"
PASSWORDS = "supervisor.show_account_passwords"
COMPLETE = "supervisor.complete_task"
ACTIVE_TASK = "supervisor.show_active_task"
TOKEN = "access_token"
_TOKEN_OF = re.compile(r"obtained from (\w+) app login")
_NAMED_BY = re.compile(r"account (\w+)")
_ACCOUNT = frozenset(("account", "login", "logout", "signup", "password", "verification", "verify"))

Scalar = str | int | float


class AnswerValue(NamedTuple):
    """One value of an answer.

    ``key``: its key, ``artist_id`` for an ``id`` in a list of ``artists``. ``app``: the app that answered. ``record``:
    the plain values of its object. ``place``: the index of the answer, from 0.
    """

    key: str
    value: Scalar
    app: str
    record: dict[str, Scalar]
    place: int


def sightings(app: str, observation: Observation, place: int) -> tuple[AnswerValue, ...]:
    """Return every string and number of an answer in reading order; nothing for a failure or text that is not JSON."""
    if observation.status is not ObservationStatus.OK:
        return ()
    try:
        content: JsonValue = json.loads(observation.text)
    except ValueError:
        return ()
    return tuple(
        AnswerValue(key if key != "id" or not within else f"{_singular(within)}_id", value, app, record, place)
        for within, record in _records(content, "")
        for key, value in record.items()
    )


def records(observation: Observation) -> tuple[dict[str, Scalar], ...]:
    """Return the plain values of an answer that is one object, or of each object of a list."""
    try:
        content: JsonValue = json.loads(observation.text)
    except ValueError:
        return ()
    listed = content if isinstance(content, list) else [content]
    return tuple(_plain(one) for one in listed if isinstance(one, dict))


def _records(content: JsonValue, within: str) -> Iterator[tuple[str, dict[str, Scalar]]]:
    if isinstance(content, dict):
        yield within, _plain(content)
        for key, child in content.items():
            yield from _records(child, key)
    elif isinstance(content, list):
        for child in content:
            yield from _records(child, within)


def _plain(record: dict[str, JsonValue]) -> dict[str, Scalar]:
    return {
        key: value
        for key, value in record.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    }


def _singular(name: str) -> str:
    return name.removesuffix("s")


def login_of(parameter: Parameter) -> str | None:
    """Return the API whose answer has the token that ``parameter`` takes; None if it does not take a token."""
    found = _TOKEN_OF.search(parameter.description)
    return f"{found.group(1)}.login" if found and parameter.name.endswith(TOKEN) else None


def is_about_accounts(name: str) -> bool:
    """Return whether an API logs in or out, or manages an account: tasks are not made about these."""
    return not _ACCOUNT.isdisjoint(name.partition(".")[2].split("_"))


def sign_in_calls(login: str, tools: Mapping[str, ToolSpec]) -> tuple[ToolCall, ...]:
    """Return the calls whose answers have what ``login`` takes; empty where the tools offer no login."""
    needed = (PROFILE, PASSWORDS, login)
    return tuple(ToolCall(name=name) for name in needed[:2]) if all(name in tools for name in needed) else ()


def login_call(login: ToolSpec, seen: Sequence[AnswerValue]) -> ToolCall | None:
    """Return the call of ``login`` with the supervisor's name and password for its app; None while they are unknown."""
    username = login.parameter("username")
    named = _NAMED_BY.search(username.description) if username else None
    app = login.group
    user = next((s.value for s in seen if s.app == "supervisor" and named and s.key == named.group(1)), None)
    password = next((s.value for s in seen if s.key == "password" and s.record.get("account_name") == app), None)
    if user is None or password is None:
        return None
    return ToolCall(name=login.name, arguments={"username": user, "password": password})


def token(login: str, seen: Sequence[AnswerValue]) -> str | None:
    """Return the newest token that ``login`` returned."""
    app = login.partition(".")[0]
    return next((str(s.value) for s in reversed(seen) if s.key == TOKEN and s.app == app), None)
