"""Drafts tasks from an exploration of AppWorld: paths to calls, ended by complete_task, and their texts.

A path (``path_to``) follows a call back to the calls whose answers contain its arguments. Its text is a user's request,
or a question: what to do and to what, never how. It is made from the documentation of the world's APIs
(``environments.task_text``), at run time. Of the calls on a path it names those that change something, and the last
one; logging in and looking up are left to the agent. An id is replaced by a name in the same object: ``delete a note
(the note with title "Groceries")``.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from agents.evidence import call_of, context_task, successful_runs
from agents.scripted.appworld.explorer import (
    COMPLETE,
    TOKEN,
    AnswerValue,
    can_be_aimed_at,
    is_about_accounts,
    records,
    sightings,
)
from agents.scripted.values import Scalar
from agents.settings import ExplorationSettings
from environments.base import Environment, ToolCall, ToolSpec
from environments.task_text import CONNECTIVES, clause
from memory.jsonl import record_id
from memory.records import Draft, FailureContext, Interaction

_AGAIN = 0.7
_TWO = 0.3


def draft(
    context: FailureContext,
    interactions: Sequence[Interaction],
    environment: Environment,
    settings: ExplorationSettings,
    seed: int,
) -> tuple[Draft, ...]:
    """Make at most ``drafts_per_context`` drafts within the settings' limits of calls; deterministic.

    A path to a call that changed something becomes a task to do that; a path to a call that only reads becomes a
    question. Now and then two changes are one task. With ``order: easy_first`` tools that the context names come first,
    then variety; with ``long_first`` the longest drafts do, and these among equals.
    """
    rng = random.Random(seed)
    tools = {tool.name: tool for tool in environment.tools(context.tools)}
    found: dict[str, _Task] = {}
    for run, places in _targets(context, interactions, rng):
        task = _task(run, places, tools, rng)
        if task is not None and settings.min_reference_calls <= len(task[1]) <= settings.max_reference_calls:
            found.setdefault(task[0], task)
    tasks = [*found.values()]
    if settings.order == "long_first":
        tasks.sort(key=lambda task: -len(task[1]))
    return tuple(
        Draft(
            **context_task(context).model_copy(update={"turns": (text,), "reference": (calls,)}).model_dump(),
            id=record_id("draft", context.id, place),
            context_id=context.id,
            parents=tuple(interaction.id for interaction in used),
        )
        for place, (text, calls, used) in enumerate(tasks[: settings.drafts_per_context])
    )


_Task = tuple[str, tuple[ToolCall, ...], tuple[Interaction, ...]]


def _targets(
    context: FailureContext, interactions: Sequence[Interaction], rng: random.Random
) -> Iterator[tuple[Sequence[Interaction], tuple[int, ...]]]:
    """Yield runs of successful calls with the indices that a task is to be about, the most wanted first."""
    wanted = list(dict.fromkeys((context.tool, *context.explore) if context.tool else context.explore))
    rank = {name: float(place) for place, name in enumerate(wanted)}
    found: list[tuple[float, float, tuple[Interaction, ...], int]] = []
    times: Counter[str] = Counter()
    for run in successful_runs(interactions):
        for place, interaction in enumerate(run):
            name = call_of(interaction).name
            if can_be_aimed_at(name):
                found.append((rank.get(name, float(len(wanted))) + _AGAIN * times[name], rng.random(), run, place))
                times[name] += 1
    found.sort(key=lambda entry: entry[:2])
    for _, _, run, place in found:
        before = [other for other in range(place) if run[other].changed and can_be_aimed_at(call_of(run[other]).name)]
        if before and run[place].changed and rng.random() < _TWO:
            yield run, (rng.choice(before), place)
        yield run, (place,)


def _task(
    run: Sequence[Interaction], places: Sequence[int], tools: dict[str, ToolSpec], rng: random.Random
) -> _Task | None:
    """Make text, reference and interactions of the task to repeat the calls at ``places``; None if that fails."""
    paths = [path_to(run, place) for place in places]
    last = run[places[-1]]
    asked = None if last.changed else question(last, rng)
    if not last.changed and asked is None:
        return None
    text = said_text(paths, tools, run, rng)
    if text is None:
        return None
    kept = {interaction.id for path in paths for interaction in path.interactions}
    used = tuple(interaction for interaction in run if interaction.id in kept)
    end = ToolCall(name=COMPLETE, arguments={} if asked is None else {"answer": asked[1]})
    calls = (*(call_of(interaction) for interaction in used), end)
    return text if asked is None else f"{text}{rng.choice(CONNECTIVES)}{asked[0]}", calls, used


_NAMES = (
    *("title", "name", "label", "email", "phone_number", "card_name"),
    *("description", "message", "content", "comment"),
)
_LONGEST = 60
_OTHERS_WORDS = re.compile(r"\byour(?: supervisor's)?\b")  # documentation says "your", the user says "my"
_SIGN_INS = ("username", "password")


def said_text(
    paths: Sequence[Path], tools: Mapping[str, ToolSpec], observed: Sequence[Interaction], rng: random.Random
) -> str | None:
    """Write the user's text for several paths, one after the other; None if one of them would be ambiguous.

    ``observed`` are the successful calls of the paths' run.
    """
    clauses: dict[str, str] = {}
    for path in paths:
        for interaction in path.interactions:
            changes = interaction.changed and not is_about_accounts(call_of(interaction).name)
            if interaction.id in clauses or not (changes or interaction is path.interactions[-1]):
                continue
            words = _words(interaction, path, observed)
            if words is None:
                return None
            clauses[interaction.id] = _OTHERS_WORDS.sub("my", clause(call_of(interaction), tools, rng, words))
    text = ""
    for spoken in clauses.values():
        text += (rng.choice(CONNECTIVES) if text else "") + spoken
    return text


def _words(interaction: Interaction, path: Path, observed: Sequence[Interaction]) -> dict[str, str | None] | None:
    """Write a phrase for each argument, None for those left out; None if an id has no name."""
    words: dict[str, str | None] = {}
    for name, value in call_of(interaction).arguments.items():
        if name.endswith(TOKEN) or name in _SIGN_INS:
            words[name] = None
        elif name.endswith("_id"):
            origin = path.origins.get((interaction.id, name))
            words[name] = None if origin is None else _described(plain(name.removesuffix("_id")), origin, observed)
            if words[name] is None:
                return None
        else:
            items = value if isinstance(value, list) else [value]
            said = " and ".join(json.dumps(item, ensure_ascii=False) for item in items)
            words[name] = f"{plain(name)} {said}"
    return words


def _described(noun: str, origin: AnswerValue, observed: Sequence[Interaction]) -> str | None:
    source = observed[origin.place]
    if source.changed:
        return f"the new {noun}"
    name = name_beside(origin.record, records(source.observation))
    return None if name is None else f"the {noun} with {plain(name[0])} {json.dumps(name[1], ensure_ascii=False)}"


def plain(name: str) -> str:
    """Write a key or parameter as words."""
    return name.replace("_", " ")


def name_beside(record: Mapping[str, Scalar], others: Sequence[Mapping[str, Scalar]]) -> tuple[str, str] | None:
    """Return a (key, value) that names ``record`` and that no other record of its list has."""
    for key in _NAMES:
        value = record.get(key)
        short = isinstance(value, str) and 1 < len(value) <= _LONGEST and "\n" not in value
        if short and sum(other.get(key) == value for other in others) <= 1:
            return key, str(value)
    return None


_SHOWN = 4
_LONGEST_VALUE = 60
_NOT_ASKED = ("_id", "token", "password", "link", "url", "path", "message", "_at")


def question(interaction: Interaction, rng: random.Random) -> tuple[str, str] | None:
    """Write a question for one text in the interaction's answer, and return it with that text; None if there is none.

    In a list the question is about one of the first ``_SHOWN`` objects, named by a value that no other has. Arguments
    of the call are not asked for. Texts only: a number's key in an answer says less than the number itself (ours).
    """
    listed = records(interaction.observation)
    given = {str(value) for value in call_of(interaction).arguments.values()}
    options: list[tuple[str, str]] = []
    for record in listed[:_SHOWN]:
        name = name_beside(record, listed) if len(listed) > 1 else None
        if len(listed) > 1 and name is None:
            continue
        of = "" if name is None else f" of the one with {plain(name[0])} {json.dumps(name[1], ensure_ascii=False)}"
        for key, value in record.items():
            if _can_be_asked(key, value) and str(value) not in given and (name is None or key != name[0]):
                options.append((f"answer with the {plain(key)}{of}", str(value)))
    return rng.choice(options) if options else None


def _can_be_asked(key: str, value: Scalar) -> bool:
    if not isinstance(value, str) or not 1 < len(value.strip()) <= _LONGEST_VALUE or "\n" in value or '"' in value:
        return False
    return key != "id" and not key.endswith(_NOT_ASKED)


class Path(NamedTuple):
    """Interactions in order, of which the last is the goal, and where each id was seen."""

    interactions: tuple[Interaction, ...]
    origins: dict[tuple[str, str], AnswerValue]
    """(interaction id, parameter) of every id given -> where its value came from."""


def path_to(run: Sequence[Interaction], place: int) -> Path:
    """Return the path to the call at ``place`` of a run's successful calls.

    Tokens, names, passwords and ids are followed to the first earlier answer that contains them under a fitting key;
    all other arguments must be in the user's text.
    """
    seen = [sightings(call_of(i).name.partition(".")[0], i.observation, at) for at, i in enumerate(run[:place])]
    kept: set[int] = set()
    origins: dict[tuple[str, str], AnswerValue] = {}
    open_places = [place]
    while open_places:
        at = open_places.pop()
        if at in kept:
            continue
        kept.add(at)
        before = [sighting for answer in seen[:at] for sighting in answer]
        for name, value in call_of(run[at]).arguments.items():
            if (origin := _origin(call_of(run[at]), name, value, before)) is not None:
                open_places.append(origin.place)
                if name.endswith("_id"):
                    origins[run[at].id, name] = origin
    return Path(tuple(run[at] for at in sorted(kept)), origins)


def _origin(call: ToolCall, name: str, value: JsonValue, before: Sequence[AnswerValue]) -> AnswerValue | None:
    app = call.name.partition(".")[0]
    if name.endswith(TOKEN):
        fitting = [s for s in before if s.key == TOKEN]
    elif name.endswith("_id"):
        fitting = [s for s in before if s.key == name and s.app == app]
    elif name in _SIGN_INS and call.name.endswith(".login"):
        fitting = [s for s in before if s.app == "supervisor"]
    else:
        return None
    return next((s for s in fitting if s.value == value and type(s.value) is type(value)), None)
