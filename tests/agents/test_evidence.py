"""What is read of a trajectory without its reference: error classes and facts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.evidence import error_class, error_message, fact_values, facts_around
from environments.base import MalformedCall, Observation, ObservationStatus, ToolCall


def refused(text: str) -> Observation:
    return Observation(text=text, status=ObservationStatus.ERROR)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"error": "cat: \'a.txt\': No such file or directory"}', "cat: <text>: No such file or directory"),
        ('{"error": "grep: a.txt: No such file or directory"}', "grep: <text>: No such file or directory"),
        ('{"error": "Here are the unlocked doors: driver, rear_left"}', "Here are the unlocked doors: <list>"),
        (
            '{"error": "Pedal position must be between 0 and 1."}',
            "Pedal position must be between <number> and <number>.",
        ),
        ('{"error": 404}', "<number>"),
        ("Error during execution: name 'x' is not defined", "Error during execution: name <text> is not defined"),
    ],
)
def test_error_classes_hold_no_values(text: str, expected: str) -> None:
    assert error_class(refused(text)) == expected


def test_only_errors_have_a_class() -> None:
    assert error_class(Observation(text='{"error": "x"}', status=ObservationStatus.OK)) == ""


@settings(deadline=None)
@given(st.text(max_size=400))
def test_any_text_has_a_class_without_digits(text: str) -> None:
    found = error_class(refused(text))
    assert len(found) <= 160
    assert not any(character in "0123456789" for character in found)
    assert isinstance(error_message(text), str)


def test_facts_can_be_read_back(attempt) -> None:
    evidence = attempt(
        [[ToolCall(name="cat", arguments={"file_name": "notes.txt"})]],
        [
            [
                ToolCall(name="tail", arguments={"file_name": "nope.txt", "lines": 3}),
                MalformedCall(text="end", reason="x"),
            ]
        ],
        texts=['Show "notes.txt" and 12 lines.'],
    )
    values = fact_values(facts_around(evidence.task, evidence.trajectory, (0, 0)))
    assert values[:2] == (("file_name", "nope.txt"), ("lines", 3))
    assert values[2][0] == "observed"
    assert "No such file" in str(values[2][1])
    assert ("said", "notes.txt") in values
    assert ("said", 12.0) in values
    assert ("wrote", "end") in fact_values(facts_around(evidence.task, evidence.trajectory, (0, 1)))


def test_facts_past_the_last_step_are_those_of_the_text(attempt) -> None:
    evidence = attempt([[ToolCall(name="pwd")]], [[]], texts=['Where is "x"?'])
    assert facts_around(evidence.task, evidence.trajectory, (0, 0)) == ('said="x"',)


def test_facts_that_are_no_values_are_left_out() -> None:
    assert fact_values(("a=1", "free text", "b=not json", 'c="d=e"')) == (("a", 1), ("c", "d=e"))
