"""The smallest difference that a study can show: against studies simulated with a difference, and by its parts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from environments.base import InputError
from evaluation.outcomes import TaskOutcome
from evaluation.power import SimulatedPower, assumed_outcomes, simulated_difference
from evaluation.statistics import shared_interval, t_test


def outcome(number: int, success: bool, cluster: int, function: int) -> TaskOutcome:
    return TaskOutcome(
        task_id=f"t{number}", group="set", cluster=str(cluster), split="dev", shape=(f"f{function}",), success=success
    )


def policies(
    count: int, clusters: int, rate: float = 0.3, seed: int = 0, ability: float = 0.0
) -> list[list[TaskOutcome]]:
    """Policies of one arm: tasks of a cluster are alike, and each policy has an ability and luck of its own."""
    rng = random.Random(seed)
    ease = [rng.gauss(rate, 0.15) for _ in range(clusters)]
    return [
        [
            outcome(4 * c + n, rng.random() < ease[c] + own, c, (4 * c + n) % 7)
            for c in range(clusters)
            for n in range(4)
        ]
        for own in (rng.gauss(0, ability) for _ in range(count))
    ]


def found(arms, **changes) -> SimulatedPower:
    return simulated_difference(arms, **{"seeds": 4, "clusters": 30, "draws": 150} | changes)


@pytest.mark.parametrize(("ability", "developed"), [(0.0, 40), (0.0, 15), (0.05, 40)])
def test_a_difference_of_this_size_is_shown_in_four_studies_of_five(ability: float, developed: int) -> None:
    """Whole studies, whose better arm solves tasks that the other does not, by the study's own statistics."""
    rng, clusters, seeds = random.Random(1), 40, 4
    known = policies(12, developed, ability=ability, seed=2)  # whose abilities spread as their distribution does
    said = found([known], clusters=clusters, draws=300).difference
    shown, studies = 0, 150
    for study in range(studies):
        base = policies(2 * seeds, clusters, seed=100 + study, ability=ability)
        solved = np.array([[one.success for one in policy] for policy in base], dtype=np.int64)
        left, right = solved[:seeds], solved[seeds:]
        lift = said / (1 - left.mean())
        left = left | np.array([[rng.random() < lift for _ in row] for row in left], dtype=np.int64)
        tried = np.ones_like(left)
        interval = shared_interval(
            left, tried, np.repeat(np.arange(clusters), 4), np.arange(4 * clusters) % 7, (right, tried)
        )
        p = t_test((left - right).mean(axis=1).tolist())
        shown += interval is not None and interval[0] > 0 and p is not None and p < 0.05
    assert 0.68 <= shown / studies <= 0.92


def test_more_seeds_and_more_clusters_show_less_and_more_hypotheses_more() -> None:
    arms = [policies(4, 20)]
    base = found(arms)
    assert found(arms, seeds=8).difference < base.difference
    assert found(arms, clusters=120).by_interval < base.by_interval
    assert found(arms, tests=6).difference > base.difference
    assert found(arms, tests=6).by_interval == base.by_interval
    assert base.by_interval <= base.difference
    assert found(arms, power=0.5).difference < base.difference
    assert found(arms) == base
    assert "4 seeds on 30 clusters of 120 tasks show a difference of" in base.sentence


def test_what_has_no_chance_in_it_is_refused() -> None:
    arm = policies(2, 5)
    for arms, changes, says in (
        ([arm[:1]], {}, "two seeds or more"),
        ([[arm[0], []]], {}, "task in common"),
        ([], {}, "two seeds or more"),
        ([[one[:4] for one in arm]], {}, "one start state"),
    ):
        with pytest.raises(InputError, match=says):
            found(arms, **changes)


def test_policies_of_different_arms_are_not_compared() -> None:
    good, bad = policies(2, 20, rate=0.9), policies(2, 20, rate=0.1, seed=5)
    assert found([good, bad]).pairs == 4
    assert found([good, bad]).difference < found([[*good, *bad]]).difference


@pytest.mark.parametrize(
    ("discordance", "tasks", "least"),
    [
        (0.15, 118, 0.099),  # base@test at the discordance of CoEvolve's table 8
        (0.262, 168, 0.110),  # AppWorld's test_normal: its own gain of 7.14 points is below
        (0.15, 472, 0.050),
    ],
)
def test_one_seed_shows_what_mcnemars_test_does(discordance: float, tasks: int, least: float) -> None:
    """``least`` by the normal approximation (Connor, Biometrics 43, 1987); its error here is that of 400 draws."""
    said = found([assumed_outcomes(discordance, tasks)], seeds=1, clusters=tasks, draws=400)
    assert said.difference == said.by_interval == pytest.approx(least, rel=0.1)


def test_tasks_that_are_solved_together_show_less_and_two_seeds_hardly_anything() -> None:
    alone, joined = assumed_outcomes(0.2, 300), assumed_outcomes(0.2, 300, cluster=3)
    assert len({one.cluster for one in joined[0]}) == 100
    for arm in (alone, joined):
        assert sum(a.success != b.success for a, b in zip(*arm, strict=True)) == 60
    each = [found([arm], seeds=1, clusters=n).difference for arm, n in ((alone, 300), (joined, 100))]
    assert each[1] > 1.5 * each[0]
    assert found([alone], seeds=2, clusters=300, tests=5).sentence.startswith(
        "2 seeds on 300 clusters of 300 tasks show no difference with 80 % power, among 5 hypotheses"
    )
