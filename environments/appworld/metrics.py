"""TGC and SGC, the benchmark's two figures: the shares of tasks and of scenarios that were solved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from environments.base import InputError


def task_goal_completion(successes: Mapping[str, bool]) -> float:
    """Percentage of the tasks, by id, that were solved, to one decimal as the package's evaluator gives it.

    Raises InputError when there is no task.
    """
    return _percentage([*_checked(successes).values()])


def scenario_goal_completion(successes: Mapping[str, bool]) -> float:
    """Percentage of the scenarios of whose given tasks every one was solved, to one decimal.

    A task's scenario is what stands before the underscore of its id. Raises InputError when there is no task, or an id
    has not exactly one underscore.
    """
    scenarios: dict[str, list[bool]] = defaultdict(list)
    for task_id, success in _checked(successes).items():
        scenario, *variant = task_id.split("_")
        if len(variant) != 1:
            raise InputError(f"{task_id!r} is no id of an AppWorld task: write SCENARIO_VARIANT")
        scenarios[scenario].append(success)
    return _percentage([all(variants) for variants in scenarios.values()])


def _checked(successes: Mapping[str, bool]) -> Mapping[str, bool]:
    if not successes:
        raise InputError("there is no task to take a percentage of: give one result at least")
    return successes


def _percentage(successes: list[bool]) -> float:
    """Rounded twice, as the package does: the share to four decimals, then the percentage to one."""
    return round(100 * round(sum(successes) / len(successes), 4), 1)
