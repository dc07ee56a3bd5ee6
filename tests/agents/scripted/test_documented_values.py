"""What documentation states about a parameter's values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.scripted.fitting import constants, in_range, mentioned, numbers
from environments.base import Parameter


def parameter(type_name: str, description: str, **changes) -> Parameter:
    return Parameter(name="p", type=type_name, description=description, required=True, **changes)


@pytest.mark.parametrize(
    ("given_parameter", "expected"),
    [
        (parameter("string", "Any.", choices=("on", "off")), ("on", "off")),
        (parameter("boolean", "True to start."), (True, False)),
        (parameter("string", "Mode ('l' for lines, 'w' for words)."), ("l", "w")),
        (parameter("string", 'Defaults to the current directory (".").'), ()),
        (parameter("string", "The driver's name."), ()),
        (parameter("integer", "'3' or '4'"), ()),
    ],
)
def test_constants(given_parameter: Parameter, expected: tuple) -> None:
    assert constants(given_parameter) == expected


def test_a_single_quoted_word_is_mentioned() -> None:
    assert mentioned(parameter("string", 'Defaults to the current directory (".").')) == (".",)


def test_numbers_keep_their_gloss() -> None:
    found = numbers(parameter("float", "Between 0 (not pressed) and 1 (fully pressed)."))
    assert [(n.value, n.denied) for n in found] == [(0.0, True), (1.0, False)]
    assert found[1].gloss == {"fully", "press"}


def test_a_default_is_a_documented_number() -> None:
    assert [n.value for n in numbers(parameter("integer", "Lines to show.", default=10))] == [10.0]
    assert numbers(parameter("string", "At most 5.", default=3)) == ()


@pytest.mark.parametrize(
    ("type_name", "description", "expected"),
    [
        ("float", "Should be between 0 and 20 and a multiple of 5.", (0.0, 5.0, 10.0, 15.0, 20.0)),
        ("integer", "From 3 to 5.", (3.0, 4.0, 5.0)),
        ("float", "Between 0 (off) and 1 (on).", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
        ("float", "The speed.", ()),
        ("string", "Between 1 and 2.", ()),
    ],
)
def test_ranges(type_name: str, description: str, expected: tuple[float, ...]) -> None:
    assert in_range(parameter(type_name, description)) == expected


@settings(deadline=None)
@given(low=st.integers(-50, 50), width=st.integers(0, 3000), step=st.sampled_from([1, 5]))
def test_values_lie_in_the_range_and_on_its_steps(low: int, width: int, step: int) -> None:
    values = in_range(parameter("integer", f"Between {low} and {low + width} and a multiple of {step}."))
    assert values[0] == low
    assert len(values) <= 1001
    assert all(low <= value <= low + width for value in values)
    assert all((value - low) % step == 0 for value in values)
