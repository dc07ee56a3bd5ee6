"""What a training step draws: shares, turns, weights, and retired tasks that are tested again."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_records import task

from environments.base import InputError
from training.grpo.task_sampler import RoundDraw, draw_steps


def seeds(count):
    return [task(f"seed-{number:02d}") for number in range(count)]


def evolved(count, iteration=0):
    return [
        task(f"evolved-{iteration}-{number:02d}", origin="evolved", admitted_at=iteration) for number in range(count)
    ]


@given(
    seed_count=st.integers(0, 12),
    evolved_counts=st.lists(st.integers(0, 6), max_size=3),
    steps=st.integers(0, 6),
    per_step=st.integers(1, 9),
    share=st.sampled_from([None, 0.0, 0.3, 0.5, 0.7, 1.0]),
    seed=st.integers(0, 2**40),
    data=st.data(),
)
def test_drawn_steps_keep_their_promises(seed_count, evolved_counts, steps, per_step, share, seed, data):
    new = [t for iteration, count in enumerate(evolved_counts) for t in evolved(count, iteration)]
    tasks = [*seeds(seed_count), *new]
    if not tasks:
        with pytest.raises(InputError, match="no tasks to train on"):
            draw_steps(tasks, steps, per_step, share, seed)
        return
    drawn = draw_steps(tasks, steps, per_step, share, seed)
    assert drawn == draw_steps(data.draw(st.permutations(tasks)), steps, per_step, share, seed)
    assert [len(step) for step in drawn] == [per_step] * steps
    for step in drawn:
        ids = Counter(t.id for t in step)
        assert len(ids) == min(per_step, len(tasks))
        assert max(ids.values()) - (0 if len(ids) < len(tasks) else min(ids.values())) <= 1
    if share is not None and seed_count >= per_step and len(new) >= per_step:
        of_evolved = sum(t.origin == "evolved" for step in drawn for t in step)
        assert abs(of_evolved - steps * per_step * share) < 1


def test_every_task_is_drawn_before_any_is_drawn_twice():
    drawn = draw_steps(seeds(20), steps=10, per_step=8, evolved_share=0.5, seed=1)
    counts = Counter(t.id for step in drawn for t in step)
    assert set(counts.values()) == {4}
    first = Counter(t.id for step in drawn[:5] for t in step)
    assert set(first.values()) == {2}


def test_evolved_tasks_of_the_newest_iteration_come_first():
    tasks = [*seeds(30), *evolved(10, 0), *evolved(10, 1)]
    drawn = draw_steps(tasks, steps=10, per_step=8, evolved_share=0.5, seed=3)
    order = [t for step in drawn for t in step if t.origin == "evolved"]
    assert {t.id for t in order[:10]} == {t.id for t in evolved(10, 1)}
    assert {t.id for t in order[10:20]} == {t.id for t in evolved(10, 0)}
    assert Counter(Counter(t.id for t in order).values()) == {2: 20}


def test_without_a_share_all_tasks_are_drawn_alike():
    tasks = [*seeds(30), *evolved(10)]
    order = [task for step in draw_steps(tasks, steps=5, per_step=8, evolved_share=None, seed=3) for task in step]
    assert sorted(task.id for task in order) == sorted(task.id for task in tasks), "each once before any twice"
    share = [sum(task.origin == "evolved" for task in step) for step in draw_steps(tasks, 200, 8, None, 3)]
    assert sum(share) == 200 * 8 / 4
    assert {0, 1, 2, 3} <= set(share), "no share is kept from step to step"
    weights = {task.id: 4.0 if task.origin == "evolved" else 1.0 for task in tasks}
    weighed = draw_steps(tasks, 200, 8, None, 3, weights=weights)
    drawn = sum(task.origin == "evolved" for step in weighed for task in step)
    assert drawn == pytest.approx(200 * 8 * 40 / 70, rel=0.02)


@pytest.mark.parametrize(("share", "expected"), [(None, 0.25), (0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_further_tasks_of_a_step_are_drawn_by_the_rounds_rule(share, expected):
    tasks = (*seeds(30), *evolved(10))
    draw = RoundDraw(tasks, (), None, share, seed=5)
    taken = {tasks[0].id, tasks[35].id}
    drawn = [draw.others(step, 3, taken) for step in range(400)]
    assert drawn == [RoundDraw(tuple(reversed(tasks)), (), None, share, 5).others(n, 3, taken) for n in range(400)]
    assert all(len({task.id for task in step}) == 3 and not taken & {task.id for task in step} for step in drawn)
    assert len({tuple(task.id for task in step) for step in drawn}) > 200
    of_evolved = sum(task.origin == "evolved" for step in drawn for task in step)
    assert of_evolved / 1200 == pytest.approx(expected, abs=0.05)
    assert draw.others(0, 3, {task.id for task in tasks[1:]}) == (tasks[0],), "what there is, whatever the share"
    weighed = RoundDraw(tasks, (), {task.id: 1000.0 if task is tasks[7] else 1.0 for task in tasks}, share, 5)
    first = [weighed.others(step, 1, ())[0] for step in range(100)]
    assert first.count(tasks[7]) > 30 or share == 1.0


def test_a_share_that_floats_cannot_hold_is_kept_exactly():
    drawn = draw_steps([*seeds(10), *evolved(10)], steps=9, per_step=10, evolved_share=0.7, seed=1)
    assert sum(t.origin == "evolved" for step in drawn for t in step) == 63


def test_the_seed_decides_the_draw():
    draws = [draw_steps(seeds(20), 2, 5, 0.5, seed) for seed in range(5)]
    assert len({tuple(t.id for step in draw for t in step) for draw in draws}) == 5


@given(
    seed_count=st.integers(0, 12),
    evolved_counts=st.lists(st.integers(0, 6), max_size=3),
    retest_count=st.integers(0, 15),
    steps=st.integers(1, 6),
    per_step=st.integers(1, 9),
    share=st.sampled_from([None, 0.0, 0.3, 0.5, 0.7, 1.0]),
    seed=st.integers(0, 2**40),
    data=st.data(),
)
def test_weighted_steps_and_retests_keep_the_promises_too(
    seed_count, evolved_counts, retest_count, steps, per_step, share, seed, data
):
    new = [t for iteration, count in enumerate(evolved_counts) for t in evolved(count, iteration)]
    tasks = [*seeds(seed_count), *new]
    retired = [task(f"retired-{i:02d}") for i in range(retest_count)]
    weights = {t.id: data.draw(st.sampled_from([0.05, 0.3, 1.0])) for t in tasks}
    if not tasks:
        return
    drawn = draw_steps(tasks, steps, per_step, share, seed, weights=weights, retests=retired)
    shuffled = data.draw(st.permutations(tasks)), data.draw(st.permutations(retired))
    assert drawn == draw_steps(shuffled[0], steps, per_step, share, seed, weights=weights, retests=shuffled[1])
    assert [len(step) for step in drawn] == [per_step] * steps
    tested = Counter(t.id for step in drawn for t in step if t in retired)
    assert set(tested.values()) <= {1}, "a retired task is drawn once"
    if retest_count <= steps * per_step // 2 and per_step > 1:
        assert len(tested) == retest_count
    dealt = [[t for t in step if t not in retired] for step in drawn]
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1, "retests are spread over the steps"
    for step in dealt:
        assert len({t.id for t in step}) == min(len(step), len(tasks))
    if share is not None and seed_count >= per_step and len(new) >= per_step:
        of_evolved = sum(t.origin == "evolved" for step in dealt for t in step)
        assert abs(of_evolved - sum(map(len, dealt)) * share) < 1


def test_tasks_are_dealt_in_proportion_to_their_weights():
    tasks = [*seeds(12), *evolved(12)]
    weights = {t.id: [0.1, 0.5, 1.0][i % 3] for i, t in enumerate(tasks)}
    drawn = draw_steps(tasks, steps=50, per_step=8, evolved_share=0.5, seed=4, weights=weights)
    counts = Counter(t.id for step in drawn for t in step)
    for kind in (tasks[:12], tasks[12:]):
        total = sum(weights[t.id] for t in kind)
        for t in kind:
            assert abs(counts[t.id] - 200 * weights[t.id] / total) <= 2


def test_equal_weights_draw_every_task_before_any_is_drawn_twice():
    tasks = seeds(20)
    drawn = draw_steps(tasks, 10, 8, 0.5, 1, weights={t.id: 0.25 for t in tasks})
    counts = Counter(t.id for step in drawn for t in step)
    assert set(counts.values()) == {4}
    assert set(Counter(t.id for step in drawn[:5] for t in step).values()) == {2}


def test_the_seed_decides_the_weighted_draw():
    weights = {t.id: 1.0 for t in seeds(20)}
    draws = [draw_steps(seeds(20), 2, 5, 0.5, seed, weights=weights) for seed in range(5)]
    assert len({tuple(t.id for step in draw for t in step) for draw in draws}) == 5
