"""Task weights from earlier attempts: how much a task can still teach (learnability), and when it is retired.

Pure functions over attempts, which the records of finished rounds hold. All of this is our choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from environments.base import Record

__all__ = ["Attempt", "Retirement", "learnability", "retire"]


class Attempt(Record):
    """One group of rollouts of a task: ``success`` is the share of successes among its ``n`` rollouts (at least 1).

    ``step`` is the global training step, ``iteration`` that of the round it was in.
    """

    task_id: str
    iteration: int
    step: int
    success: float
    n: int


class Retirement(Record):
    """Ids of tasks that are drawn as usual, of retired ones that are drawn once as a test, and of retired ones."""

    active: frozenset[str]
    retested: frozenset[str]
    resting: frozenset[str]


def _newest(attempts: Iterable[Attempt], count: int) -> Mapping[str, Sequence[Attempt]]:
    """Return the newest ``count`` attempts at each task, oldest first."""
    by_task: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in sorted(attempts, key=lambda attempt: (attempt.step, attempt.iteration)):
        by_task[attempt.task_id].append(attempt)
    return {task_id: made[-count:] for task_id, made in by_task.items()}


def learnability(task_ids: Iterable[str], attempts: Iterable[Attempt], newest: int, floor: float) -> dict[str, float]:
    """Return weights in [``floor``, 1] by task id: 4 p (1 - p), p being the success rate of the ``newest`` groups.

    A group teaches by the differences between its rollouts, and their variance is p (1 - p). Tasks that were never
    attempted have weight 1.
    """
    made = _newest(attempts, newest)
    weights = {}
    for task_id in task_ids:
        groups = made.get(task_id, ())
        rollouts = sum(group.n for group in groups)
        p = sum(group.success * group.n for group in groups) / rollouts if rollouts else 0.5
        weights[task_id] = max(floor, 4.0 * p * (1.0 - p))
    return weights


def retire(
    task_ids: Collection[str],
    attempts: Iterable[Attempt],
    *,
    newest: int,
    above: float,
    retest_every: int,
    iteration: int,
    at_least: int,
) -> Retirement:
    """Decide which tasks the round of ``iteration`` draws, from the attempts of earlier rounds.

    A task is retired when it has ``newest`` attempts and the newest of them all have a success of ``above`` or more. It
    is tested again ``retest_every`` iterations after its last attempt, and is active again once one falls below.
    Retired tasks stay active, longest untried first, until ``at_least`` tasks are active.
    """
    made = _newest(attempts, newest)
    retired = [
        task_id
        for task_id in task_ids
        if len(made.get(task_id, ())) == newest and all(attempt.success >= above for attempt in made[task_id])
    ]
    missing = at_least - (len(task_ids) - len(retired))
    retired.sort(key=lambda task_id: (made[task_id][-1].step, task_id))
    retired = retired[max(0, missing) :]
    retested = frozenset(one for one in retired if iteration - made[one][-1].iteration >= retest_every)
    resting = frozenset(retired) - retested
    return Retirement(active=frozenset(task_ids) - retested - resting, retested=retested, resting=resting)
