"""Grounding: a value counts as known only where an agent could have read it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import (
    InputError,
    Observation,
    ObservationStatus,
    Outcome,
    Parameter,
    TaskSpec,
    ToolCall,
    ToolSpec,
)
from environments.task_text import Seen, documented
from environments.verification.replay import Replay, ReplayedTurn, ungrounded

WORDS = st.text(alphabet=st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=12).filter(
    lambda text: text.strip()
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("report.txt", 'copy "report.txt" please'),
        ("report.txt", "Copy Report.TXT."),
        ("report", "the file report.txt"),
        ("Springfield, IL", "drive to Springfield,\n  IL today"),
        ("94016", "zipcode 94016"),
        ("line one", '{"file_content": "line one\\nline two"}'),
        ("line one\nline two", '{"file_content": "line one\\nline two"}'),
        ('say "hi"', '{"line": "say \\"hi\\""}'),
        ("café", '{"name": "caf\\u00e9"}'),
        (30, "set it to 30.0 degrees"),
        (30.0, "set it to 30"),
        (30, "it is 30."),
        (30, "fill 30gal"),
        (-5, "minus is -5"),
        (5, "2-5 doors"),
        (2, "2-5 doors"),
        (1500, "for 1,500 dollars"),
        (0.25, "press to 0.25"),
        (12.5, '{"fuelLevel": 12.5}'),
        (1e-05, "at 1e-05"),
    ],
)
def test_it_finds(value, text):
    assert Seen([text]).has(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("report", "the reports"),
        ("port", "report.txt"),
        ("a.txt", "data.txt"),
        ("", "anything"),
        ("   ", "anything   here"),
        ("one two", "one and two"),
        (30, "set it to 300"),
        (30, "set it to 30.5"),
        (30, "file30"),
        (0, "10"),
        (5, "at -5"),
        (1, "1,500"),
        (18, "2023-05-18T12:00:00"),
        (3, "born on 1970-01-03"),
        (True, "true"),
    ],
)
def test_it_does_not_find(value, text):
    assert not Seen([text]).has(value)


def test_texts_do_not_run_into_each_other():
    seen = Seen(["one", "two"])
    assert seen.has("one")
    assert not seen.has("one two")


@given(WORDS, WORDS, WORDS)
def test_a_string_in_quotes_is_always_found(before, value, after):
    assert Seen([f'{before} "{value}" {after}']).has(value)


@given(WORDS)
def test_a_string_in_a_json_observation_is_always_found(value):
    assert Seen([json.dumps({"result": [value]})]).has(value)


@given(WORDS, WORDS)
def test_a_string_is_never_found_in_a_text_without_it(value, text):
    if " ".join(value.casefold().split()) not in " ".join(text.casefold().split()):
        assert not Seen([text]).has(value)


@given(st.text(alphabet="abcdefgh", min_size=1), st.text(alphabet="abcdefgh", min_size=1))
def test_a_word_is_never_found_inside_a_longer_one(value, rest):
    assert not Seen([value + rest]).has(value) or value in rest.split()
    assert not Seen([rest + value + rest]).has(value)


@given(st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_found_as_python_and_json_write_it(value):
    assert Seen([f"use {value} here"]).has(value)
    assert Seen([json.dumps({"value": value})]).has(value)


@given(st.integers(-(10**9), 10**9))
def test_a_whole_number_is_the_same_value_as_integer_and_float(value):
    assert Seen([f"{value}"]).has(float(value))
    assert Seen([f"{float(value)}"]).has(value)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_number_is_found_only_by_its_value(value, other):
    assert Seen([f"use {other} here"]).has(value) == (value == other)


MODE = Parameter(
    name="mode",
    type="string",
    description="'l' for lines, the user's `w`",
    required=False,
    choices=("on",),
    default="x",
)
LEVEL = Parameter(name="level", type="float", description="between 0 and 1 (fully)", required=False, default=50)
DOORS = Parameter(name="doors", type="array", description="doors", required=True, choices=("driver",), items="string")
TOOL = ToolSpec(name="t", group="G", description='Writes "log.txt" up to 99.', parameters=(MODE, LEVEL, DOORS))


@pytest.mark.parametrize(
    ("value", "parameter", "known"),
    [
        ("on", MODE, True),
        ("x", MODE, True),
        ("l", MODE, True),
        ("w", MODE, True),
        ("log.txt", MODE, True),
        ("lines", MODE, False),
        ("off", MODE, False),
        (True, MODE, True),
        (None, MODE, True),
        (0, LEVEL, True),
        (1.0, LEVEL, True),
        (50.0, LEVEL, True),
        (99, LEVEL, False),
        (0.5, LEVEL, False),
        ("driver", DOORS, True),
        ("boot", DOORS, False),
    ],
)
def test_the_documentation_states_choices_defaults_quotes_and_numbers(value, parameter, known):
    assert documented(value, TOOL, parameter) is known


def test_escaped_literals_in_a_turn_are_read_without_their_escapes() -> None:
    seen = Seen([r'write "line one\nline \"two\"" into the file "notes.md"'])
    assert seen.has('line one\nline "two"')
    assert not seen.has("line three")


RUN = ToolSpec(
    name="run",
    group="run",
    description="Runs code.",
    parameters=(Parameter(name="code", type="code", description="", required=True),),
)
BUY = ToolSpec(
    name="shop.buy",
    group="shop",
    description="Buys.",
    parameters=(
        Parameter(name="name", type="string", description="what", required=True),
        Parameter(name="count", type="integer", description="how many (value <= 20)", required=False, default=1),
    ),
)


class Documented:
    """An environment that has documentation and nothing else."""

    name = "documented"

    def tools(self, names):
        known = {"run": RUN, "shop.buy": BUY}
        if not set(names) <= set(known):
            raise InputError("there is no such tool")
        return tuple(known[name] for name in names)


def unknown_in(text: str, *steps: str | tuple[str, str]) -> tuple[str, ...]:
    """What is ungrounded in programs: each with what it prints, if anything."""
    pairs = [(step, "") if isinstance(step, str) else step for step in steps]
    calls = tuple(ToolCall(name="run", arguments={"code": code}) for code, _ in pairs)
    seen = tuple(Observation(text=printed, status=ObservationStatus.OK) for _, printed in pairs)
    task = TaskSpec(
        environment="documented",
        split="train",
        classes=("run",),
        turns=(text,),
        initial_state={},
        tools=("run",),
        reference=(calls,),
    )
    turn = ReplayedTurn(calls=calls, observations=seen, states=("",) * len(calls))
    return ungrounded(Documented(), task, Replay(initial="", turns=(turn,), outcome=Outcome(success=True, turns=())))


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("Buy 'green tea'.", ["apis.shop.buy(name='green tea')"]),
        ("Buy it.", ["apis.shop.buy(name=things[0]['name'], count=1)"]),
        ("Buy it.", ["apis.shop.buy(name=name, count=20)"]),
        ("Buy it.", ["def buy(api, **given):\n    return api(**given)", "buy(apis.shop.buy, count=20)"]),
        ("Buy it.", ["shop = apis.shop", "shop.buy(name=name, count=20)"]),
        ("Buy it.", ["key = [a for a in accounts if a['app'] == 'shop']", "apis.shop.buy(name=key)"]),
        ("Buy it.", [("print(x)", '["kim-77"]'), "apis.shop.buy(name='kim-77')"]),
        ("Take 12 of them.", ["apis.shop.buy(name=name, count=12 + 0)"]),
    ],
)
def test_the_literals_of_a_program_are_found_one_by_one(text, steps):
    assert unknown_in(text, *steps) == ()


@pytest.mark.parametrize(
    ("text", "steps", "call", "value"),
    [
        ("Buy it.", ["apis.shop.buy(name='tea')"], 1, "'tea'"),
        ("Buy it.", ["x = 1", "apis.shop.buy(name=x, count=21)"], 2, "21"),
        ("Buy it.", ["most = 20"], 1, "20"),
        ("Buy it.", ["apis.shop.sell(name='tea')"], 1, "'tea'"),
        ("Buy it.", ["key = [a for a in accounts if a['app'] == 'shop']"], 1, "'shop'"),
        ("Buy it.", [("print('kim-77')", "kim-77")], 1, "'kim-77'"),
        ("Buy it.", ["print("], 1, "'print('"),
        ("Buy 'tea'.", ["apis.shop.buy(name='tea', count=name == 'teas')"], 1, "'teas'"),
    ],
)
def test_a_literal_that_nobody_told_is_named(text, steps, call, value):
    assert unknown_in(text, *steps) == (f"turn 1, call {call}: {value} in the code of run",)
