"""Turns are opened in their order, with the tools that each one adds; whatever is out of order is refused."""

import pytest

from environments.base import TaskSpec, Turns


def turns(*texts: str, withheld: dict[int, tuple[str, ...]] | None = None) -> Turns:
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
        )
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
