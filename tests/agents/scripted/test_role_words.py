"""Words: splitting, stemming, overlap."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.scripted.knowledge import about, name_words, overlap, parameter_words, share
from environments.base import ToolSpec
from environments.task_text import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lockDoors", ("lock", "door")),
        ("get_zipcode_based_on_city", ("get", "zipcod", "city")),
        ("All doors must be locked before starting the engine.", ("door", "lock", "befor", "start", "engin")),
        ("Directories", ("directory",)),
        ("cityA", ("city",)),
        ("press the unlocked brake", ("press", "unlock", "brak")),
        ("", ()),
    ],
)
def test_words(text: str, expected: tuple[str, ...]) -> None:
    assert words(text) == expected


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_words_of_two_texts_are_those_of_each(one: str, other: str) -> None:
    assert words(f"{one} {other}") == words(one) + words(other)
    assert all(word and word == word.lower() for word in words(one))


@settings(deadline=None)
@given(st.sets(st.sampled_from(["dir", "directory", "file", "door"])), st.sets(st.sampled_from(["directory", "door"])))
def test_share_is_a_share(left: set[str], right: set[str]) -> None:
    assert 0.0 <= share(left, right) <= 1.0
    assert share(left, left) == (1.0 if left else 0.0)


def test_overlap_knows_abbreviations_of_three_letters() -> None:
    assert overlap(name_words("dir_name"), {"directory"}) == 1
    assert overlap({"fi"}, {"file"}) == 0


def test_documentation_is_read_without_what_its_group_shares() -> None:
    tool = ToolSpec(
        name="honk", group="Car", description="This belongs to the climate group. Tool description: Makes a noise."
    )
    assert about(tool) == {"honk", "mak", "nois"}


def test_descriptions_are_read_without_their_choices() -> None:
    description = 'The zipcode of the first city. [Enum]: ["north"]'
    assert "zipcod" in parameter_words(description)
    assert "north" not in parameter_words(description)
