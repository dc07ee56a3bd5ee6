"""Values that AppWorld's answers showed, each with the key it stood under and the object it belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import JsonValue

from environments.base import Observation, ObservationStatus

Scalar = str | int | float


class SeenValue(NamedTuple):
    """One value of an answer.

    ``key``: the name it stands under, ``artist_id`` for an ``id`` in a list of ``artists``. ``app``: whose answer.
    ``record``: the plain values of the object that it is one of. ``place``: the number of the answer, from 0.
    """

    key: str
    value: Scalar
    app: str
    record: dict[str, Scalar]
    place: int


def sightings(app: str, observation: Observation, place: int) -> tuple[SeenValue, ...]:
    """Every string and number of an answer in reading order; none of an answer that is no success or no JSON."""
    if observation.status is not ObservationStatus.OK:
        return ()
    try:
        content: JsonValue = json.loads(observation.text)
    except ValueError:
        return ()
    return tuple(
        SeenValue(key if key != "id" or not within else f"{_singular(within)}_id", value, app, record, place)
        for within, record in _records(content, "")
        for key, value in record.items()
    )


def records(observation: Observation) -> tuple[dict[str, Scalar], ...]:
    """The plain values of an answer that is one object, or of each object of one that is a list."""
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
