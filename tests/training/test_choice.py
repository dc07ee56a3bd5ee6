"""Which signals become contexts: shares of a limit, one per task and kind, and all of them without a limit."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from memory.records import PAPER_KINDS, Signal, SignalKind
from training.choice import choose
from training.signal_settings import ExperimentalSignals, SignalSettings

FORGETTING, BOUNDARY, RARE = PAPER_KINDS
UNSOLVED = SignalKind.UNSOLVED


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
    ("available", "shares", "chosen"),
    [
        ((40, 40, 40), (0.3, 0.5, 0.2), (7, 12, 5)),
        ((40, 40, 40), (0.25, 0.5, 0.25), (6, 12, 6)),
        ((2, 40, 40), (0.25, 0.5, 0.25), (2, 14, 8)),
        ((0, 40, 0), (0.3, 0.5, 0.2), (0, 24, 0)),
        ((40, 3, 0), (0.3, 0.5, 0.2), (21, 3, 0)),
        ((3, 4, 5), (0.3, 0.5, 0.2), (3, 4, 5)),
        ((0, 0, 0), (0.3, 0.5, 0.2), (0, 0, 0)),
        ((40, 40, 40), (0.0, 0.5, 0.5), (0, 12, 12)),
        ((40, 3, 4), (0.0, 0.5, 0.5), (0, 3, 4)),
        ((40, 40, 40), (0.0, 1.0, 0.0), (0, 24, 0)),
    ],
)
def test_the_budget_is_shared_out_by_kind(available, shares, chosen):
    names = ("share_forgetting", "share_boundary", "share_rare")
    choice = choose(many(*available), SignalSettings(**dict(zip(names, shares, strict=True))), seed=1)
    counts = Counter(signal.kind for signal in choice.chosen)
    assert tuple(counts[kind] for kind in PAPER_KINDS) == chosen
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
    signals = [*many(*available), *(signal(kind, "task-00", 1) for kind in PAPER_KINDS)]
    choice = choose(signals, SignalSettings(kinds=kinds), seed=1)
    counts = Counter(signal.kind for signal in choice.chosen)
    assert tuple(counts[kind] for kind in PAPER_KINDS) == chosen
    for kind, has, got in zip(PAPER_KINDS, available, chosen, strict=True):
        listed = kind in kinds
        assert choice.left_out[kind] == (has - got if listed else 0)
        assert choice.repeated[kind] == (1 if listed else 0)


def test_listing_a_kind_without_signals_changes_no_choice():
    """What a kind does not use goes to the others; the draw within a kind does not depend on which kinds there are."""
    signals = many(0, 30, 0)
    everything = choose(signals, SignalSettings(), seed=3).chosen
    assert choose(signals, SignalSettings(kinds=(BOUNDARY,)), seed=3).chosen == everything


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({"kinds": tuple(SignalKind)}, (5, 8, 3, 8)),
        ({"kinds": (FORGETTING, UNSOLVED)}, (9, 0, 0, 15)),
        ({"kinds": (UNSOLVED,)}, (0, 0, 0, 24)),
        ({"kinds": tuple(SignalKind), "share_unsolved": 1.0}, (4, 6, 2, 12)),
        ({"uncovered": 4}, (6, 10, 4, 0)),
        ({"kinds": tuple(SignalKind), "uncovered": 12}, (2, 4, 2, 4)),
    ],
)
def test_unsolved_has_a_weight_beside_the_papers_shares_and_coverage_its_places(changes, chosen):
    signals = [*many(40, 40, 40), *(signal(UNSOLVED, f"task-{number:02d}", pattern=("ls",)) for number in range(40))]
    counts = Counter(one.kind for one in choose(signals, SignalSettings(**changes), seed=1).chosen)
    assert tuple(counts[kind] for kind in SignalKind) == chosen


@pytest.mark.parametrize("seed", range(4))
def test_of_unsolved_every_pattern_has_its_turn_and_functions_go_first(seed):
    never = [signal(UNSOLVED, f"ls-{number}", pattern=("ls",), count=1) for number in range(30)]
    never += [signal(UNSOLVED, f"cd-{number}", pattern=("cd",), count=1) for number in range(2)]
    sequences = [signal(UNSOLVED, f"pair-{number}", pattern=("pwd", f"{number}"), count=0) for number in range(3)]
    for limit, (cd, ls, pwd) in ((2, (1, 1, 0)), (5, (1, 1, 3)), (8, (2, 3, 3))):
        limits = SignalSettings(kinds=(UNSOLVED,), contexts_per_iteration=limit)
        choice = choose([*never, *sequences], limits, seed)
        assert Counter(one.pattern[0] for one in choice.chosen) == Counter(cd=cd, ls=ls, pwd=pwd)
        assert choice.left_out[UNSOLVED] == 35 - limit


def test_novelty_chooses_candidates_and_keeps_the_shares():
    limits = SignalSettings(experimental=ExperimentalSignals(novelty=True), contexts_per_iteration=10)
    counts = Counter(signal.kind for signal in choose(many(40, 40, 40), limits, seed=1).chosen)
    assert counts == {FORGETTING: 9, BOUNDARY: 15, RARE: 6}


@pytest.mark.parametrize(
    ("kinds", "shares"),
    [
        ((FORGETTING, BOUNDARY, RARE), {FORGETTING: 0.3, BOUNDARY: 0.5, RARE: 0.2}),
        ((FORGETTING, RARE), {FORGETTING: 0.6, RARE: 0.4}),
        ((RARE,), {RARE: 1.0}),
    ],
)
def test_shares_are_scaled_to_the_kinds_that_are_listed(kinds, shares):
    assert SignalSettings(kinds=kinds).shares() == pytest.approx(shares)


signals_of_any_kind = st.lists(
    st.builds(
        signal,
        st.sampled_from(PAPER_KINDS),
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
    for kind in PAPER_KINDS:
        of = [one for one in signals if one.kind is kind]
        chosen = [one for one in choice.chosen if one.kind is kind]
        assert all(one in of for one in chosen)
        assert len(chosen) + choice.left_out[kind] + choice.repeated[kind] == len(of)
        for one in chosen:
            rivals = [other for other in of if other.task_id == one.task_id]
            assert one.successful_evidence == all(other.successful_evidence for other in rivals)


def test_without_a_limit_every_signal_of_the_listed_kinds_is_followed():
    signals = [*many(40, 40, 40), *(signal(kind, "task-00", 1) for kind in PAPER_KINDS)]
    choice = choose(signals, SignalSettings(contexts_per_iteration=None), seed=1)
    assert choice.chosen == tuple(sorted(signals, key=lambda one: one.id))
    assert set(choice.repeated.values()) == set(choice.left_out.values()) == {0}
    rare = choose(signals, SignalSettings(contexts_per_iteration=None, kinds=(RARE,)), seed=1)
    assert {one.kind for one in rare.chosen} == {RARE}
    assert len(rare.chosen) == 41


def test_one_context_per_task_has_no_limit_either():
    signals = [*many(40, 30, 20), *(signal(kind, "task-00", 1, successful_evidence=True) for kind in PAPER_KINDS)]
    choice = choose(signals, SignalSettings(contexts_per_iteration=None, context_per="task"), seed=1)
    assert choice.chosen == tuple(sorted(many(40, 30, 20), key=lambda one: one.id))
    assert choice.repeated == dict.fromkeys(PAPER_KINDS, 1)
    assert set(choice.left_out.values()) == {0}


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({"experimental": {"novelty": True}}, r"'experimental\.novelty' is for contexts_per_iteration"),
        ({"share_boundary": 0.4, "share_rare": 0.3}, "'share_boundary' is for contexts_per_iteration"),
        ({"contexts": "random"}, "contexts: random needs a number"),
    ],
)
def test_options_that_share_out_a_limit_are_refused_without_one(given_, told):
    with pytest.raises(ValidationError, match=told):
        SignalSettings(contexts_per_iteration=None, **given_)
