"""Explores AppWorld, guided by a context or uniformly: an episode aims at one API after another.

It logs in, looks up ids and reads API documentation as needed. Values come from the answers, each with its key and its
object; what a login takes is read from the documentation of tokens.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import NamedTuple

from pydantic import JsonValue

from agents.evidence import LiveRun, live_run
from agents.scripted.knowledge import Aims, name_words, overlap
from agents.scripted.values import Scalar
from agents.settings import ExplorationSettings
from environments.appworld.records import PYTHON
from environments.base import Environment, Observation, ObservationStatus, Parameter, ToolCall, ToolSpec
from memory.jsonl import derive_seed
from memory.records import FailureContext, Interaction

PROFILE = "supervisor.show_profile"
PASSWORDS = "supervisor.show_account_passwords"
COMPLETE = "supervisor.complete_task"
ACTIVE_TASK = "supervisor.show_active_task"
TOKEN = "access_token"
_TOKEN_OF = re.compile(r"obtained from (\w+) app login")
_NAMED_BY = re.compile(r"account (\w+)")
_ACCOUNT = frozenset(("account", "login", "logout", "signup", "password", "verification", "verify"))


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
    return tuple(
        AnswerValue(f"{within.removesuffix('s')}_id" if key == "id" and within else key, value, app, record, place)
        for within, record in _records(_content(observation), "")
        for key, value in record.items()
    )


def records(observation: Observation) -> tuple[dict[str, Scalar], ...]:
    """Return the plain values of an answer that is one object, or of each object of a list."""
    content = _content(observation)
    listed = content if isinstance(content, list) else [content]
    return tuple(_plain(one) for one in listed if isinstance(one, dict))


def _content(observation: Observation) -> JsonValue:
    try:
        content: JsonValue = json.loads(observation.text)
    except ValueError:
        return None
    return content


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


def last_token(login: str, seen: Sequence[AnswerValue]) -> str | None:
    """Return the newest token that ``login`` returned."""
    app = login.partition(".")[0]
    return next((str(s.value) for s in reversed(seen) if s.key == TOKEN and s.app == app), None)


_TRIES = 2
_DEEPEST = 3
_READING = ("show", "search", "get")
_DOCUMENTATION = "api_docs.show_api_doc"
_INVALID = "Validation error"
_OPTIONAL = 0.25
_NEVER = re.compile(r"page_|sort_by|_order$|_?access_token$|file_path|overwrite|^min_|^max_|^status$|^answer$")
_BOUND = re.compile(r"value (>=|>|<=|<) (\d+(?:\.\d+)?(?:e\+\d+)?)|(?<=, )(<=|<) (\d+(?:\.\d+)?(?:e\+\d+)?)")
_SHORT = frozenset(("title", "name", "label", "tags", "query"))
_WORDS = (
    *("summary", "draft", "archive", "final", "copy", "record", "backup", "review", "garden", "winter", "lemon"),
    *("harbour", "window", "paper", "silver", "market", "morning", "river", "letter", "orange", "table", "travel"),
)
_MOST = 60
_ADDRESSES = ("email", "phone_number")


def is_id(parameter: Parameter) -> bool:
    """Return whether the parameter takes the id of an object of an app."""
    return parameter.name.endswith("_id") and parameter.type == "integer"


def chosen_parameters(tool: ToolSpec, rng: random.Random) -> tuple[Parameter, ...]:
    """Choose the parameters to give: the required ones, and now and then an optional one."""
    given = [p for p in tool.parameters if p.required and not _NEVER.search(p.name)]
    free = [p for p in tool.parameters if not p.required and not _NEVER.search(p.name) and not is_id(p)]
    changes = tool.name.partition(".")[2].startswith("update_")
    if free and (changes or rng.random() < _OPTIONAL):
        given.append(rng.choice(free))
    return tuple(given)


def known_values(parameter: Parameter, app: str, seen: Sequence[AnswerValue]) -> tuple[Scalar, ...]:
    """Return values seen under the parameter's key; an id only in its own app, others also by the key's last word."""
    if is_id(parameter):
        return tuple(dict.fromkeys(s.value for s in seen if s.key == parameter.name and s.app == app))
    same = [s for s in seen if s.key == parameter.name or parameter.name.endswith(f"_{s.key}")]
    of_type = [s.value for s in same if isinstance(s.value, str) == (parameter.type == "string")]
    return tuple(dict.fromkeys(of_type)) if parameter.type in ("string", "integer", "float") else ()


def draw_value(parameter: Parameter, app: str, seen: Sequence[AnswerValue], rng: random.Random) -> JsonValue:
    """Draw a value for ``parameter``, which is not a token.

    Raises LookupError for an id, an e-mail address or a telephone number where none was seen.
    """
    if parameter.choices:
        return rng.choice(parameter.choices)
    if is_id(parameter) or parameter.name.endswith(_ADDRESSES):
        values = known_values(parameter, app, seen)
        if not values:
            raise LookupError(parameter.name)
        return rng.choice(values)
    match parameter.type:
        case "boolean":
            return rng.random() < 0.5
        case "integer" | "float":
            return _number(parameter, rng)
        case "array":
            return [_written(parameter, rng)]
    return _written(parameter, rng)


def _number(parameter: Parameter, rng: random.Random) -> JsonValue:
    low, high = 1.0, None
    for sign, bound, other_sign, other in _BOUND.findall(parameter.description):
        at = float(bound or other)
        if (sign or other_sign).startswith(">"):
            low = max(at, low)
        else:
            high = at
    top = min(high if high is not None else low + _MOST, low + 9 * max(low, _MOST))
    number = rng.randint(ceil(low), max(ceil(low), floor(top)))
    return float(number) if parameter.type == "float" else number


def _written(parameter: Parameter, rng: random.Random) -> JsonValue:
    if "HH:MM" in parameter.description:
        return f"{rng.randint(0, 23):02}:{rng.choice((0, 15, 30, 45)):02}"
    if "YYYY-MM-DD" in parameter.description:
        return f"{rng.randint(2019, 2025)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    short = not _SHORT.isdisjoint(parameter.name.split("_"))
    return " ".join(rng.sample(_WORDS, rng.randint(1, 2) if short else rng.randint(2, 4)))


@dataclass
class ExploringEpisode:
    """Acts in one live episode until its steps are used up.

    ``aims`` says which API to reach next, or ``alike`` has those that are equally likely to be.
    """

    run: LiveRun
    tools: Mapping[str, ToolSpec]
    steps: int
    rng: random.Random
    aims: Aims
    alike: Sequence[str] | None
    seen: list[AnswerValue] = field(default_factory=list)
    looked: set[str] = field(default_factory=set)

    def play(self) -> None:
        """Reach for one API after another."""
        while self._may_act():
            self.looked.clear()
            before = len(self.run.interactions)
            aim = self.aims.next() if self.alike is None else self.rng.choices(self.alike)[0]
            self.aims.aimed[aim] += 1
            self._reach(self.tools[aim])
            if len(self.run.interactions) == before:
                return

    def _may_act(self) -> bool:
        return len(self.run.interactions) < self.steps

    def _reach(self, tool: ToolSpec, depth: int = 0) -> bool:
        """Try for one successful call of ``tool``: logged in, with seen values; one retry after a refusal."""
        for attempt in range(_TRIES):
            call = self._call(tool, depth)
            if call is None or not self._may_act():
                return False
            observation = self._act(call)
            if not observation.failed:
                return True
            invalid = attempt == 0 and _INVALID in observation.text
            if invalid and self._may_act() and _DOCUMENTATION in self.tools:
                app, _, api = tool.name.partition(".")
                self._act(ToolCall(name=_DOCUMENTATION, arguments={"app_name": app, "api_name": api}))
        return False

    def _call(self, tool: ToolSpec, depth: int) -> ToolCall | None:
        """Build a call of ``tool`` with its arguments, after the calls that they need; None if that fails."""
        arguments: dict[str, JsonValue] = {}
        for parameter in tool.parameters:
            login = login_of(parameter)
            if login is not None and (parameter.name == TOKEN or parameter.required):
                token = self._token(login)
                if token is None:
                    return None
                arguments[parameter.name] = token
        for parameter in chosen_parameters(tool, self.rng):
            for last in (False, True):
                try:
                    arguments[parameter.name] = draw_value(parameter, tool.group, self.seen, self.rng)
                    break
                except LookupError:
                    if last or depth >= _DEEPEST or not self._look(tool, parameter.name, depth):
                        return None
        in_order = {one.name: arguments[one.name] for one in tool.parameters if one.name in arguments}
        return ToolCall(name=tool.name, arguments=in_order)

    def _token(self, login: str) -> str | None:
        """Return a token of ``login``'s app, logging in if this episode has not yet; None where that is impossible."""
        known = last_token(login, self.seen)
        if known is not None:
            return known
        done = {i.action.name for i in self.run.interactions if isinstance(i.action, ToolCall)}
        for call in sign_in_calls(login, self.tools):
            if call.name not in done and self._may_act():
                self._act(call)
        last = login_call(self.tools[login], self.seen) if login in self.tools else None
        if last is None or not self._may_act():
            return None
        self._act(last)
        return last_token(login, self.seen)

    def _look(self, tool: ToolSpec, wanted: str, depth: int) -> bool:
        """Call an API of the same app that lists what ``wanted`` identifies, the likeliest first."""
        noun = name_words(wanted.removesuffix("_id"))
        options = [
            other
            for name, other in sorted(self.tools.items())
            if other.group == tool.group
            and name != tool.name
            and name not in self.looked
            and name.partition(".")[2].startswith(_READING)
            and wanted not in {p.name for p in other.parameters}
            and overlap(noun, name_words(name))
        ]
        options.sort(key=lambda other: (len(name_words(other.name)), self.rng.random()))
        for other in options[:2]:
            self.looked.add(other.name)
            if self._may_act() and self._reach(other, depth + 1):
                return True
        return False

    def _act(self, call: ToolCall) -> Observation:
        interaction = self.run.act(call)
        if not interaction.observation.failed:
            self.aims.succeeded[call.name] += 1
        if call.name != _DOCUMENTATION:
            app = self.tools[call.name].group
            self.seen += sightings(app, interaction.observation, interaction.position)
        return interaction.observation


_PATIENCE = 2


def explore(
    context: FailureContext, environment: Environment, settings: ExplorationSettings, seed: int, *, guided: bool
) -> tuple[Interaction, ...]:
    """Explore for R rounds of S steps; equal arguments give equal interactions.

    ``guided`` aims at the context's tool and those worth exploring, each until it was reached or tried twice, and draws
    by rank afterwards; otherwise every API is equally likely. Both act alike (our choice: they differ in their aims and
    not in their knowledge). A round that is not independent does not aim again at what earlier ones reached.
    """
    tools = {tool.name: tool for tool in environment.tools(context.tools)}
    names = [name for name in sorted(tools) if can_be_aimed_at(name)]
    wanted = [name for name in (context.tool, *context.explore) if name in names]
    interactions: list[Interaction] = []
    for number in range(settings.rounds):
        if settings.independent or number == 0:
            rng = random.Random(derive_seed(seed, "round", number) if number else seed)
            aims = Aims(names, wanted, _PATIENCE, rng)
        with live_run(environment, context, number, settings.steps) as run:
            ExploringEpisode(run, tools, settings.steps, rng, aims, None if guided else names).play()
            interactions += run.interactions
    return tuple(interactions)


def can_be_aimed_at(name: str) -> bool:
    """Return whether tasks are made about an API.

    None are about the own profile, accounts, documentation, code or the task itself. Every login reads the own
    profile, so that tasks about it would crowd out the others.
    """
    if name in (PYTHON, COMPLETE, ACTIVE_TASK, PROFILE) or name.startswith("api_docs."):
        return False
    return not is_about_accounts(name)
