"""Open the world's own tasks as evaluation sets (dev, and the held-out test_normal and test_challenge); their metrics.

Only ``evaluation`` opens an evaluation set; a test checks the imports. ``Installation`` and ``AppWorldEnvironment``,
which other code uses, open only tasks of train and dev.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from environments.appworld.client import AppWorldEngine
from environments.appworld.environment import MAX_STEPS, AppWorldEnvironment
from environments.appworld.installation import OPEN_SPLITS, Installation, as_task
from environments.appworld.layout import SPLITS, read_ids
from environments.base import InputError, Record
from environments.benchmark import EvaluationTask
from environments.metrics import Attempted, Metric, Ratio, Share, checks_passed, success


def _percentage(share: float) -> float:
    """Return the percentage rounded twice, as the package does: the share to four decimals, the percentage to one."""
    return round(100 * round(share, 4), 1)


def _scenarios(attempts: Sequence[Attempted]) -> list[Share]:
    """Count each scenario once, at its first attempt."""
    solved: dict[str | None, bool] = {}
    for one in attempts:
        solved[one.group] = solved.get(one.group, True) and one.success
    return [(solved.pop(one.group), 1) if one.group_evaluated and one.group in solved else (0, 0) for one in attempts]


task_goal_completion = Ratio(success.shares, _percentage)
"""TGC: the percentage of the tasks that were solved, to one decimal as the package's evaluator gives it.

nan without an attempt.
"""

scenario_goal_completion = Ratio(_scenarios, _percentage)
"""SGC: the percentage of the scenarios of which every attempted variant was solved, to one decimal.

The group of an attempt is its scenario. A scenario counts when no infrastructure error ended one of its variants
(ours: the package has a result for every task). nan where no scenario counts.
"""

METRICS: Mapping[str, Metric] = {
    "tgc": task_goal_completion,
    "sgc": scenario_goal_completion,
    "checks_passed": checks_passed,
}
"""The benchmark's own metrics of its evaluation sets, in percent, and the share of checks passed, in [0, 1]."""


SETS = tuple(name for name in SPLITS if name != "train")


class OfficialSet(Record):
    """The ids of an evaluation set, in the order of the world's data set; ``sha256`` identifies it. No task is read."""

    name: str
    ids: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Hash of the ids, one per line."""
        return hashlib.sha256("\n".join(self.ids).encode()).hexdigest()


def held_out(name: str) -> bool:
    """Return whether the evaluation set is a test split. Raises InputError for an unknown name."""
    if name not in SETS:
        raise InputError(f"--evaluation-set {name}: AppWorld has no such set: choose one of {', '.join(SETS)}")
    return name not in OPEN_SPLITS


def read_set(installation: Installation, name: str) -> OfficialSet:
    """Read the set's ids.

    Raises InputError for an unknown name, where the world has no task of it, and where a file of a task is missing.
    """
    held_out(name)
    ids = read_ids(installation.full / "data", name)
    if not ids:
        raise InputError(
            f"--evaluation-set {name}: the world in {installation.world} has no such tasks: get the benchmark's data "
            "with make appworld DATA=download"
        )
    installation.require_split(name)
    return OfficialSet(name=name, ids=ids)


def set_tasks(installation: Installation, chosen: OfficialSet, limit: int | None = None) -> tuple[EvaluationTask, ...]:
    """Read the tasks of the set, the first ``limit`` if given. Raises InputError for files that cannot be read.

    They have no reference: no solution is read, and test splits have none. Variants of one scenario share their
    cluster. The number of calls is that of the benchmark's solution.
    """
    tasks = []
    for task_id in chosen.ids[:limit]:
        stated = _metadata(installation.full / "data" / "tasks" / task_id / "ground_truth" / "metadata.json")
        task = EvaluationTask(
            id=task_id,
            origin="official",
            spec=as_task(installation, task_id, chosen.name, ()),
            cluster=task_id.partition("_")[0],
            reference_calls=stated.num_api_calls,
            strata={} if stated.difficulty is None else {"difficulty": str(stated.difficulty)},
        )
        tasks.append(task)
    return tuple(tasks)


class _Metadata(BaseModel):
    """The part of the benchmark's ``metadata.json`` that is read; test splits do not have all of it."""

    difficulty: int | None = None
    num_api_calls: int | None = None


def _metadata(path: Path) -> _Metadata:
    try:
        return _Metadata.model_validate_json(path.read_text())
    except FileNotFoundError:
        return _Metadata()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({type(error).__name__}): build or download the world anew") from error


class SetEnvironment(AppWorldEnvironment):
    """An environment that opens only the worlds of one evaluation set's tasks."""

    def __init__(self, chosen: OfficialSet, max_steps: int = MAX_STEPS, engine: AppWorldEngine | None = None) -> None:
        super().__init__(max_steps, engine)
        self._open_worlds = frozenset(chosen.ids)
