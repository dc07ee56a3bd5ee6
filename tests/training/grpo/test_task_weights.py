"""Learnability and retirement: tables, and what holds for all attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.grpo.task_weights import Attempt, learnability, retire


def at(task_id, *successes, first_iteration=0, n=8):
    """One attempt an iteration, two steps apart."""
    return [
        Attempt(task_id=task_id, iteration=iteration, step=2 * iteration + 1, success=success, n=n)
        for iteration, success in enumerate(successes, start=first_iteration)
    ]


IDS = ["a", "b", "c", "d"]
ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        task_id=st.sampled_from(IDS),
        iteration=st.integers(0, 5),
        step=st.integers(1, 60),
        success=st.sampled_from([0.0, 0.25, 0.5, 0.875, 1.0]),
        n=st.integers(1, 8),
    ),
    max_size=25,
    unique_by=lambda attempt: (attempt.task_id, attempt.step),
)


@pytest.mark.parametrize(
    ("successes", "weight"),
    [
        ((), 1.0),
        ((0.5,), 1.0),
        ((0.25,), 0.75),
        ((0.0,), 0.1),
        ((1.0, 1.0, 1.0), 0.1),
        ((0.0, 0.0, 1.0, 0.5, 0.0), 1.0),  # of the newest three the mean is one half
    ],
)
def test_the_weight_is_the_variance_of_a_rollout(successes, weight):
    assert learnability(["a"], at("a", *successes), newest=3, floor=0.1) == {"a": pytest.approx(weight)}


def test_a_success_rate_is_over_rollouts_not_groups():
    made = [*at("a", 1.0, n=2), *at("a", 0.0, first_iteration=1, n=6)]
    assert learnability(["a"], made, newest=3, floor=0.1)["a"] == pytest.approx(0.75)


@given(attempts=ATTEMPTS, newest=st.integers(1, 4), floor=st.sampled_from([0.01, 0.1, 1.0]), data=st.data())
def test_weights_are_bounded_and_know_no_order(attempts, newest, floor, data):
    weights = learnability(IDS, attempts, newest, floor)
    assert set(weights) == set(IDS)
    assert all(floor <= weight <= 1.0 for weight in weights.values())
    tried = {attempt.task_id for attempt in attempts}
    assert all(weights[task_id] == 1.0 for task_id in IDS if task_id not in tried)
    assert weights == learnability(data.draw(st.permutations(IDS)), data.draw(st.permutations(attempts)), newest, floor)


def status(attempts, iteration, ids=("a", "spare", "other"), **changes):
    given = {"newest": 2, "above": 1.0, "retest_every": 3, "at_least": 1} | changes
    retired = retire(ids, attempts, iteration=iteration, **given)
    return next(name for name in ("active", "retested", "resting") if "a" in getattr(retired, name))


@pytest.mark.parametrize(
    ("successes", "iteration", "expected"),
    [
        ((1.0,), 1, "active"),  # too few attempts
        ((0.5, 1.0), 2, "active"),
        ((0.0, 1.0, 1.0), 3, "resting"),
        ((1.0, 1.0), 2, "resting"),
        ((1.0, 1.0), 3, "resting"),
        ((1.0, 1.0), 4, "retested"),  # three iterations after its attempt in iteration 1
        ((1.0, 1.0), 9, "retested"),  # it was due earlier and there was no place
        ((1.0, 1.0, 0.875), 3, "active"),
        ((1.0, 1.0, 0.875, 1.0), 4, "active"),  # two in a row again are needed
        ((1.0, 1.0, 0.875, 1.0, 1.0), 5, "resting"),
    ],
)
def test_who_rests_and_who_is_tested_again(successes, iteration, expected):
    assert status(at("a", *successes), iteration) == expected


def test_the_threshold_is_a_success_rate():
    assert status(at("a", 0.875, 1.0), 2, above=0.8) == "resting"
    assert status(at("a", 0.75, 1.0), 2, above=0.8) == "active"


def test_a_step_keeps_as_many_tasks_as_it_needs_longest_untried_first():
    made = [*at("a", 1.0, 1.0, first_iteration=1), *at("b", 1.0, 1.0), *at("c", 1.0, 1.0, first_iteration=2)]
    for at_least, active in ((0, ""), (1, "b"), (2, "ba"), (3, "bac"), (9, "bac")):
        retired = retire("abc", made, newest=2, above=1.0, retest_every=9, iteration=4, at_least=at_least)
        assert retired.active == set(active)
        assert retired.resting == set("abc") - set(active)


@given(
    attempts=ATTEMPTS,
    newest=st.integers(1, 3),
    above=st.sampled_from([0.5, 0.875, 1.0]),
    every=st.integers(1, 4),
    at_least=st.integers(0, 5),
    data=st.data(),
)
def test_every_task_has_one_standing(attempts, newest, above, every, at_least, data):
    def retired(ids, made):
        return retire(ids, made, newest=newest, above=above, retest_every=every, iteration=6, at_least=at_least)

    standing = retired(IDS, attempts)
    parts = (standing.active, standing.retested, standing.resting)
    assert sorted(task_id for part in parts for task_id in part) == IDS
    assert len(standing.active) >= min(at_least, len(IDS))
    assert standing == retired(data.draw(st.permutations(IDS)), data.draw(st.permutations(attempts)))
    for task_id in standing.retested | standing.resting:
        made = sorted((one for one in attempts if one.task_id == task_id), key=lambda one: one.step)[-newest:]
        assert len(made) == newest
        assert min(one.success for one in made) >= above
        assert (task_id in standing.retested) == (6 - made[-1].iteration >= every)
