"""The tasks of a round's steps, as the settings of the task set and the scores of earlier rounds have it."""

from __future__ import annotations

from collections.abc import Sequence

from environments.base import InputError
from memory.attempts import Attempt, learnability, retire
from memory.draws import draw_steps
from memory.ids import derive_seed
from memory.records import Task
from memory.run import RunDirectory, read_jsonl
from memory.settings import TaskSettings
from training.signals import GroupScore

SCORES_FILE = "scores.jsonl"


def round_tasks(
    run: RunDirectory,
    iteration: int,
    tasks: Sequence[Task],
    settings: TaskSettings,
    *,
    steps: int,
    per_step: int,
    seed: int,
) -> tuple[tuple[Task, ...], ...]:
    """The tasks of each step of the round of ``iteration``, drawn from ``tasks``, which are D_t.

    ``seed`` is the run's. Earlier rounds are read only where sampling or retirement looks back on them. Raises
    InputError when there are no tasks, or when the scores of an earlier round are missing.
    """
    draw_seed = derive_seed(seed, iteration, "draw")
    share = settings.evolved_share
    if settings.sampling == "uniform" and settings.retire_above is None:
        return draw_steps(tasks, steps, per_step, share, draw_seed)
    attempts = earlier_attempts(run, iteration)
    by_id = {task.id: task for task in tasks}
    active, retested = frozenset(by_id), frozenset[str]()
    if settings.retire_above is not None:
        retirement = retire(
            by_id,
            attempts,
            newest=settings.newest_groups,
            above=settings.retire_above,
            retest_every=settings.retest_every,
            iteration=iteration,
            at_least=per_step,
        )
        active, retested = retirement.active, retirement.retested
    weights = None
    if settings.sampling == "learnability":
        weights = learnability(active, attempts, settings.newest_groups, settings.sampling_floor)
    return draw_steps(
        [by_id[task_id] for task_id in sorted(active)],
        steps,
        per_step,
        share,
        draw_seed,
        weights=weights,
        retests=[by_id[task_id] for task_id in sorted(retested)],
    )


def earlier_attempts(run: RunDirectory, iteration: int) -> list[Attempt]:
    """Every attempt of the rounds before ``iteration``. Raises InputError for a round without its scores."""
    attempts = []
    for number in range(iteration):
        path = run.iteration(number) / SCORES_FILE
        if not path.exists():
            raise InputError(
                f"{path} is missing, and tasks.sampling or tasks.retire_above looks back on it: finish iteration "
                f"{number} with python -m graph.run_iteration --resume"
            )
        attempts += [
            Attempt(task_id=score.task_id, iteration=number, step=score.step, success=score.mean, n=score.n)
            for score in read_jsonl(path, GroupScore)
        ]
    return attempts
