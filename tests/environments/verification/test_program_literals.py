"""Which literals of a program its author must have known, and which say nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.verification.programs import Literal, Reach, literals

PROGRAMS = [
    ("apis.notes.add(title='Shelf', pinned=True)", ["Shelf"]),
    ("email = profile['email']", []),
    ("first, last = songs[0], songs[-1]\nthird = songs[2]", []),
    ("top = songs[:3]", [3]),
    ("rest = songs[1:]", []),
    ("entry = table.get('kim', 'nobody')", ["nobody"]),
    ("found = [n for n in notes if n['title'] == 'Home']", ["Home"]),
    ("if 'urgent' in text:\n    total = total + 1", ["urgent"]),
    ("for page in range(0, 10):\n    page += 1", [10]),
    ("total = 0\nlow = -1\nhigh = -5", [-5]),
    ("hours = 2 * 60", [2, 60]),
    ("line = ', '.join(names) + '\\n'", []),
    ("words = text.strip('.').split(' and ')", []),
    ("text = f'{first} - {last:>10}'", []),
    ("text = f'Dear {name}, hello!'", ["Dear", "hello"]),
    ("half = round(total / 2, 1)\nwhole = round(share, 2)", [2]),
    ("day = datetime.strptime(text, '%Y-%m-%d').strftime('%B the %d')", ["the"]),
    ("found = re.search(r'(\\w+) network: ([A-Z]{2,3})(?P<rest>.*)', text)", ["network"]),
    ("text = re.sub('colou?r', 'grey', text)", ["colou", "r", "grey"]),
    ("def total(rows):\n    'Adds up.'\n    return sum(row['price'] for row in rows)", []),
    ("prices = {'tea': 3, name: None}", ["tea", 3]),
    ("kept['secret'] = 5", ["secret", 5]),
    ("for name in ('Ann', 'Ben'):\n    greet(name, times=4)", ["Ann", "Ben", 4]),
    ("key = b'hunter2'\nroot = 2j", ["hunter2", 2.0]),
    (f"large = 0x{'f' * 9000}", ["0x" + "f" * 9000]),
    ("rows.sort(key=lambda row: row['date'], reverse=True)", []),
    ("# 'hunter2'\nname = value", []),
]


@pytest.mark.parametrize(("code", "values"), PROGRAMS)
def test_the_values_that_must_have_been_known(code: str, values: list[object]) -> None:
    assert [literal.value for literal in literals(code)] == values


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("apis.shop.buy(count=1, names=['a', 'b'])", [(1, "count"), ("a", "names"), ("b", "names")]),
        ("apis.shop.buy(name='a' if cheap == 'yes' else 'b')", [("a", "name"), ("yes", None), ("b", "name")]),
        ("apis.shop.buy(name=given or 'a', count=-1)", [("a", "name"), (-1, "count")]),
        ("apis.shop.buy('a')", [("a", "")]),
        ("apis.shop.buy(name=f'new {name}')", [("new", "name")]),
        ("apis.shop.buy(count=2 + len('x'))", [(2, None), ("x", None)]),
        ("shop = apis.shop\nshop.buy(name='a')", [("a", "name")]),
        ("buy = apis.shop.buy\nbuy(name='a')", [("a", "name")]),
        ("pages(apis.shop.buy, limit=20)", [(20, "limit")]),
        ("shop.buy(name='a', count=1)", [("a", None)]),
    ],
)
def test_what_a_tool_is_given_names_the_tool_and_the_parameter(code: str, expected: list[tuple[object, str]]) -> None:
    wanted = [Literal(v) if name is None else Literal(v, "shop.buy", name) for v, name in expected]  # type: ignore[arg-type]
    assert list(literals(code)) == wanted


def test_names_of_earlier_blocks_are_known() -> None:
    reach = Reach()
    literals("shop = apis.shop", reach)
    assert literals("shop.buy(name='a')", reach) == (Literal("a", "shop.buy", "name"),)
    assert literals("shop.buy(name='a')") == (Literal("a"),)


@pytest.mark.parametrize(
    "code", ["print(", "x = '\x00'", "(" * 10_000, "+".join("1" * 20_000), "a" + ".b" * 20_000, "x" * 100_001]
)
def test_what_cannot_be_read_is_said(code: str) -> None:
    with pytest.raises(ValueError, match=r"no Python|nested too deeply|more than|null"):
        literals(code)


@given(st.text(min_size=1, alphabet=st.characters(categories=("L", "N", "P", "Zs"))), st.integers(2))
def test_what_a_tool_is_given_is_never_overlooked(text: str, number: int) -> None:
    found = literals(f"apis.shop.buy(name={text!r}, count={number!r})")
    named = [Literal(text, "shop.buy", "name")] if any(c.isalnum() for c in text) else []
    assert list(found) == [*named, Literal(number, "shop.buy", "count")]
