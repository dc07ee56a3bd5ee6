"""Wordings: enough of them for every shape, and values that can be read back."""

import random
import re
import string
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.templated_calls import (
    FORBIDDEN,
    LITERAL,
    LONG_NAMES,
    OTHER_TOOLS,
    TOOLS,
    WORLD_TOOLS,
    documented_calls,
    forbidden,
    numbers,
    quoted,
    shapes,
    words_outside_quotes,
)

from environments.base import InputError, ToolCall
from environments.bfcl.templated.wordings import CASES, SUFFIXES, clause, constants_of, templates
from environments.task_text import CONNECTIVES

SHAPES = tuple(shapes())
WORLD_SHAPES = (*SHAPES, *shapes(OTHER_TOOLS))


def shape_of(call):
    return f"{call.name}({', '.join(f'{name}={value}' for name, value in call.arguments.items())})"


def test_the_forbidden_names_are_those_of_the_documentation():
    assert len(TOOLS) == 40
    assert {"cat", "sort", "startengine", "a", "name", "folder", "unlock", "messages", "distance"} <= FORBIDDEN
    assert len(WORLD_TOOLS) == 128
    assert {"book_flight", "ticket_id", "lastmodifiedafter"} <= LONG_NAMES
    assert forbidden("cat") == FORBIDDEN
    assert forbidden("mean") == {*LONG_NAMES, "mean"}


@pytest.mark.parametrize("call", WORLD_SHAPES, ids=shape_of)
def test_every_shape_has_several_wordings(call):
    assert len(set(templates(call))) >= 3


@pytest.mark.parametrize("call", WORLD_SHAPES, ids=shape_of)
def test_wordings_are_short_and_name_nothing(call):
    for template in templates(call):
        own = re.sub(r"\{\w+\}", "VALUE", template)
        assert 2 <= len(own.split()) <= 30
        assert not words_outside_quotes(own) & forbidden(call.name)
        assert not re.search(r"[0-9\"$]", own)
        assert own == own.strip()
        assert "  " not in own


@pytest.mark.parametrize("tool", OTHER_TOOLS, ids=lambda tool: tool.name)
def test_no_clause_holds_a_connective(tool):
    """A text can be taken apart at its connectives; in the first two classes a few clauses hold an "and"."""
    for call in shapes([tool]):
        for template in templates(call):
            assert not [one for one in CONNECTIVES if one in f" {template} "]


def test_words_of_constants_and_connectives_name_nothing():
    for text in CONNECTIVES:
        assert not words_outside_quotes(text) & FORBIDDEN
    for tool in WORLD_TOOLS:
        for parameter in tool.parameters:
            said = set().union(*map(words_outside_quotes, constants_of(tool.name, parameter.name).values()))
            # "read_write" is a documented constant, and no name.
            assert not (said - {"read_write"}) & forbidden(tool.name)


def test_clauses_have_three_to_nine_words_unless_they_hold_four_values():
    by_function = defaultdict(list)
    for call in SHAPES:
        by_function[call.name] += [len(text.split()) for text in templates(call)]
    means = {name: sum(lengths) / len(lengths) for name, lengths in by_function.items()}
    assert [name for name, mean in means.items() if not 3 <= mean <= 9] == ["adjustClimateControl"]
    assert max(max(lengths) for lengths in by_function.values()) <= 15


def test_no_wording_stands_for_two_goals():
    meaning = {}
    for call in WORLD_SHAPES:
        said = {"mode": "l", **call.arguments} if call.name == "wc" else call.arguments  # "l" is wc's default
        for template in templates(call):
            slots = {name for _, name, _, _ in string.Formatter().parse(template) if name}
            unsaid = tuple(sorted((name, str(value)) for name, value in said.items() if name not in slots))
            assert meaning.setdefault(template, (call.name, unsaid)) == (call.name, unsaid), template


def test_the_table_is_about_the_documented_functions_and_nothing_else():
    documented = {tool.name: tool for tool in WORLD_TOOLS}
    assert {case.function for case in CASES} == set(documented)
    assert {suffix.function for suffix in SUFFIXES} <= set(documented)
    for phrase in (*CASES, *SUFFIXES):
        assert phrase in SUFFIXES or len(phrase.openings) == len(phrase.texts) == 3
        slots = [frozenset(n for _, n, _, _ in string.Formatter().parse(text) if n) for text in phrase.texts]
        assert len(set(slots)) == 1, f"texts of {phrase.function} say different values"


def scalars(value):
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [value]


@given(documented_calls(WORLD_TOOLS), st.integers(0, 2**32))
def test_any_documented_call_can_be_said_and_its_values_read_back(call, seed):
    text = clause(call, random.Random(seed))
    assert not (words_outside_quotes(LITERAL.sub(" ", text)) - {"read_write"}) & forbidden(call.name)
    assert text == clause(call, random.Random(seed))
    strings, bare = [], []
    for name, value in call.arguments.items():
        items = scalars(value)
        if words := constants_of(call.name, name):
            strings += [item for item in items if " " in item and words[item] == f'"{item}"']
        elif (call.name, name) != ("wc", "mode"):
            documented = next(tool for tool in WORLD_TOOLS if tool.name == call.name).parameter(name).choices
            strings += [item for item in items if isinstance(item, str) and item not in documented]
        bare += [item for item in items if isinstance(item, int | float) and not isinstance(item, bool)]
    assert sorted(quoted(text)) == sorted(strings)
    assert sorted(map(repr, numbers(text))) == sorted(map(repr, bare))


@pytest.mark.parametrize(
    ("doors", "words"),
    [
        (["driver"], "driver"),
        (["rear_left", "driver"], "rear left and driver"),
        (["driver", "passenger", "rear_left"], "driver, passenger and rear left"),
        (["rear_right", "rear_left", "driver", "passenger"], "all"),
        ([], "no"),
    ],
)
def test_lists_of_constants_are_said_in_words(doors, words):
    call = ToolCall(name="lockDoors", arguments={"unlock": False, "door": doors})
    said = clause(call, random.Random(1))
    assert re.match(rf"(lock|secure|get) {words} (car )?doors", said)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("sum_values", {"numbers": [1, -2.5, 3]}, "1, -2.5, 3"),
        ("edit_ticket", {"ticket_id": 7, "updates": {"status": "open", "priority": 3}}, 'status "open", priority 3'),
        ("mention", {"tweet_id": 3, "mentioned_usernames": ["a", "b"]}, '"a", "b"'),
        ("get_nearest_airport_by_city", {"location": "Hong Kong"}, '"Hong Kong"'),
        ("get_nearest_airport_by_city", {"location": "Rome"}, "Rome"),
    ],
)
def test_lists_objects_and_constants_are_said_as_values(name, arguments, said):
    assert said in clause(ToolCall(name=name, arguments=arguments), random.Random(0))


def test_null_counts_as_not_given():
    with_null = ToolCall(name="echo", arguments={"content": "hi", "file_name": None})
    assert templates(with_null) == templates(ToolCall(name="echo", arguments={"content": "hi"}))


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("post_letter", {"content": "hi"}, "post_letter"),
        ("edit_ticket", {"ticket_id": 1, "updates": {"new status": "open"}}, "updates"),
        ("edit_ticket", {"ticket_id": 1, "updates": {"status": ["open"]}}, "updates"),
        ("mean", {"numbers": [1, [2]]}, "numbers"),
        ("compute_exchange_rate", {"value": 1, "base_currency": "DM", "target_currency": "EUR"}, "DM"),
        ("cat", {}, "cat"),
        ("cat", {"file_name": "x", "lines": 3}, "lines"),
        ("setHeadlights", {"mode": "dim"}, "dim"),
        ("wc", {"file_name": "x", "mode": "q"}, "q"),
        ("adjustClimateControl", {"temperature": 20, "unit": "kelvin"}, "kelvin"),
        ("displayCarStatus", {"option": "wheels"}, "wheels"),
        ("lockDoors", {"unlock": True, "door": ["driver", "roof"]}, "roof"),
        ("lockDoors", {"unlock": 1, "door": ["driver"]}, "unlock"),
        ("cat", {"file_name": {"x": [1]}}, "file_name"),
        ("fillFuelTank", {"fuelAmount": True}, "fuelAmount"),
        ("fillFuelTank", {"fuelAmount": float("inf")}, "fuelAmount"),
    ],
)
def test_what_cannot_be_said_is_refused(name, arguments, told):
    with pytest.raises(InputError, match=told):
        clause(ToolCall(name=name, arguments=arguments), random.Random(0))
