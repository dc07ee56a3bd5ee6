"""Fingerprints: blind to the order of keys and to wording, sensitive to every value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from environments.base import TaskSpec, ToolCall
from environments.verification.canonical import call_sequence, fingerprint

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
ARGUMENTS = st.dictionaries(st.text(min_size=1, max_size=6), VALUES, max_size=3)


def task(**changes) -> TaskSpec:
    fields = {
        "environment": "bfcl",
        "split": "train",
        "classes": ("VehicleControlAPI",),
        "turns": ("fill in 30 gallons",),
        "initial_state": {"VehicleControlAPI": {"fuelLevel": 10.0, "brakePedalStatus": "released"}},
        "setup": (ToolCall(name="lockDoors", arguments={"unlock": True, "door": ["driver"]}),),
        "tools": ("fillFuelTank",),
        "reference": ((ToolCall(name="fillFuelTank", arguments={"fuelAmount": 30}),),),
    }
    return TaskSpec(**{**fields, **changes})


def call(**arguments) -> ToolCall:
    return ToolCall(name="fillFuelTank", arguments=arguments)


@pytest.mark.parametrize(
    "changes",
    [
        {"turns": ("tank up by 30",)},
        {"tools": ("fillFuelTank", "lockDoors")},
        {"split": "dev"},
        {"reference": ((call(fuelAmount=30.0),),)},
        {"initial_state": {"VehicleControlAPI": {"brakePedalStatus": "released", "fuelLevel": 10}}},
    ],
)
def test_wording_key_order_and_number_format_do_not_matter(changes):
    assert fingerprint(task(**changes)) == fingerprint(task())


@pytest.mark.parametrize(
    "changes",
    [
        {"reference": ((call(fuelAmount=31),),)},
        {"reference": ((call(fuelAmount="30"),),)},
        {"reference": ((call(fuelAmount=30, extra=None),),)},
        {"reference": ((call(fuelAmount=30), call(fuelAmount=30)),)},
        {"reference": ((call(fuelAmount=30),), (call(fuelAmount=30),)), "turns": ("a", "b")},
        {"setup": ()},
        {"setup": (ToolCall(name="lockDoors", arguments={"unlock": 1, "door": ["driver"]}),)},
        {"initial_state": {"VehicleControlAPI": {"fuelLevel": 10.5, "brakePedalStatus": "released"}}},
    ],
)
def test_every_value_of_state_setup_and_reference_matters(changes):
    assert fingerprint(task(**changes)) != fingerprint(task())


def test_it_is_a_sha256_that_never_changes_between_versions():
    assert fingerprint(task()) == "5efe78cd5c6217ed414702df90e88139504ffe0717a198ad2b7453e0934ab17d"


@pytest.mark.slow
@given(ARGUMENTS, ARGUMENTS)
def test_different_texts_of_values_have_different_fingerprints(one, two):
    def normal(value: JsonValue) -> str:
        return json.dumps(value, sort_keys=True, default=str)

    same = fingerprint(task(initial_state=one)) == fingerprint(task(initial_state=two))
    if normal(one) == normal(two):
        assert same
    elif not any(isinstance(leaf, float) for leaf in leaves([one, two])):
        assert not same


def leaves(value: JsonValue):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def test_call_sequence_has_names_and_no_values():
    two = task(turns=("a", "b"), reference=((call(fuelAmount=1), ToolCall(name="lockDoors")), (call(fuelAmount=2),)))
    assert call_sequence(two) == ("fillFuelTank", "lockDoors", "fillFuelTank")
