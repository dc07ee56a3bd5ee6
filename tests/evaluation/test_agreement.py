"""Table 8: the paper's cells, the paired difference, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import InputError
from evaluation.analyses import CELLS, Agreement, agreements, mcnemar
from evaluation.outcomes import TaskOutcome


def attempts(solved: list[bool], group: str = "base", evaluated: bool = True) -> list[TaskOutcome]:
    return [
        TaskOutcome(
            group=group,
            task_id=f"{group}-{n}",
            cluster=str(n // 2),
            split="",
            shape=("f",),
            success=one,
            infrastructure_error=None if evaluated else "lost",
        )
        for n, one in enumerate(solved)
    ]


def agreement(first: list[TaskOutcome], second: list[TaskOutcome]) -> Agreement:
    (found,) = agreements(first, second)
    return found


def cells(both: int, first: int, second: int, neither: int) -> tuple[list[bool], list[bool]]:
    left = [True] * (both + first) + [False] * (second + neither)
    right = [True] * both + [False] * first + [True] * second + [False] * neither
    return left, right


@pytest.mark.parametrize(
    ("counts", "shares", "difference"),
    [
        ((106, 10, 20, 64), (53.00, 5.00, 10.00, 32.00), 5.00),  # BFCL, of 200
        ((32, 16, 28, 92), (19.04, 9.53, 16.67, 54.76), 7.14),  # AppWorld, of 168; the paper cuts or rounds
    ],
)
def test_the_papers_table(counts: tuple[int, int, int, int], shares: tuple[float, ...], difference: float) -> None:
    left, right = cells(*counts)
    found = agreement(attempts(left), attempts(right))
    assert tuple(found.cells[name] for name in CELLS) == counts
    assert [100 * found.cells[name] / found.change.tasks for name in CELLS] == pytest.approx(shares, abs=0.011)
    assert 100 * (found.change.after - found.change.before) == pytest.approx(difference, abs=0.005)
    assert found.change.tasks == sum(counts)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (5, 0, 0.0625), (1, 9, 22 / 1024), (10, 20, 0.0987)],
)
def test_mcnemar(only_first: int, only_second: int, p: float) -> None:
    assert mcnemar(only_first, only_second) == pytest.approx(p, abs=5e-5)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=30))
def test_swapping_the_files_mirrors_the_table(pairs: list[tuple[bool, bool]]) -> None:
    left, right = (attempts([pair[side] for pair in pairs]) for side in (0, 1))
    one, other = agreement(left, right), agreement(right, left)
    assert one.cells["only first"] == other.cells["only second"]
    p_values = [mcnemar(found.cells["only first"], found.cells["only second"]) for found in (one, other)]
    assert p_values[0] == p_values[1]
    assert sum(one.cells.values()) == one.change.tasks
    assert (one.change.before, one.change.after) == (other.change.after, other.change.before)
    if one.change.interval is not None:
        low, high = one.change.interval
        assert other.change.interval == (pytest.approx(-high), pytest.approx(-low))


def test_equal_evaluations_differ_by_exactly_nothing() -> None:
    """The interval is paired: the same draws for both."""
    solved = [n % 3 == 0 for n in range(40)]
    found = agreement(attempts(solved), attempts(solved))
    assert (found.change.before, found.change.interval) == (found.change.after, (0.0, 0.0))


def test_tasks_of_one_file_and_infrastructure_errors_are_left_out_and_counted() -> None:
    left = attempts([True, True, False, False])
    right = [*attempts([True, False, True])[:2], *attempts([False] * 3, evaluated=False)[2:]]
    found = agreement(left, right)
    assert (found.change.tasks, found.unpaired, found.unjudged) == (2, 1, 1)
    assert (found.change.before, found.change.after) == (1.0, 0.5)


def test_each_common_set_has_a_table() -> None:
    left = [*attempts([True], "base"), *attempts([False, True], "long")]
    right = [*attempts([False, True], "long"), *attempts([True], "other")]
    assert [one.group for one in agreements(left, right)] == ["long"]
    with pytest.raises(InputError, match="no evaluation set in common"):
        agreements(attempts([True], "base"), attempts([True], "long"))


def test_a_task_that_occurs_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"the second file has task base-0 of base twice"):
        agreement(attempts([True]), [*attempts([True]), *attempts([True])])


def test_no_common_task_is_refused() -> None:
    with pytest.raises(InputError, match="no task was evaluated in both files"):
        agreement(attempts([True]), attempts([True], evaluated=False))


def test_other_metrics_are_compared_where_both_files_have_them() -> None:
    left, right = attempts([True, False, True, False]), attempts([True] * 4)
    assert agreement(left, right).metrics == {}
    call, other = ("f", "a"), ("f", "b")
    first = [one.model_copy(update={"calls_made": (other,), "calls_wanted": (call,)}) for one in left]
    second = [one.model_copy(update={"calls_made": (call,), "calls_wanted": (call,)}) for one in right]
    found = agreement(first, second).metrics
    assert {name: (one.before, one.after, one.interval) for name, one in found.items()} == {
        "call_f1": (0.0, 1.0, (1.0, 1.0)),
        "name_f1": (1.0, 1.0, (0.0, 0.0)),
        "first_function": (1.0, 1.0, (0.0, 0.0)),
    }
    assert agreement(left, second).metrics == {}
