"""The definition ``group``, of the recorded studies: tables of small rounds, and properties of all rounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollouts import CRASHED, group, rollout, turn

from memory.records import PAPER_KINDS
from training.signal_settings import SignalSettings
from training.signals import GroupScore, extract, patterns

FORGETTING, BOUNDARY, RARE = PAPER_KINDS


def read(trajectories, earlier=None, **changes):
    return extract(trajectories, earlier or {}, SignalSettings(definition="group", **changes), iteration=0)


def of_kind(extraction, kind):
    return [signal for signal in extraction.signals if signal.kind is kind]


def scored(task_id, *means, first_step=0):
    return [GroupScore(task_id=task_id, step=first_step + at, mean=mean, n=8) for at, mean in enumerate(means)]


HALF, ALL, NONE, QUARTER = [True, False], [True, True], [False, False], [False, True, False, False]


@pytest.mark.parametrize(
    ("earlier", "now", "window", "signals"),
    [
        pytest.param([], [NONE], 10, [], id="a first attempt has nothing to forget"),
        pytest.param([], [ALL, NONE], 10, [(1, 0.0, 1.0)], id="forgotten within a round"),
        pytest.param([1.0], [NONE], 10, [(0, 0.0, 1.0)], id="forgotten since an earlier round"),
        pytest.param([0.5], [NONE], 10, [(0, 0.0, 0.5)], id="exactly one half before was a success"),
        pytest.param([0.49], [NONE], 10, [], id="below one half before was none"),
        pytest.param([1.0], [HALF], 10, [], id="exactly one half now is not forgotten"),
        pytest.param([1.0], [QUARTER], 10, [(0, 0.25, 1.0)], id="below one half now is"),
        pytest.param([0.2, 0.9, 0.6], [NONE], 10, [(0, 0.0, 0.9)], id="the best earlier attempt is told"),
        pytest.param([1.0, 0.0], [NONE], 2, [(0, 0.0, 1.0)], id="the window reaches back W attempts"),
        pytest.param([1.0, 0.0], [NONE], 1, [], id="and not one more"),
        pytest.param([1.0], [NONE, NONE], 1, [(0, 0.0, 1.0)], id="W counts attempts of this round too"),
        pytest.param([1.0], [NONE, NONE], 2, [(0, 0.0, 1.0), (1, 0.0, 1.0)], id="each step that shows it"),
        pytest.param([], [ALL, NONE, ALL, NONE], 10, [(1, 0.0, 1.0), (3, 0.0, 1.0)], id="learned and forgotten twice"),
        pytest.param([1.0], [[False]], 10, [(0, 0.0, 1.0)], id="a group of one is an attempt"),
        pytest.param([1.0], [[CRASHED, CRASHED]], 10, [], id="a group without a valid rollout is none"),
        pytest.param([1.0], [[CRASHED, True, False, CRASHED]], 10, [], id="errors do not lower a mean"),
        pytest.param([], [[CRASHED, True], NONE], 10, [(1, 0.0, 1.0)], id="errors do not lower an earlier mean"),
    ],
)
def test_forgetting(earlier, now, window, signals):
    start = len(earlier)
    trajectories = [one for at, results in enumerate(now) for one in group("t", start + at, results)]
    extraction = read(trajectories, {"t": scored("t", *earlier)}, window=window)
    found = [
        (int(signal.trajectory_id.split("/")[1]) - start, signal.score, signal.previous)
        for signal in of_kind(extraction, FORGETTING)
    ]
    assert sorted(found) == signals


def test_forgetting_looks_at_the_same_task_only():
    extraction = read(group("a", 3, NONE), {"b": scored("b", 1.0), "a": []})
    assert of_kind(extraction, FORGETTING) == []


@given(st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8))
def test_rewards_change_no_signal(rewards):
    """A failure that was paid for the checks it passed is a failure all the same."""
    trajectories = [*group("t", 0, ALL, "a", "b"), *group("t", 1, NONE, "a", "c"), *group("u", 1, QUARTER, "a", "d")]
    paid = [one.model_copy(update={"reward": reward}) for one, reward in zip(trajectories, rewards, strict=True)]
    assert read(paid, rare_percent=30.0) == read(trajectories, rare_percent=30.0)
    assert {signal.kind for signal in read(paid, rare_percent=30.0).signals} == {FORGETTING, BOUNDARY, RARE}


def test_scores_of_one_round_are_what_the_next_looks_back_on():
    first = read([*group("t", 0, ALL), *group("u", 0, [False, CRASHED])])
    assert first.scores == (
        GroupScore(task_id="t", step=0, mean=1.0, n=2, scores=(1, 1)),
        GroupScore(task_id="u", step=0, mean=0.0, n=1, scores=(0,)),
    )
    assert first.left_out == 1
    earlier = {"t": [score for score in first.scores if score.task_id == "t"]}
    (signal,) = of_kind(read(group("t", 5, NONE), earlier), FORGETTING)
    assert (signal.score, signal.previous) == (0.0, 1.0)


def test_scores_of_the_round_itself_do_not_count_as_earlier():
    round_ = [*group("t", 4, NONE), *group("t", 5, ALL)]
    assert of_kind(read(round_, {"t": scored("t", 1.0, 1.0, first_step=5)}), FORGETTING) == []


@pytest.mark.parametrize(
    ("results", "evidence", "mean"),
    [
        (ALL, None, None),
        (NONE, None, None),
        ([True], None, None),
        ([False], None, None),
        ([True, False], 1, 0.5),
        ([False, True, True], 0, 2 / 3),
        ([CRASHED, True], None, None),
        ([CRASHED, False], None, None),
        ([CRASHED, True, CRASHED, False, False], 3, 1 / 3),
        ([CRASHED, CRASHED], None, None),
    ],
)
def test_boundary(results, evidence, mean):
    found = of_kind(read(group("t", 0, results)), BOUNDARY)
    if evidence is None:
        assert found == []
    else:
        (signal,) = found
        assert (signal.trajectory_id, signal.score) == (f"t/0/{evidence}", mean)


def test_boundary_needs_both_results_in_one_step_of_one_task():
    extraction = read([*group("a", 0, ALL), *group("a", 1, NONE), *group("b", 0, NONE)])
    assert of_kind(extraction, BOUNDARY) == []
    twice = read([*group("a", 0, HALF), *group("a", 1, HALF)])
    assert [signal.trajectory_id for signal in of_kind(twice, BOUNDARY)] in (["a/0/1", "a/1/1"], ["a/1/1", "a/0/1"])


def test_patterns_are_runs_of_names_across_turns():
    trajectory = rollout("t", 0, 0, True, turns=(turn("ls", "cd"), turn("ls")))
    assert list(patterns(trajectory, 1)) == [("ls",), ("cd",), ("ls",)]
    assert list(patterns(trajectory, 2)) == [("ls", "cd"), ("cd", "ls")]
    assert list(patterns(trajectory, 3)) == [("ls", "cd", "ls")]
    assert list(patterns(trajectory, 4)) == []


@pytest.mark.parametrize(
    ("common", "percent", "rare"),
    [
        pytest.param(19, 5.0, False, id="exactly theta percent is not rare"),
        pytest.param(20, 5.0, True, id="below theta percent is"),
        pytest.param(0, 5.0, False, id="the only pattern is not rare"),
        pytest.param(1, 51.0, True, id="theta is a setting"),
    ],
)
def test_rare_compares_with_all_occurrences_of_the_round(common, percent, rare):
    trajectories = [rollout("common", 0, sample, False, "ls", "ls") for sample in range(common)]
    trajectories.append(rollout("odd", 0, 0, False, "mkdir", "cd"))
    trajectories.append(rollout("crashed", 0, 0, CRASHED, "pwd", "pwd", "pwd"))
    extraction = read(trajectories, rare_percent=percent)
    assert extraction.pattern_occurrences == common + 1
    found = [s for s in of_kind(extraction, RARE) if s.task_id == "odd"]
    assert [(s.pattern, s.count, s.trajectory_id) for s in found] == [(("mkdir", "cd"), 1, "odd/0/0")] * rare


RARE_ONE = ("mkdir", "cd")


@pytest.mark.parametrize(
    ("holding", "evidence", "successful"),
    [
        ([(0, 0, True), (0, 1, False)], "t/0/1", False),
        ([(0, 0, False), (2, 1, False), (2, 3, False), (3, 0, True)], "t/2/1", False),
        ([(0, 0, True), (1, 1, True), (1, 0, True)], "t/1/0", True),
        ([(0, 0, True), (0, 1, CRASHED)], "t/0/0", True),
    ],
)
def test_rare_evidence_is_the_latest_failure_else_the_latest_success(holding, evidence, successful):
    trajectories = [rollout("t", step, sample, result, *RARE_ONE) for step, sample, result in holding]
    trajectories += [rollout("other", 0, sample, True, *["ls"] * 20) for sample in range(8)]
    (signal,) = of_kind(read(trajectories), RARE)
    assert (signal.trajectory_id, signal.successful_evidence) == (evidence, successful)
    assert signal.count == sum(result is not CRASHED for *_, result in holding)


def test_rare_gives_one_signal_a_pattern_and_task():
    trajectories = [rollout("other", 0, sample, True, *["ls"] * 30) for sample in range(8)]
    trajectories += [rollout("a", 0, sample, False, "mkdir", "cd", "mkdir", "cd") for sample in range(2)]
    trajectories += [rollout("b", 0, 0, False, "mkdir", "cd")]
    found = {(signal.task_id, signal.pattern): signal.count for signal in of_kind(read(trajectories), RARE)}
    assert found == {("a", RARE_ONE): 5, ("a", ("cd", "mkdir")): 2, ("b", RARE_ONE): 5}


def test_an_empty_round_shows_nothing():
    extraction = read([])
    assert (extraction.signals, extraction.scores, extraction.pattern_occurrences) == ((), (), 0)
    assert extraction.counts() == {FORGETTING: 0, BOUNDARY: 0, RARE: 0}
    calls = read([rollout("t", 0, 0, False), rollout("t", 0, 1, False, "ls")])
    assert calls.pattern_occurrences == 0


rollouts = st.builds(
    rollout,
    st.sampled_from("abc"),
    st.integers(10, 13),
    st.integers(0, 3),
    st.sampled_from([True, False, CRASHED]),
    turns=st.lists(st.lists(st.sampled_from(["ls", "cd", "mkdir"]), max_size=4), min_size=1, max_size=2).map(
        lambda names: tuple(turn(*one) for one in names)
    ),
)
rounds = st.lists(rollouts, max_size=30, unique_by=lambda trajectory: trajectory.id)
histories = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=4), max_size=3
).map(lambda means: {task: scored(task, *of_task) for task, of_task in means.items()})


@settings(max_examples=60, deadline=None)
@given(round_=rounds, earlier=histories, length=st.integers(1, 3), data=st.data())
def test_what_holds_for_every_round(round_, earlier, length, data):
    extraction = read(round_, earlier, pattern_length=length, rare_percent=20.0)
    assert extraction == read(data.draw(st.permutations(round_)), earlier, pattern_length=length, rare_percent=20.0)
    valid = {one.id: one for one in round_ if one.infrastructure_error is None}
    assert extraction.left_out == len(round_) - len(valid)
    assert sum(score.n for score in extraction.scores) == len(valid)
    assert sum(round(score.mean * score.n) for score in extraction.scores) == sum(one.success for one in valid.values())
    assert extraction.pattern_occurrences == sum(max(0, len(one.calls()) - length + 1) for one in valid.values())
    assert extraction.counts() == {kind: len(of_kind(extraction, kind)) for kind in PAPER_KINDS}
    assert len({signal.id for signal in extraction.signals}) == len(extraction.signals)
    for signal in extraction.signals:
        evidence = valid[signal.trajectory_id]
        assert evidence.task_id == signal.task_id
        assert evidence.success == signal.successful_evidence
        assert signal.kind is RARE or not signal.successful_evidence
        if signal.kind is RARE:
            assert signal.pattern in set(patterns(evidence, length))
            assert 0 < 100 * signal.count < 20 * extraction.pattern_occurrences
    mixed = {
        (one.task_id, one.step)
        for one in valid.values()
        if {other.success for other in valid.values() if (other.task_id, other.step) == (one.task_id, one.step)}
        == {True, False}
    }
    assert {(s.task_id, valid[s.trajectory_id].step) for s in of_kind(extraction, BOUNDARY)} == mixed
