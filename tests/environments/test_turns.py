"""Turns are opened in their order, with the tools that each one adds; whatever is out of order is refused."""

import pytest

from environments.base import TaskSpec
from environments.turns import Turns


def turns(*texts: str, withheld: dict[int, tuple[str, ...]] | None = None) -> Turns[tuple[int, int, int]]:
    return Turns(
        TaskSpec(
            environment="made",
            split="train",
            classes=(),
            turns=texts,
            initial_state={},
            tools=("a", "b"),
            reference=((),) * len(texts),
            withheld=withheld or {},
        ),
        lambda turn, calls, malformed: (turn, calls, malformed),
    )


def test_each_turn_opens_once_with_the_tools_it_adds():
    order = turns("one", "two", withheld={1: ("b",)})
    assert order.callable == {"a", "b"}
    assert order.first().tools == ("a",)
    second = order.end()
    assert second is not None
    assert (second.index, second.text, second.tools) == (1, "two", ("a", "b"))
    assert order.end() is None
    assert order.over


def test_out_of_order_is_refused():
    order = turns("one")
    with pytest.raises(RuntimeError, match="not started"):
        order.end()
    order.first()
    with pytest.raises(RuntimeError, match="already started"):
        order.first()
    order.end()
    with pytest.raises(RuntimeError, match="is over"):
        order.expect_open()


def test_ended_turns_keep_what_they_came_to_and_others_are_measured_as_they_are():
    order = turns("one", "two", "three")
    with pytest.raises(RuntimeError, match="not started"):
        order.played()
    order.first()
    order.calls, order.malformed, order.steps = 2, 1, 3
    order.end()
    assert (order.calls, order.malformed, order.steps) == (0, 0, 0)
    order.calls = 4
    assert (order.played(), order.reached) == (((0, 2, 1), (1, 4, 0), (2, 0, 0)), 2)
    order.end()
    order.malformed = 5
    order.end()
    assert (order.played(), order.reached) == (((0, 2, 1), (1, 4, 0), (2, 0, 5)), 3)
