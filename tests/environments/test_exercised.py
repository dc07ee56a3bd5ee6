"""What tasks exercise: functions, ordered pairs, and what programs call."""

from __future__ import annotations

from environments.base import Parameter, TaskSpec, ToolCall, ToolSpec
from environments.verification.programs import Exercised

PROGRAM = ToolSpec(
    name="run",
    group="python",
    description="Run a program.",
    parameters=(Parameter(name="code", type="code", description="", required=True),),
)


def task(*turns: tuple[ToolCall, ...]) -> TaskSpec:
    return TaskSpec(
        environment="any",
        split="train",
        classes=(),
        turns=("?",) * len(turns),
        initial_state={},
        tools=(),
        reference=turns,
    )


def calls(names: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(name=name) for name in names.split())


def test_each_task_counts_a_function_and_an_ordered_pair_once() -> None:
    found = Exercised([task(calls("a b a")), task(calls("a"), calls("c b")), task(())], [])
    assert found.functions == {"a": 2, "b": 2, "c": 1}
    assert found.pairs == {("a", "b"): 2, ("b", "a"): 1, ("a", "c"): 1, ("c", "b"): 1}


def test_a_program_counts_as_what_it_calls() -> None:
    code = "for one in apis.store.list():\n    apis.store.buy(item=one)\n"
    broken = ToolCall(name="run", arguments={"code": "for for"})
    found = Exercised([task((ToolCall(name="run", arguments={"code": code}),)), task((broken,))], [PROGRAM])
    assert found.functions == {"store.list": 1, "store.buy": 1}
    assert found.pairs == {("store.list", "store.buy"): 1}
