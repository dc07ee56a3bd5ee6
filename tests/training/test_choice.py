"""Which signals become contexts: shares of a limit, one per task and kind, and all of them without a limit."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from memory.records import Signal, SignalKind
from training.signals import SignalSettings, choose

FORGETTING, BOUNDARY, RARE = SignalKind.FORGETTING, SignalKind.BOUNDARY, SignalKind.RARE


def signal(kind, task_id, position=0, **changes):
    return Signal(
        id=f"signal-{kind}-{task_id}-{position}",
        kind=kind,
        iteration=0,
        task_id=task_id,
        trajectory_id="trajectory",
        **changes,
    )


def many(forgetting, boundary, rare):
    counts = {FORGETTING: forgetting, BOUNDARY: boundary, RARE: rare}
    return [signal(kind, f"task-{number:02d}") for kind, count in counts.items() for number in range(count)]


@pytest.mark.parametrize(
    ("available", "chosen"),
    [
        ((40, 40, 40), (7, 12, 5)),
        ((0, 40, 0), (0, 24, 0)),
        ((40, 3, 0), (21, 3, 0)),
        ((3, 4, 5), (3, 4, 5)),
        ((0, 0, 0), (0, 0, 0)),
    ],
)
def test_the_budget_is_shared_out_by_kind(available, chosen):
    choice = choose(many(*available), SignalSettings(), seed=1)
    counts = Counter(signal.kind for signal in choice.chosen)
    assert tuple(counts[kind] for kind in SignalKind) == chosen
    assert tuple(choice.left_out.values()) == tuple(a - c for a, c in zip(available, chosen, strict=True))
    assert set(choice.repeated.values()) == {0}


def test_a_task_has_one_signal_of_a_kind_and_the_better_evidence():
    signals = [
        signal(RARE, "a", 0, count=1, successful_evidence=True),
        signal(RARE, "a", 1, count=9),
        signal(RARE, "a", 2, count=4),
        *(signal(BOUNDARY, "a", position) for position in range(3)),
        signal(BOUNDARY, "b"),
    ]
    choice = choose(signals, SignalSettings(), seed=1)
    assert Counter((one.kind, one.task_id) for one in choice.chosen) == {
        (RARE, "a"): 1,
        (BOUNDARY, "a"): 1,
        (BOUNDARY, "b"): 1,
    }
    assert signals[2] in choice.chosen
    assert choice.repeated == {FORGETTING: 0, BOUNDARY: 2, RARE: 2}
    assert choice.left_out == {FORGETTING: 0, BOUNDARY: 0, RARE: 0}


def test_the_seed_decides_which_tasks_and_which_steps():
    tasks = {tuple(one.id for one in choose(many(0, 40, 0), SignalSettings(), seed).chosen) for seed in range(5)}
    assert len(tasks) == 5
    steps = [signal(FORGETTING, "a", position) for position in range(10)]
    assert len({choose(steps, SignalSettings(), seed).chosen[0].id for seed in range(10)}) > 1


@pytest.mark.parametrize(
    ("kinds", "available", "chosen"),
    [
        ((FORGETTING, BOUNDARY, RARE), (40, 40, 40), (7, 12, 5)),
        ((FORGETTING, BOUNDARY), (40, 40, 40), (9, 15, 0)),
        ((RARE, FORGETTING), (40, 40, 40), (14, 0, 10)),
        ((BOUNDARY,), (40, 40, 40), (0, 24, 0)),
        ((RARE,), (40, 40, 7), (0, 0, 7)),
        ((FORGETTING, BOUNDARY), (2, 40, 40), (2, 22, 0)),
    ],
)
def test_kinds_that_are_not_listed_leave_their_share_to_the_others(kinds, available, chosen):
    signals = [*many(*available), *(signal(kind, "task-00", 1) for kind in SignalKind)]
    choice = choose(signals, SignalSettings(kinds=kinds), seed=1)
    counts = Counter(signal.kind for signal in choice.chosen)
    assert tuple(counts[kind] for kind in SignalKind) == chosen
    for kind, has, got in zip(SignalKind, available, chosen, strict=True):
        listed = kind in kinds
        assert choice.left_out[kind] == (has - got if listed else 0)
        assert choice.repeated[kind] == (1 if listed else 0)


def test_listing_a_kind_without_signals_changes_no_choice():
    """What a kind does not use goes to the others; the draw within a kind does not depend on which kinds there are."""
    signals = many(0, 30, 0)
    everything = choose(signals, SignalSettings(), seed=3).chosen
    assert choose(signals, SignalSettings(kinds=(BOUNDARY,)), seed=3).chosen == everything


signals_of_any_kind = st.lists(
    st.builds(
        signal,
        st.sampled_from(SignalKind),
        st.sampled_from([f"task-{number}" for number in range(12)]),
        st.integers(0, 3),
        successful_evidence=st.booleans(),
        count=st.none() | st.integers(1, 9),
    ),
    max_size=40,
    unique_by=lambda one: one.id,
)


@settings(max_examples=100, deadline=None)
@given(signals=signals_of_any_kind, budget=st.integers(1, 12), seed=st.integers(0, 2**40), data=st.data())
def test_what_holds_for_every_choice(signals, budget, seed, data):
    limits = SignalSettings(contexts_per_iteration=budget)
    choice = choose(signals, limits, seed)
    assert choice == choose(data.draw(st.permutations(signals)), limits, seed)
    pairs = [(one.kind, one.task_id) for one in choice.chosen]
    assert len(pairs) == len(set(pairs)) == min(budget, len({(one.kind, one.task_id) for one in signals}))
    assert list(choice.chosen) == sorted(choice.chosen, key=lambda one: one.id)
    for kind in SignalKind:
        of = [one for one in signals if one.kind is kind]
        chosen = [one for one in choice.chosen if one.kind is kind]
        assert all(one in of for one in chosen)
        assert len(chosen) + choice.left_out[kind] + choice.repeated[kind] == len(of)
        for one in chosen:
            rivals = [other for other in of if other.task_id == one.task_id]
            assert one.successful_evidence == all(other.successful_evidence for other in rivals)


def test_without_a_limit_every_signal_of_the_listed_kinds_is_followed():
    signals = [*many(40, 40, 40), *(signal(kind, "task-00", 1) for kind in SignalKind)]
    choice = choose(signals, SignalSettings(contexts_per_iteration=None), seed=1)
    assert choice.chosen == tuple(sorted(signals, key=lambda one: one.id))
    assert set(choice.repeated.values()) == set(choice.left_out.values()) == {0}
    rare = choose(signals, SignalSettings(contexts_per_iteration=None, kinds=(RARE,)), seed=1)
    assert {one.kind for one in rare.chosen} == {RARE}
    assert len(rare.chosen) == 41


def test_a_source_that_shares_out_a_limit_is_refused_without_one():
    with pytest.raises(ValidationError, match="contexts: random needs a number"):
        SignalSettings(contexts_per_iteration=None, contexts="random")


def test_a_source_without_signals_has_its_limit_as_a_number():
    assert SignalSettings(contexts="random", contexts_per_iteration=7).limit == 7
