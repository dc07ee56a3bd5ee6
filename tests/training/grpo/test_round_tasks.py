"""What a round draws by its settings and by the scores that earlier rounds left in the run directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.small_policy import small_tasks

from environments.base import InputError
from memory.jsonl import derive_seed
from memory.records import Task
from memory.run import RunDirectory, write_jsonl
from memory.settings import TaskSettings
from training.grpo.task_sampler import draw_steps, round_draw
from training.signals import GroupScore


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", TaskSettings())


def tasks() -> list[Task]:
    (task, *_) = small_tasks()
    return [task.model_copy(update={"id": f"task-{number}"}) for number in range(8)]


def keep_scores(run: RunDirectory, iteration: int, **means: float) -> None:
    """One group of eight a task, in the only step of the round."""
    scores = [
        GroupScore(task_id=name.replace("_", "-"), step=iteration + 1, mean=mean, n=8) for name, mean in means.items()
    ]
    write_jsonl(run.iteration(iteration) / "scores.jsonl", scores)


def drawn(run: RunDirectory, iteration: int, steps: int = 12, per_step: int = 2, **settings: object) -> Counter[str]:
    asked = TaskSettings.model_validate({"experimental": settings})
    made = round_draw(run, iteration, tasks(), asked, per_step=per_step, seed=3).steps(steps, per_step)
    assert [len(step) for step in made] == [per_step] * steps
    return Counter(task.id for step in made for task in step)


def test_by_default_no_earlier_round_is_read(run: RunDirectory) -> None:
    made = round_draw(run, 4, tasks(), TaskSettings(), per_step=2, seed=3).steps(3, 2)
    assert made == draw_steps(tasks(), 3, 2, 0.5, derive_seed(3, 4, "draw"))


def test_learnability_draws_what_is_neither_mastered_nor_out_of_reach(run: RunDirectory) -> None:
    keep_scores(run, 0, task_0=1.0, task_1=0.0, task_2=0.5)
    keep_scores(run, 1, task_3=0.875)
    counts = drawn(run, 2, sampling="learnability", sampling_floor=0.1)
    assert counts["task-0"] <= 1
    assert counts["task-1"] <= 1
    assert min(counts["task-2"], *(counts[f"task-{number}"] for number in range(4, 8))) >= 4
    assert counts["task-0"] < counts["task-3"] < counts["task-2"]


def test_the_first_round_knows_nothing_and_draws_all_alike(run: RunDirectory) -> None:
    assert set(drawn(run, 0, sampling="learnability").values()) == {3}


@pytest.mark.parametrize("sampling", ["uniform", "learnability"])
def test_a_retired_task_is_drawn_once_when_it_is_due(run: RunDirectory, sampling: str) -> None:
    keep_scores(run, 0, task_0=1.0, task_1=1.0)
    keep_scores(run, 1, task_0=1.0, task_1=0.5)
    keep_scores(run, 2)
    settings = {"sampling": sampling, "retire_above": 1.0, "newest_groups": 2, "retest_every": 2}
    assert drawn(run, 2, **settings)["task-0"] == 0
    assert drawn(run, 2, **settings)["task-1"] >= 2
    assert drawn(run, 3, **settings)["task-0"] == 1
    keep_scores(run, 3, task_0=0.75)
    assert drawn(run, 4, steps=24, **settings)["task-0"] >= 2, "it failed its test"


def test_missing_scores_are_told(run: RunDirectory) -> None:
    with pytest.raises(
        InputError, match=r"000/scores\.jsonl is missing, and tasks\.experimental\.sampling .*: finish iteration 0"
    ):
        drawn(run, 1, sampling="learnability")


def test_scores_that_are_written_while_a_round_trains_are_not_read(run: RunDirectory) -> None:
    settings = TaskSettings.model_validate({"experimental": {"sampling": "learnability"}})
    keep_scores(run, 0, task_0=1.0)

    def weights() -> object:
        return round_draw(run, 2, tasks(), settings, per_step=2, seed=3, scored=1).weights

    before = weights()
    keep_scores(run, 1, task_0=0.5)
    assert weights() == before
    assert round_draw(run, 2, tasks(), settings, per_step=2, seed=3).weights != before
