"""The filter of agents' code: what it refuses, that it tells why, and that ordinary code passes."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.escape_attempts import ATTEMPTS, BEHIND_THE_FILTER

from environments.appworld.engine.code_filter import MAX_CHARACTERS, refusal

ORDINARY = [
    "print(apis.supervisor.show_profile())",
    "password = {p['account_name']: p['password'] for p in apis.supervisor.show_account_passwords()}['spotify']",
    "import json, math\nfrom datetime import datetime, timedelta\nprint(datetime.now() + timedelta(days=1))",
    "from collections import Counter\nprint(Counter('abc').most_common(1)[0])",
    "import re\nprint(re.findall(r'\\d+', 'a1b22'))",
    "page = 0\nwhile songs := apis.spotify.show_song_library(page_index=page, access_token='t'):\n    page += 1",
    "print('{} of {}'.format(1, total), '{0:>{1}}'.format(2, 8), '{x}'.format(x=total))",
    "print(pendulum.now().format('YYYY-MM-DD'))",
    "try:\n    apis.venmo.show_profile()\nexcept Exception as error:\n    print(error)",
    "class Song:\n    def __init__(self, title):\n        self.title = title\n"
    "    def __repr__(self):\n        return self.title",
    "class A(Song):\n    def __init__(self):\n        super().__init__('x')",
    "_, first = 1, 2\nfor _ in range(3):\n    pass",
    "match songs:\n    case [first, *rest]:\n        print(first)\n    case {'title': title}:\n        print(title)",
    "def solution(apis, requester):\n    return apis.spotify.show_genres()\nsolution(apis, None)",
    "apis.todoist.update_task(task_id=1, description='__main__ is not refused in a text', access_token='t')",
    "print(type(3), isinstance(3, int), sorted([2, 1], key=lambda x: -x), hasattr(apis, 'spotify'))",
    "",
]


@pytest.mark.parametrize("name", sorted(set(ATTEMPTS) - BEHIND_THE_FILTER))
def test_escape_attempts_are_refused_with_a_reason(name: str) -> None:
    reason = refusal(ATTEMPTS[name])
    assert reason is not None
    assert reason.endswith(".")
    assert "\n" not in reason


def test_no_other_module_can_be_imported() -> None:
    names = {name for name in sys.stdlib_module_names if not name.startswith("_")} | {"appworld", "yaml"}
    passed = {name for name in names if refusal(f"import {name}") is None}
    assert passed == names & {
        *("bisect", "calendar", "collections", "copy", "datetime", "difflib", "fractions", "functools", "heapq"),
        *("itertools", "json", "math", "numbers", "pprint", "random", "re", "string", "textwrap", "time", "typing"),
        "uuid",
    }


@pytest.mark.parametrize("code", ORDINARY)
def test_ordinary_code_passes(code: str) -> None:
    assert refusal(code) is None


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("import os", "os"),
        ("import numpy as np", "numpy"),
        ("from os import path", "os"),
        ("from . import x", "."),
        ("from json import dump", "dump"),
        ("from json import *", "*"),
        ("import json as __x", "__x"),
        ("x = print.__self__", "__self__"),
        ("print(song._id)", "_id"),
        ("open('x')", "open"),
        ("global __builtins__", "__builtins__"),
        ("'{0.gi_code}'.format(1)", "gi_code"),
        ("'{:{0.__class__}}'.format(1, 2)", "__class__"),
        ("def f(__x): pass", "__x"),
        ("class A:\n    def __getattr__(self, n): pass", "__getattr__"),
        ("async def f():\n    c.cr_frame", "cr_frame"),
    ],
)
def test_the_reason_names_what_is_refused(code: str, named: str) -> None:
    reason = refusal(code)
    assert reason is not None
    assert named in reason


def test_code_that_is_no_python_is_left_to_the_engine() -> None:
    assert refusal("print('") is None


def test_code_beyond_measure_is_refused_not_parsed() -> None:
    assert refusal("1" * (MAX_CHARACTERS + 1)) is not None
    assert refusal("(" * 5000 + ")" * 5000) in (None, "The code cannot be parsed.", "The code is nested too deeply.")
    assert refusal("-" * 90_000 + "1") in ("The code cannot be parsed.", "The code is nested too deeply.")
    assert refusal("x\0y") is None or "parsed" in str(refusal("x\0y"))


@given(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.from_regex(r"_[a-z_]{0,12}", fullmatch=True))
def test_no_attribute_with_an_underscore_passes_however_it_is_written(owner: str, attribute: str) -> None:
    for text in (f"({owner}).{attribute}", f"{owner}.x.{attribute}()", f"f'{{{owner}.{attribute}}}'"):
        try:
            compile(text, "", "exec")
        except SyntaxError:
            continue
        assert refusal(text) is not None


@given(st.text(max_size=80))
def test_any_text_gets_an_answer(text: str) -> None:
    assert refusal(text) is None or isinstance(refusal(text), str)
