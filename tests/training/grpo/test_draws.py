"""What a training step draws: shares and turns."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_records import task

from environments.base import InputError
from memory.jsonl import derive_seed
from memory.tasks import TaskSettings
from training.grpo.record import RoundSettings
from training.grpo.task_sampler import draw_steps, round_tasks
from training.settings import TrainingSettings


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


def test_a_share_that_floats_cannot_hold_is_kept_exactly():
    drawn = draw_steps([*seeds(10), *evolved(10)], steps=9, per_step=10, evolved_share=0.7, seed=1)
    assert sum(t.origin == "evolved" for step in drawn for t in step) == 63


def test_the_seed_decides_the_draw():
    draws = [draw_steps(seeds(20), 2, 5, 0.5, seed) for seed in range(5)]
    assert len({tuple(t.id for step in draw for t in step) for draw in draws}) == 5


@pytest.mark.parametrize(("steps", "repeats", "different"), [(6, 1, 6), (6, 3, 2), (7, 3, 3), (2, 5, 1)])
def test_a_round_draws_its_tasks_again_at_later_steps(steps: int, repeats: int, different: int) -> None:
    training, draws = TrainingSettings(steps=steps, tasks_per_step=4), TaskSettings(evolved_share=0.5, repeats=repeats)
    settings = RoundSettings.model_construct(seed=5, training=training, tasks=draws)
    drawn = round_tasks([*seeds(20), *evolved(20)], settings, 1)
    assert len(drawn) == steps
    assert drawn[:different] == draw_steps([*seeds(20), *evolved(20)], different, 4, 0.5, derive_seed(5, 1, "draw"))
    assert all(step == drawn[number % different] for number, step in enumerate(drawn))
