"""Follows a call of AppWorld back to the calls whose answers contain its arguments: the path to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import JsonValue

from agents.live import call_of
from agents.scripted.appworld import session
from agents.scripted.appworld.sightings import AnswerValue, sightings
from environments.base import ToolCall
from memory.records import Interaction

_FROM_ANSWERS = ("username", "password")


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
            origin = _origin(call_of(run[at]), name, value, before)
            if origin is not None:
                open_places.append(origin.place)
                if name.endswith("_id"):
                    origins[run[at].id, name] = origin
    return Path(tuple(run[at] for at in sorted(kept)), origins)


def _origin(call: ToolCall, name: str, value: JsonValue, before: Sequence[AnswerValue]) -> AnswerValue | None:
    app = call.name.partition(".")[0]
    if name.endswith(session.TOKEN):
        fitting = [s for s in before if s.key == session.TOKEN]
    elif name.endswith("_id"):
        fitting = [s for s in before if s.key == name and s.app == app]
    elif name in _FROM_ANSWERS and call.name.endswith(".login"):
        fitting = [s for s in before if s.app == "supervisor"]
    else:
        return None
    return next((s for s in fitting if s.value == value and type(s.value) is type(value)), None)
