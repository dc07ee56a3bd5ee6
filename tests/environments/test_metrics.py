"""The metrics of calls and of checks: hand-made tables, and what holds of any calls."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import ToolCall
from environments.metrics import (
    CALL_METRICS,
    Attempted,
    Made,
    abstention,
    call_f1,
    checks_passed,
    first_function,
    mixed,
    name_f1,
    pass_at,
)
from environments.verification.canonical import hashed_call

LS, CD, CD2 = ("ls", "0"), ("cd", "a"), ("cd", "b")
CALLS = st.lists(st.tuples(st.sampled_from(["ls", "cd", "mv"]), st.sampled_from("ab")), max_size=6).map(tuple)
NAN = math.nan


def attempt(made: tuple[Made, ...] | None, wanted: tuple[Made, ...] | None, malformed: int = 0) -> Attempted:
    return Attempted("t", None, success=wanted == (), calls=made, reference=wanted, malformed=malformed)


@pytest.mark.parametrize(
    ("pairs", "found"),  # call_f1, name_f1, first_function, abstention
    [
        ([((LS, CD), (LS, CD))], (1.0, 1.0, 1.0, NAN)),
        ([((CD, LS), (LS, CD))], (1.0, 1.0, 0.0, NAN)),
        ([((CD2, LS), (CD, LS))], (0.5, 1.0, 1.0, NAN)),
        ([((CD, CD), (CD,))], (2 / 3, 2 / 3, 1.0, NAN)),
        ([((), (LS,))], (0.0, 0.0, 0.0, NAN)),
        ([((), ())], (NAN, NAN, NAN, 1.0)),
        ([((LS,), ())], (0.0, 0.0, NAN, 0.0)),
        ([((LS, CD), (LS, CD)), ((), (LS,)), ((), ())], (4 / 5, 4 / 5, 1 / 2, 1.0)),
        ([(None, (LS,)), ((LS,), None), (None, None)], (NAN, NAN, NAN, NAN)),
    ],
)
def test_metrics_of_calls(pairs: list, found: tuple[float, ...]) -> None:
    attempts = [attempt(*pair) for pair in pairs]
    assert [metric(attempts) for metric in CALL_METRICS.values()] == pytest.approx(list(found), nan_ok=True)


def test_a_malformed_call_is_no_abstention() -> None:
    assert abstention([attempt((), (), malformed=1), attempt((), ())]) == 0.5


def test_checks_passed_is_the_mean_of_what_is_reported() -> None:
    attempts = [attempt(None, None)._replace(partial=share) for share in (0.5, None, 0.0)]
    assert checks_passed(attempts) == 0.25
    assert math.isnan(checks_passed(attempts[1:2]))


@given(st.lists(st.tuples(CALLS, CALLS), min_size=1, max_size=4))
def test_f1_is_symmetric_bounded_and_one_for_equal_multisets(pairs: list[tuple]) -> None:
    attempts = [attempt(*pair) for pair in pairs]
    for metric in (call_f1, name_f1):
        found = metric(attempts)
        assert found == pytest.approx(metric([attempt(b, a) for a, b in pairs]), nan_ok=True)
        equal = metric([attempt(a, tuple(reversed(a))) for a, _ in pairs])
        assert equal == (1.0 if any(a for a, _ in pairs) else pytest.approx(NAN, nan_ok=True))
        assert math.isnan(found) or 0.0 <= found <= 1.0
    assert not name_f1(attempts) < call_f1(attempts)
    assert math.isnan(first_function(attempts)) == (not any(wanted for _, wanted in pairs))


@pytest.mark.parametrize(
    ("arguments", "other", "equal"),
    [
        ({"a": 30, "b": [1, 2]}, {"b": [1.0, 2], "a": 30.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}, False),
        ({"a": None}, {}, False),
        ({"a": "\ud800" * 10**6}, {"a": "\ud800"}, False),
    ],
)
def test_values_are_compared_as_canonical_json(arguments: dict, other: dict, equal: bool) -> None:
    one, two = (hashed_call(ToolCall(name="f" * 10**6, arguments=given)) for given in (arguments, other))
    assert (one == two) == equal
    assert sum(map(len, one)) <= 120


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=3), st.integers(1, 4))
def test_pass_at_k_is_the_share_of_draws_with_a_success(tasks: list[list[bool]], k: int) -> None:
    attempts = [Attempted(str(n), None, one) for n, samples in enumerate(tasks) for one in samples]
    draws = [[any(draw) for draw in combinations(samples, k)] for samples in tasks if len(samples) >= k]
    expected = fmean(map(fmean, draws)) if draws else NAN
    assert pass_at(k)(attempts) == pytest.approx(expected, nan_ok=True)
    assert pass_at(k)(attempts[::-1]) == pytest.approx(expected, nan_ok=True), "in any order"
    several = [len(set(samples)) == 2 for samples in tasks if len(samples) > 1]
    assert mixed(attempts) == pytest.approx(fmean(several) if several else NAN, nan_ok=True)
