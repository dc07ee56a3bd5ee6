"""Parts of JSON values by their pointers: read, removed, and cut out of texts, whatever these hold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from environments.mcp import pointers
from environments.mcp.pointers import Cutter, Pointer, part_of, without

VALUE = {"calls": [{"calls": 1}, 2], "a/b": {"~": 3}, "db": {"calls": 4}}


@pytest.mark.parametrize(
    ("pointer", "part"),
    [("/calls/0/calls", 1), ("/calls/1", 2), ("/a~1b/~0", 3), ("/db", {"calls": 4})],
)
def test_a_part_is_read_removed_and_cut(pointer, part):
    assert part_of(VALUE, pointer) == part
    value = json.loads(json.dumps(VALUE))
    assert without(value, [pointer]) is value
    assert value != VALUE
    assert json.dumps(part) not in json.dumps(value).replace("[2]", "")
    *way, last = pointers._keys(pointer)
    cut = json.loads(Cutter(pointer).cut(json.dumps(VALUE)))
    assert part_of(cut, pointer) is None
    holder = cut if not way else part_of(cut, pointer.rpartition("/")[0])
    holder[int(last) if isinstance(holder, list) else last] = part
    assert cut == VALUE, "nothing else is cut"


@pytest.mark.parametrize("pointer", ["/no", "/calls/2", "/calls/x", "/calls/-1", "/db/calls/4", "/calls/²"])
def test_what_is_not_there_is_neither_read_nor_cut(pointer):
    with pytest.raises(LookupError):
        part_of(VALUE, pointer)
    assert without(json.loads(json.dumps(VALUE)), [pointer]) == VALUE
    assert Cutter(pointer).cut(json.dumps(VALUE)) == json.dumps(VALUE)


@pytest.mark.parametrize("pointer", ["", "calls", "/a~2", "/~"])
def test_what_is_no_pointer_is_refused(pointer):
    with pytest.raises(ValidationError, match="is not a JSON Pointer"):
        TypeAdapter(Pointer).validate_python(pointer)


@pytest.mark.parametrize(
    "text",
    ["", "plain", "[", '{"calls"', '{"calls":', '{"calls": [1, }', "{calls: 1}", "[" * 100_000, '{"a": 1 "calls"', "3"],
)
def test_a_text_that_is_no_json_stays_as_it_is(text):
    assert Cutter("/calls").cut(text) == text


def test_texts_that_differ_in_the_part_alone_are_equal_without_it_and_no_others(monkeypatch):
    monkeypatch.setattr(pointers, "_LONG", 0)
    cutter = Cutter("/calls")

    def text(calls, before="1", after="2"):
        return f' {{"a": {before}, "calls" : {calls} , "b": {after}}}\n'

    first = cutter.cut(text("[]"))
    monkeypatch.setattr(pointers, "_span", None)  # what was seen before is not parsed again
    assert cutter.cut(text('[{"calls": "]}"}, 3]')) == first
    assert cutter.cut(text("3")) == first
    monkeypatch.undo()
    monkeypatch.setattr(pointers, "_LONG", 0)
    others = [
        text("[]", before="3"),
        text("[]", after="3"),
        text('[] , "calls": []'),
        text('[], "x": [1]'),
        text("[] ]"),
    ]
    assert len({first, *map(cutter.cut, others)}) == 6
    assert len({*map(Cutter("/calls").cut, others)}) == 5


TEXTS = st.dictionaries(st.sampled_from(["calls", "a", "b"]), st.integers() | st.lists(st.text(max_size=3)), max_size=3)


@given(st.lists(TEXTS, max_size=6))
def test_a_cutter_with_a_memory_cuts_as_a_new_one_does(values):
    kept, pointers._LONG = pointers._LONG, 0
    try:
        cutter = Cutter("/calls")
        for value in values:
            assert json.loads(cutter.cut(json.dumps(value))) == value | ({"calls": None} if "calls" in value else {})
    finally:
        pointers._LONG = kept
