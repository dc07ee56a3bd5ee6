"""The paper's signals: tables of groups made by hand, and properties of all rounds."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollouts import CRASHED, group, rollout, turn

from memory.records import SignalKind
from training.signals import GroupScore, PatternCount, SignalSettings, action_pattern, extract

FORGETTING, BOUNDARY, RARE = SignalKind.FORGETTING, SignalKind.BOUNDARY, SignalKind.RARE
ALL, NONE, HALF = [True, True], [False, False], [True, False]


def read(trajectories, earlier=None, counted=(), iteration=0, **changes):
    limits = SignalSettings(**{"rare_min_patterns": 1, **changes})
    return extract(trajectories, earlier or {}, limits, iteration, counted)


def marked(extraction, kind):
    return sorted(signal.trajectory_id for signal in extraction.signals if signal.kind is kind)


def of_kind(extraction, kind):
    return [signal for signal in extraction.signals if signal.kind is kind]


def scored(*groups):
    """What earlier rounds recorded of task t: the scores of each step, from step 0 on."""
    return {
        "t": [
            GroupScore(task_id="t", step=step, mean=sum(scores) / len(scores), n=len(scores), scores=tuple(scores))
            for step, scores in enumerate(groups)
        ]
    }


@pytest.mark.parametrize(
    ("earlier", "now", "window", "found"),
    [
        pytest.param([], [NONE], 10, {}, id="a first failure has nothing to forget"),
        pytest.param([], [HALF], 10, {}, id="rollouts of one step do not see each other"),
        pytest.param([], [ALL, NONE], 10, {"t/1/0": (2, 2), "t/1/1": (2, 2)}, id="every failure is marked"),
        pytest.param([], [ALL, HALF], 10, {"t/1/1": (2, 2)}, id="by its own score, not by the group's mean"),
        pytest.param(
            [[0, 1]], [NONE], 10, {"t/1/0": (1, 2), "t/1/1": (1, 2)}, id="one success in the window is enough"
        ),
        pytest.param([[0, 0]], [NONE], 10, {}, id="no success in it is not"),
        pytest.param([[1, 1]], [ALL], 10, {}, id="a success is not forgotten"),
        pytest.param([[1, 0], [0]], [[False]], 2, {}, id="W counts scores of trajectories"),
        pytest.param([[1, 0], [0]], [[False]], 3, {"t/2/0": (1, 3)}, id="across steps"),
        pytest.param([[0, 1], [0]], [[False]], 2, {"t/2/0": (1, 2)}, id="the newest ones, by step and sample"),
        pytest.param([[1]], [[False], [False]], 1, {"t/1/0": (1, 1)}, id="of this round, too"),
        pytest.param(
            [[1]], [[False, CRASHED]], 10, {"t/1/0": (1, 1)}, id="a fault of the environment is not a failure"
        ),
        pytest.param([], [[CRASHED, True], [CRASHED]], 10, {}, id="nor a group without an outcome"),
        pytest.param([], [[CRASHED, True], [False]], 10, {"t/1/0": (1, 1)}, id="and leaves no score"),
    ],
)
def test_forgetting_marks_each_failure_with_a_success_in_its_window(earlier, now, window, found):
    start = len(earlier)
    trajectories = [one for at, results in enumerate(now) for one in group("t", start + at, results)]
    signals = of_kind(read(trajectories, scored(*earlier), window=window), FORGETTING)
    assert {signal.trajectory_id: signal.recent for signal in signals} == found
    assert {(signal.score, signal.previous, signal.successful_evidence) for signal in signals} <= {(0.0, 1.0, False)}


def test_forgetting_looks_at_the_same_task_and_at_earlier_steps_only():
    assert marked(read(group("u", 3, NONE), scored([1, 1])), FORGETTING) == []
    assert marked(read(group("t", 0, NONE), scored([0], [1])), FORGETTING) == []


@pytest.mark.parametrize(
    ("results", "counterparts"),
    [
        (ALL, {}),
        (NONE, {}),
        ([True, False], {0: 1, 1: 0}),
        ([False, False, True, True], {0: 2, 1: 2, 2: 0, 3: 0}),
        ([CRASHED, True], {}),
        ([CRASHED, False, True], {1: 2, 2: 1}),
    ],
)
def test_boundary_marks_all_rollouts_of_a_mixed_group(results, counterparts):
    signals = of_kind(read(group("t", 0, results)), BOUNDARY)
    found = {int(one.trajectory_id[-1]): int(one.counterpart_id[-1]) for one in signals}
    assert found == counterparts
    assert all(one.successful_evidence == (results[int(one.trajectory_id[-1])] is True) for one in signals)
    assert {one.group for one in signals} <= {(results.count(True), len(results) - results.count(CRASHED))}


def test_boundary_needs_both_results_in_one_step_of_one_task():
    assert marked(read([*group("a", 0, ALL), *group("a", 1, NONE), *group("b", 0, NONE)]), BOUNDARY) == []
    assert len(marked(read([*group("a", 0, HALF), *group("a", 1, HALF)]), BOUNDARY)) == 4


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ("succeeded", ("cd", "ls")),
        ("called", ("cd", "ls", "rm")),
        ("sequence", ("ls", "rm", "cd", "ls")),
    ],
)
def test_a_trajectory_has_one_action_pattern(form, pattern):
    played = rollout("t", 0, 0, True, turns=(turn("ls", "!rm"), turn("cd", "ls")))
    assert action_pattern(played, SignalSettings(pattern=form)) == pattern
    assert action_pattern(rollout("t", 0, 0, True), SignalSettings(pattern=form)) == ()


def held(**counts):
    """Earlier rounds' counts: ``a=3`` saw the pattern of the tool a three times."""
    return [PatternCount(pattern=(name,), count=count) for name, count in counts.items()]


MANY = {f"tool{number}": 9 for number in range(97)}


@pytest.mark.parametrize(
    ("former", "now", "changes", "found"),
    [
        pytest.param(MANY, "aa", {}, ["t/0/0", "t/0/1"], id="every holder is marked: 2 < 5 % of 98"),
        pytest.param(MANY, "a", {}, [], id="a single trajectory is a one-off event"),
        pytest.param(MANY, "a", {"rare_min_trajectories": 1}, ["t/0/0"], id="which is a setting"),
        pytest.param(MANY | {"a": 1}, "a", {}, ["t/0/0"], id="recurrence is counted over the run"),
        pytest.param(MANY | {"a": 3}, "a", {}, ["t/0/0"], id="counts are cumulative: 4 < 5 % of 98"),
        pytest.param(MANY | {"a": 4}, "a", {}, [], id="5 is more"),
        pytest.param({**MANY, "b": 1, "c": 1, "a": 4}, "a", {}, [], id="exactly theta percent is not rare"),
        pytest.param(MANY | {"a": 4}, "a", {"rare_percent": 5.15}, ["t/0/0"], id="theta is a setting"),
        pytest.param(MANY, "aa", {"rare_min_patterns": 98}, ["t/0/0", "t/0/1"], id="N has reached N_min"),
        pytest.param(MANY, "aa", {"rare_min_patterns": 99}, [], id="N has not"),
        pytest.param(MANY | {"a": 40}, "a", {}, [], id="41 is more than 5 % of 98 patterns"),
        pytest.param(MANY, "", {}, [], id="a trajectory without calls has no pattern"),
    ],
)
def test_rare_patterns_are_counted_over_the_run(former, now, changes, found):
    trajectories = [rollout("t", 0, sample, sample % 2 == 0, name) for sample, name in enumerate(now)]
    trajectories += [rollout("crashed", 0, 0, CRASHED, "a"), rollout("mute", 0, 0, False)]
    extraction = read(trajectories, counted=held(**former), **changes)
    assert marked(extraction, RARE) == found
    names = Counter(former) + Counter(now)
    assert {(one.pattern, one.count) for one in of_kind(extraction, RARE)} == (
        {(("a",), names["a"])} if found else set()
    )
    assert [(one.pattern, one.count) for one in extraction.patterns] == [
        ((name,), now.count(name)) for name in set(now)
    ]
    assert (extraction.pattern_occurrences, extraction.different_patterns) == (names.total(), len(names))
    assert all(one.successful_evidence == (one.trajectory_id == "t/0/0") for one in of_kind(extraction, RARE))


def test_a_trajectory_carries_every_kind_that_fires():
    round_ = [rollout("t", 1, 0, False, "odd"), rollout("t", 1, 1, True, "odd"), *group("u", 1, NONE)]
    extraction = read(round_, scored([1, 1]), counted=held(**MANY))
    kinds = {(one.trajectory_id, one.kind) for one in extraction.signals}
    assert kinds == {("t/1/0", kind) for kind in SignalKind} | {("t/1/1", BOUNDARY), ("t/1/1", RARE)}
    assert extraction.counts() == {FORGETTING: 1, BOUNDARY: 2, RARE: 2}
    assert extraction.task_counts() == {FORGETTING: 1, BOUNDARY: 1, RARE: 1}
    assert extraction.marked() == 2


def test_scores_faults_and_tasks_of_a_round_are_counted():
    extraction = read([*group("t", 0, [True, False, False, CRASHED]), *group("u", 0, HALF)])
    scores = [(one.task_id, one.mean, one.n, one.scores) for one in extraction.scores]
    assert scores == [("t", pytest.approx(1 / 3), 3, (1, 0, 0)), ("u", 0.5, 2, (1, 0))]
    assert extraction.left_out == 1
    assert extraction.task_counts() == {FORGETTING: 0, BOUNDARY: 2, RARE: 0}


@pytest.mark.parametrize(("last_steps", "steps"), [(None, "345"), (1, "5"), (2, "45"), (3, "345"), (9, "345")])
def test_the_last_steps_alone_can_carry_signals(last_steps, steps):
    round_ = [one for step in (3, 4, 5) for one in group("t", step, HALF)]
    extraction = read([*round_, *group("u", 5, [CRASHED])], last_steps=last_steps)
    assert marked(extraction, BOUNDARY) == [f"t/{step}/{sample}" for step in steps for sample in (0, 1)]
    assert [one.step for one in extraction.scores] == [3, 4, 5]


def test_an_empty_round_shows_nothing():
    extraction = read([])
    assert (extraction.signals, extraction.scores, extraction.patterns) == ((), (), ())
    assert extraction.counts() == extraction.task_counts() == {FORGETTING: 0, BOUNDARY: 0, RARE: 0}
    assert extraction.marked() == 0


rollouts = st.builds(
    rollout,
    st.sampled_from("abc"),
    st.integers(0, 5),
    st.integers(0, 3),
    st.sampled_from([True, False, CRASHED]),
    turns=st.lists(st.lists(st.sampled_from(["ls", "cd", "mkdir", "!rm"]), max_size=3), min_size=1, max_size=2).map(
        lambda names: tuple(turn(*one) for one in names)
    ),
)
rounds = st.lists(rollouts, max_size=40, unique_by=lambda trajectory: trajectory.id)


def by_hand(trajectories, last_step, limits):
    """The three definitions, word for word, over all trajectories of a run; what is marked after ``last_step``."""
    valid = sorted((t for t in trajectories if t.infrastructure_error is None), key=lambda t: (t.step, t.sample))
    forms = {one.id: action_pattern(one, limits) for one in valid}
    counts = Counter(form for form in forms.values() if form)
    found = set()
    for now in (one for one in valid if one.step > last_step):
        window = [float(one.success) for one in valid if one.task_id == now.task_id and one.step < now.step]
        if any(score >= 0.5 for score in window[-limits.window :]) and float(now.success) < 0.5:
            found.add((now.id, FORGETTING))
        results = {one.success for one in valid if (one.task_id, one.step) == (now.task_id, now.step)}
        if results == {True, False}:
            found.add((now.id, BOUNDARY))
        total = len(counts)
        count = counts[forms[now.id]]
        if total >= limits.rare_min_patterns and count >= 2 and count / total < limits.rare_percent / 100:
            found.add((now.id, RARE))
    return found


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(run=rounds, cut=st.integers(-1, 5), window=st.integers(1, 9), minimum=st.integers(1, 9), data=st.data())
def test_a_round_marks_what_the_definitions_say_wherever_the_run_is_cut(run, cut, window, minimum, data):
    """Scores and pattern counts that are carried over make of two rounds what one would be."""
    limits = SignalSettings(
        window=window,
        rare_percent=30.0,
        rare_min_patterns=minimum,
        pattern=data.draw(st.sampled_from(["succeeded", "called", "sequence"])),
        last_steps=data.draw(st.sampled_from([None, 1, 2])),
    )
    before, after = [one for one in run if one.step <= cut], [one for one in run if one.step > cut]
    first = extract(before, {}, limits, 0)
    earlier = defaultdict(list)
    for score in first.scores:
        earlier[score.task_id].append(score)
    second = extract(after, earlier, limits, 1, first.patterns)
    newest = max((one.step for one in after), default=0)
    unread = cut if limits.last_steps is None else max(cut, newest - limits.last_steps)
    assert {(one.trajectory_id, one.kind) for one in second.signals} == by_hand(run, unread, limits)
    assert second == extract(data.draw(st.permutations(after)), earlier, limits, 1, first.patterns)
    assert len({one.id for one in (*first.signals, *second.signals)}) == len(first.signals) + len(second.signals)
    assert second.left_out == sum(one.infrastructure_error is not None for one in after)
    known = {one.id: one for one in after}
    for signal in second.signals:
        assert known[signal.trajectory_id].task_id == signal.task_id
        if signal.kind is BOUNDARY:
            other = known[signal.counterpart_id]
            assert other.infrastructure_error is None
            assert other.success != known[signal.trajectory_id].success
            assert (other.task_id, other.step) == (signal.task_id, known[signal.trajectory_id].step)


@given(st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6))
def test_rewards_change_no_signal(rewards):
    """A failure that was paid for the checks it passed is a failure all the same."""
    trajectories = [*group("t", 0, ALL, "a"), *group("t", 1, NONE, "b"), *group("u", 1, HALF, "c")]
    paid = [one.model_copy(update={"reward": reward}) for one, reward in zip(trajectories, rewards, strict=True)]
    kinds = {"rare_percent": 90.0, "rare_min_patterns": 3}
    assert read(paid, **kinds) == read(trajectories, **kinds)
    assert {signal.kind for signal in read(paid, **kinds).signals} == {FORGETTING, BOUNDARY, RARE}
