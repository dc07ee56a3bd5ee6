"""Logging in to an app of AppWorld: the calls that it takes, read from the documentation of tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from agents.scripted.appworld.sightings import AnswerValue
from environments.base import Parameter, ToolCall, ToolSpec

PROFILE = "supervisor.show_profile"
PASSWORDS = "supervisor.show_account_passwords"
COMPLETE = "supervisor.complete_task"
ACTIVE_TASK = "supervisor.show_active_task"
TOKEN = "access_token"
_TOKEN_OF = re.compile(r"obtained from (\w+) app login")
_NAMED_BY = re.compile(r"account (\w+)")
_ACCOUNT = frozenset(("account", "login", "logout", "signup", "password", "verification", "verify"))


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
