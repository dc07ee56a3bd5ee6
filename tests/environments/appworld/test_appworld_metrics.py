"""TGC and SGC against hand-made tables; ``test_synthetic_world.py`` compares the package's command."""

from __future__ import annotations

import math

import pytest

from environments.appworld.evaluation_sets import METRICS, scenario_goal_completion, task_goal_completion
from environments.metrics import Attempted, success

TABLE = [
    ({"a_1": True}, 100.0, 100.0),
    ({"a_1": False}, 0.0, 0.0),
    ({"a_1": True, "a_2": True, "a_3": False}, 66.7, 0.0),
    ({"a_1": True, "a_2": True, "b_1": True, "b_2": False}, 75.0, 50.0),
    ({"a_1": True, "b_1": True, "b_2": True, "b_3": False}, 75.0, 50.0),
    # Two scenarios of three, one solved wholly, one in two variants: what ``appworld evaluate`` printed.
    ({f"{s}_{v}": (s, v) != ("b", 2) for s in "ab" for v in (1, 2, 3)}, 83.3, 50.0),
]


def attempts(successes: dict[str, bool]) -> list[Attempted]:
    return [Attempted(id=task, group=task.partition("_")[0], success=solved) for task, solved in successes.items()]


@pytest.mark.parametrize(("successes", "tgc", "sgc"), TABLE)
def test_percentages_of_tasks_and_of_scenarios(successes: dict[str, bool], tgc: float, sgc: float) -> None:
    found = {name: metric(attempts(successes)) for name, metric in METRICS.items()}
    assert found == pytest.approx({"tgc": tgc, "sgc": sgc, "checks_passed": math.nan}, nan_ok=True)


def test_a_scenario_with_a_variant_that_could_not_be_evaluated_counts_in_tgc_alone() -> None:
    part = [one._replace(group_evaluated=False) for one in attempts({"a_1": True, "a_2": True})]
    assert task_goal_completion([*part, *attempts({"b_1": False})]) == 66.7
    assert scenario_goal_completion([*part, *attempts({"b_1": False})]) == 0.0
    assert math.isnan(scenario_goal_completion(part))


def test_nothing_attempted_has_no_figure() -> None:
    for measure in (task_goal_completion, scenario_goal_completion, success):
        assert math.isnan(measure([]))
