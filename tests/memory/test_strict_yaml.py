"""YAML of anybody: what it says is read, what has no end or no place in a recipe is one sentence."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from environments.base import InputError
from memory.jsonl import LONGEST_YAML, dump_yaml, parse_yaml, read_yaml

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))

HOSTILE = {
    "deep lists": ("[" * 20_000, "lists and mappings are nested too deep for it"),
    "deep mappings": ("{a: " * 3000, "nested too deep"),
    "deep blocks": ("- " * 20_000, "nested too deep"),
    "aliases that multiply": (LAUGHS, r"line 2: the alias \*a0 is not allowed"),
    "an alias to itself": ("environment: {options: &a {more: *a}}", r"the alias \*a is not allowed"),
    "a merge": ("a: &a {b: 1}\nc: {<<: *a}", "line 2: "),
    "digits": (f"seed: {'9' * 6000}", "Exceeds the limit"),
    "hexadecimal digits": (f"seed: 0x{'f' * 6000}", "Exceeds the limit"),
    "a tag of Python": ("!!python/object/apply:os.getcwd []", "line 1: could not determine a constructor"),
    "bytes": ("seed: !!binary aGk=", "bytes is not JSON serializable: write the values of JSON"),
    "no character": (r'a: "\UFFFFFFFF"', "write the values of JSON"),
    "half of a surrogate pair": (r'path: "\ud800"', "surrogates not allowed"),
    "a key that is a list": ("? [a]\n: 1", "line 1: found unhashable key"),
    "a key that is there twice": ("a: 1\nb: 2\n'a': 3", "line 3: the key 'a' occurs twice"),
    "two documents": ("a: 1\n---\na: 2", "line 2: but found another document"),
    "a NUL": ("a: \0", "not allowed"),
}


@pytest.mark.parametrize(("text", "told"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_documents_are_one_sentence(text: str, told: str) -> None:
    with pytest.raises(InputError, match=f"^mine.yaml: not YAML: .*{told}") as caught:
        parse_yaml(text, "mine.yaml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_dates_and_numbers_are() -> None:
    text = "date: 2020-99-99\nday: 2020-01-01\nrate: 1e-4\nseed: 0x10\nnone: ~\nyes: on"
    expected = {"date": "2020-99-99", "day": "2020-01-01", "rate": 1e-4, "seed": 16, "none": None, "true": True}
    assert parse_yaml(text, "mine.yaml") == expected


@example("\x85")
@example({"\u2028": "a\u2029b"})
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False)
        | st.text()
        | st.dates().map(str),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    )
)
def test_what_is_written_is_read_back_equal(value: object) -> None:
    document = [value, value, "1e-4"]
    assert parse_yaml(dump_yaml(document), "mine.yaml") == document


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _long(path: Path) -> Path:
    path.write_text("# " + "x" * LONGEST_YAML)
    return path


FILES = {
    "a FIFO": (_fifo, "is a folder, a pipe or a device"),
    "an endless device": (lambda path: Path("/dev/zero"), "is a folder, a pipe or a device"),
    "a folder": (lambda path: path.parent, "is a folder, a pipe or a device"),
    "nothing": (lambda path: path, "does not exist: check the path"),
    "a file that is too long": (_long, f"has more than {LONGEST_YAML} bytes"),
}


@pytest.mark.parametrize(("make", "told"), FILES.values(), ids=FILES)
def test_hostile_files_are_one_sentence(tmp_path: Path, make, told: str) -> None:
    path = make(tmp_path / "mine.yaml")
    with pytest.raises(InputError, match=told) as caught:
        read_yaml(path)
    assert str(path) in str(caught.value)


def test_who_changes_a_document_changes_it_for_nobody_else():
    first = parse_yaml("a: {b: [1]}", "mine.yaml")
    first["a"]["b"].append(2)
    assert parse_yaml("a: {b: [1]}", "mine.yaml") == {"a": {"b": [1]}}
