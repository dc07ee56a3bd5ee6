"""What an AppWorld answer shows: values with their keys and the object they belong to."""

from __future__ import annotations

import json

import pytest
from pydantic import JsonValue

from agents.scripted.appworld.explorer import records, sightings
from environments.base import Observation, ObservationStatus


def observed(content: JsonValue, status: ObservationStatus = ObservationStatus.OK) -> Observation:
    return Observation(text=json.dumps(content), status=status)


def test_a_value_keeps_its_key_and_its_object() -> None:
    (number, title) = sightings("shop", observed([{"basket_id": 7, "title": "Party"}]), 4)
    assert (number.key, number.value, number.app, number.place) == ("basket_id", 7, "shop", 4)
    assert title.record == number.record == {"basket_id": 7, "title": "Party"}


def test_a_bare_id_is_named_after_its_list() -> None:
    found = sightings("shop", observed({"title": "x", "artists": [{"id": 1, "name": "The Mills"}]}), 0)
    assert [(s.key, s.value) for s in found] == [("title", "x"), ("artist_id", 1), ("name", "The Mills")]


@pytest.mark.parametrize(
    "observation",
    [
        observed({"error": "no"}, ObservationStatus.ERROR),
        observed([], ObservationStatus.EMPTY),
        Observation(text="Execution successful.", status=ObservationStatus.OK),
        observed({"flag": True, "none": None, "names": ["a"]}),
    ],
)
def test_nothing_is_seen_in(observation: Observation) -> None:
    assert sightings("shop", observation, 0) == ()


def test_records_are_the_objects_of_a_list_or_the_one_object() -> None:
    assert records(observed([{"a": 1, "b": [2]}, {"a": 3}, 4])) == ({"a": 1}, {"a": 3})
    assert records(observed({"a": 1})) == ({"a": 1},)
    assert records(Observation(text="no JSON", status=ObservationStatus.OK)) == ()
