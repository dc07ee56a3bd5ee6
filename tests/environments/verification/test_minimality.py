"""Minimality: reduced paths keep exactly the calls that carry something."""

from __future__ import annotations

import random
from functools import cache

import pytest
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES
from support.random_paths import random_tasks, with_placeholder_text
from support.written_tasks import draft

from environments.base import InputError, TaskSpec
from environments.verification.replay import PlayedReference, reduce, replay
from environments.verification.verify import Refusal, verify

SORT = ("sort", {"file_name": "notes.txt"})
FUEL = ("fillFuelTank", {"fuelAmount": 5})


@cache
def textless_tasks() -> tuple[TaskSpec, ...]:
    rng = random.Random(7)
    return tuple(
        task for start in ENVIRONMENT.starts()[::4] for task in random_tasks(ENVIRONMENT, start, calls=30, rng=rng)
    )


@pytest.mark.slow
def test_reduced_paths_have_no_superfluous_call_and_do_not_reduce_again():
    reduced = [task for task in (reduce(ENVIRONMENT, path) for path in textless_tasks()) if task is not None]
    assert len(reduced) > 20
    for task in reduced:
        played = PlayedReference(ENVIRONMENT, task, replay(ENVIRONMENT, task))
        assert not played.full.errors()
        places = [(t, c) for t, turn in enumerate(task.reference) for c in range(len(turn))]
        assert places
        assert not any(played.superfluous(*place) for place in places)
        assert reduce(ENVIRONMENT, task) == task
        assert verify(with_placeholder_text(task), ENVIRONMENT, (), ()).reason in (None, Refusal.TRIVIAL_POLICY)


def test_random_paths_hold_calls_that_carry_nothing_and_reduce_drops_some_but_not_most():
    before = sum(len(turn) for task in textless_tasks() for turn in task.reference)
    reduced = [reduce(ENVIRONMENT, task) for task in textless_tasks()]
    after = sum(len(turn) for task in reduced if task for turn in task.reference)
    assert 0.7 * before < after < before


@pytest.mark.parametrize(
    ("calls", "kept"),
    [
        ([SORT, ("find", {"name": "zebra"})], ["sort"]),
        ([SORT, SORT], ["sort"]),
        ([("find", {"name": "zebra"})], None),
        ([("rm", {"file_name": "nothing.txt"}), SORT], ["sort"]),
        ([("rm", {"file_name": "nothing.txt"})], None),
        ([("cd", {"folder": "drafts"}), ("cat", {"file_name": "old.txt"})], ["cd", "cat"]),
        ([("mkdir", {"dir_name": "new"}), ("cd", {"folder": "new"}), ("pwd", {})], ["mkdir", "cd", "pwd"]),
        ([("touch", {"file_name": "new"}), ("rm", {"file_name": "new"})], ["touch", "rm"]),
    ],
)
def test_reduce_keeps_what_carries(calls, kept):
    task = reduce(ENVIRONMENT, draft(FILES, ("", calls)))
    assert (task and [call.name for turn in task.reference for call in turn]) == kept


def test_reduce_drops_turns_that_lose_their_last_call():
    task = reduce(ENVIRONMENT, draft(FILES, ("", [SORT]), ("", [SORT]), ("", [("pwd", {})])))
    assert task is not None
    assert [[call.name for call in turn] for turn in task.reference] == [["sort"], ["pwd"]]
    assert task.turns == ("", "")


def test_reduce_does_not_open_what_the_environment_does_not_know():
    with pytest.raises(InputError):
        reduce(ENVIRONMENT, draft(CAR, ("", [FUEL]), environment="appworld"))


def test_what_the_official_rule_does_not_need_is_superfluous_even_where_another_call_fails_without_it():
    """Both results of the second turn were returned in the first, and neither call leaves anything behind."""
    calls = [("touch", {"file_name": "new"}), ("rm", {"file_name": "new"})]
    task = draft(FILES, ("", calls), ("", calls))
    played = PlayedReference(ENVIRONMENT, task, replay(ENVIRONMENT, task))
    assert played.rest(1, 0).errors() == ((1, 0),)
    assert played.superfluous(1, 0)
    assert not played.superfluous(1, 1)


def test_a_call_without_which_the_state_has_no_finite_text_is_kept(monkeypatch):
    task = draft(FILES, ("", [SORT, SORT]))
    played = PlayedReference(ENVIRONMENT, task, replay(ENVIRONMENT, task))
    assert played.superfluous(0, 0)

    def endless(turn, call):
        raise RecursionError

    monkeypatch.setattr(played, "rest", endless)
    assert not played.superfluous(0, 0)
