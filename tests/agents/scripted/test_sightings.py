"""What an explorer remembers of states, answers and its own calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.scripted.values import MAX_TEXT, Sighting, Sightings
from environments.base import Observation, ObservationStatus, ToolCall

STATE = {
    "Files": {
        "root": {
            "home": {
                "type": "directory",
                "contents": {
                    "a.txt": {"type": "file", "content": "red, green and blue"},
                    "sub": {"type": "directory", "contents": {"b.txt": {"type": "file", "content": "x"}}},
                },
            }
        }
    },
    "Car": {"fuelLevel": 10.5, "locked": True, "destination": "Rivermist"},
}


def seen_state() -> Sightings:
    sightings = Sightings()
    sightings.see_state(STATE)
    return sightings


def of(sightings: Sightings, value: object) -> Sighting:
    return next(s for s in sightings if s.value == value)


def ok(text: str) -> Observation:
    return Observation(text=text, status=ObservationStatus.OK)


def test_a_state_gives_names_with_their_kind_and_place() -> None:
    sightings = seen_state()
    assert sightings.kinds() == {"directory", "fil"}
    assert of(sightings, "b.txt").near == {"home", "sub"}
    assert of(sightings, "b.txt").parent == "sub"
    assert of(sightings, 10.5).key == ("fuel",), "a level is one of something"
    assert of(sightings, "b.txt").key == ()
    assert of(sightings, "b.txt").around == {"content"}
    assert True not in [s.value for s in sightings if isinstance(s.value, bool)]
    assert {"type", "contents", "root", "fuelLevel"}.isdisjoint(s.value for s in sightings)


def test_texts_give_their_pieces() -> None:
    pieces = [s.value for s in seen_state() if s.piece]
    assert {"red", "green and blue", "green", "blue"} <= set(pieces)


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        ("Entities deleted successfully", False),
        ('{"result": "Entities deleted successfully"}', False),
        ("Delivery van", True),
        ('{"destination": "Port of Spain"}', True),
        ('["Port of Spain"]', True),
    ],
)
def test_a_sentence_that_says_what_was_done_is_not_a_value(answer: str, whole: bool) -> None:
    sightings = Sightings()
    sightings.see_observation(ToolCall(name="delete_entities"), ok(answer))
    assert any(not one.piece for one in sightings) is whole
    assert any(one.piece for one in sightings), "its words are values"


def test_the_place_moves_down_and_up() -> None:
    sightings = seen_state()
    assert sightings.place == "home"
    assert sightings.in_place(of(sightings, "a.txt"))
    assert not sightings.in_place(of(sightings, "b.txt"))
    sightings.move("sub")
    assert sightings.in_place(of(sightings, "b.txt"))
    sightings.move("..")
    assert sightings.place == "home"
    sightings.move("nowhere")
    assert sightings.place == "home"


def test_a_newer_answer_replaces_an_older_one() -> None:
    sightings = Sightings()
    look = ToolCall(name="ls")
    sightings.see_observation(look, ok('{"names": ["one"]}'))
    sightings.see_observation(look, ok('{"names": ["two"]}'))
    assert not sightings.is_fresh(of(sightings, "one"))
    assert sightings.is_fresh(of(sightings, "two"))


def test_answers_stand_near_their_arguments() -> None:
    sightings = Sightings()
    sightings.see_observation(ToolCall(name="cat", arguments={"file": "a.txt"}), ok('{"content": "hello"}'))
    assert of(sightings, "hello").near == {"a.txt"}


def test_what_a_call_made_has_its_kind_and_place() -> None:
    sightings = seen_state()
    sightings.see_call(ToolCall(name="mkdir", arguments={"name": "new"}), {"name": "directory"})
    assert sightings.in_place(of(sightings, "new"))
    assert sightings.kinds_of("new") == {"directory"}


def test_a_doubted_name_is_not_in_place_until_it_is_observed() -> None:
    sightings = seen_state()
    sightings.doubt(ToolCall(name="cat", arguments={"file": "a.txt"}), "'a.txt': No such file")
    assert not sightings.in_place(of(sightings, "a.txt"))
    sightings.see_observation(ToolCall(name="ls"), ok('["a.txt"]'))
    assert sightings.in_place(of(sightings, "a.txt"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(state=st.dictionaries(st.text(max_size=5), json_values, max_size=3), text=st.text(max_size=300))
def test_any_state_and_answer_can_be_taken(state: dict, text: str) -> None:
    sightings = Sightings()
    sightings.see_state(state)
    sightings.see_observation(ToolCall(name="f"), ok(text))
    for sighting in sightings:
        assert not isinstance(sighting.value, bool)
        if isinstance(sighting.value, str):
            assert 0 < len(sighting.value) <= MAX_TEXT


def test_missing_values_and_errors_are_not_values() -> None:
    sightings = Sightings()
    sightings.see_state({"Car": {"destination": "None", "owner": None, "note": "none, or Rivermist"}})
    read = ToolCall(name="read")
    sightings.see_observation(read, ok("None"))
    sightings.see_observation(read, ok('{"city": null, "zip": "83214"}'))
    sightings.see_observation(read, Observation(text='{"error": "no car"}', status=ObservationStatus.ERROR))
    values = {sighting.value for sighting in sightings}
    assert values >= {"83214", "Rivermist"}
    assert not {"None", "none", "no car", "car"} & values


def test_of_a_failed_trajectory_only_what_the_user_and_whole_answers_say_is_a_value() -> None:
    sightings = Sightings()
    sightings.see_facts(
        (
            'said="Rivermist"',
            'city="Stonebrook"',
            'wrote="A @display_log @messages=[$1"',
            'messages=["$1"]',
            'observed="{\\"zip\\": \\"83214\\"}"',
            'observed="{\\"error\\": \\"no shop\\"}"',
            'observed="{\\"cut\\": \\"of"',
            'observed="None"',
        )
    )
    assert [sighting.value for sighting in sightings] == ["Stonebrook", "$1", "83214"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[{'name': 'books'}, {'name': 'boats', 'more': (1, 2.5)}]", {"books", "boats", 1, 2.5}),
        ("[{'name': None}]", set()),
        ("{'name': books}", {"{'name': books}", "name", "books"}),
        ("[" * 5000 + "]" * 5000, set()),
        ("{1j: 2}", {"{1j: 2}"}),
    ],
)
def test_answers_in_pythons_notation_are_read_and_broken_ones_are_texts(text: str, values: set[object]) -> None:
    sightings = Sightings()
    sightings.see_observation(ToolCall(name="f"), ok(text))
    assert {one.value for one in sightings} == values
