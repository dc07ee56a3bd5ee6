"""The canonical form: what of a call, of a state and of a change is left out, and what is kept."""

from __future__ import annotations

import json

import pytest

from environments.base import Parameter, TaskSpec, ToolCall, ToolSpec
from environments.example import depot
from environments.verification.canonical import (
    Canonical,
    CanonicalStep,
    _changes,
    canonical,
    canonical_call,
    digest,
    hashed_call,
)


def parameter(name, kind, required=False, **fields):
    return Parameter(name=name, type=kind, description="", required=required, **fields)


class OneTool:
    """As much of an environment as the form of a call needs."""

    def tools(self, names):
        parameters = (
            parameter("code", "code", required=True),
            parameter("note", "string", default="x"),
            parameter("count", "integer", default=1),
            parameter("doors", "array", choices=("left", "right")),
        )
        return (ToolSpec(name=names[0], group="group", description="", parameters=parameters),)


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ({"code": "x=1  # one"}, {"code": "x = 1"}),
        ({"code": "x = ("}, {"code": "x = ("}),
        ({"code": 5}, {"code": 5}),
        ({"note": "x=1   # one"}, {"note": "x=1 # one"}),
        ({"note": "x"}, {}),
        ({"note": None, "other": None}, {}),
        ({"count": 1}, {}),
        ({"count": True}, {"count": True}),
        ({"code": 1.0, "other": [2.0, {"a  b": 0.5}]}, {"code": 1, "other": [2, {"a b": 0.5}]}),
        ({"doors": ["right", "left"]}, {"doors": ["left", "right"]}),
        ({"doors": ["right", "boot"]}, {"doors": ["right", "boot"]}),
    ],
)
def test_a_call_is_written_without_defaults_and_layout(arguments, form):
    group, text = canonical_call(OneTool(), ToolCall(name="run", arguments=arguments))
    assert (group, json.loads(text)) == ("group", ["run", form])


def test_the_order_of_keys_does_not_matter():
    one, other = {"b": {"d": 1, "c": 2}, "a": 1}, {"a": 1, "b": {"c": 2, "d": 1}}
    assert digest(one) == digest(other)
    texts = [canonical_call(OneTool(), ToolCall(name="run", arguments={"note": value}))[1] for value in (one, other)]
    assert texts[0] == texts[1]


def test_a_hashed_call_is_of_one_length_whatever_the_call_is():
    name, arguments = hashed_call(ToolCall(name="n" * 101, arguments={"text": "x" * 1000}))
    assert (name, len(arguments)) == ("n" * 100, 16)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2.0}, [["/a", "1", "2"]]),
        ({}, {"a": "x  y"}, [["/a", "null", '"x y"']]),
        ({"a": 1}, {}, [["/a", "1", "null"]]),
        ({"a": None}, {}, []),
        ({"a": {"b c": 1, "d": 0}}, {"a": {"b c": 2, "d": 0}}, [["/a/b c", "1", "2"]]),
        ([1, 2], [1, 3], [["/1", "2", "3"]]),
        ([1], [1, 2], [["", "[1]", "[1, 2]"]]),
        ({"b": 1, "a": 2}, [], [["", '{"a": 2, "b": 1}', "[]"]]),
        ([], {"b": 1, "a": 2}, [["", "[]", '{"a": 2, "b": 1}']]),
    ],
)
def test_a_change_names_each_value_that_differs(before, after, changes):
    assert list(_changes(before, after, "")) == changes


def test_a_reference_is_played_and_reads_are_told_from_changes():
    environment = depot()
    start = environment.starts()[0]
    label = min(start.initial_state["Depot"]["parcels"])
    calls = (("list_parcels", {}), ("insure_parcel", {"label": label, "euros": 200}), ("list_parcels", {}))
    task = TaskSpec(
        environment="depot",
        split="train",
        classes=start.classes,
        turns=("",),
        initial_state=start.initial_state,
        tools=tuple(dict.fromkeys(name for name, _ in calls)),
        reference=(tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls),),
    )
    steps = canonical(environment, task).steps
    assert [step.reads for step in steps] == [True, False, True]
    assert [bool(step.change) for step in steps] == [False, True, False]
    assert json.loads(steps[1].change)[1:] == ["0", "200"]


def step(group, text):
    return CanonicalStep(group=group, text=text, observation="", change="", reads=True)


def test_the_parts_that_the_tools_touch_are_named():
    parts = {"B": {}, "A": {}}
    assert Canonical(parts=parts, prepared=parts, steps=(step("A", ""), step("C", ""))).touched == ("A",)
    assert Canonical(parts=parts, prepared=parts, steps=(step("C", ""),)).touched == ("A", "B")


def test_names_of_the_start_are_replaced_the_longest_first():
    forms = []
    for short, long in (("old", "old file"), ("new", "new file")):
        parts = {"A": {short: "", long: ""}}
        forms.append(Canonical(parts=parts, prepared=parts, steps=(step("A", f"rm {long}, {short}"),)).nameless())
    assert forms[0] == forms[1]
    parts = {"A": {"old": "", "new file": ""}}
    assert Canonical(parts=parts, prepared=parts, steps=(step("A", "rm new file, old"),)).nameless() == forms[0]
