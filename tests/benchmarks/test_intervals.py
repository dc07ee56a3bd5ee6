"""Simulated studies have the truth that they state; the interval that was chosen holds it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.intervals import HEAD, SETTINGS, Layout, StudyKind, measure, simulate

NUMBERS = np.arange(120)
LAYOUT = Layout(NUMBERS % 24, NUMBERS // 4, NUMBERS // 2, np.full(120, 1 / 120))


@pytest.mark.parametrize("kind", [SETTINGS[0], StudyKind("gap", mean=-2, gap=1, seeds=3)])
def test_a_simulated_study_has_the_truth_that_it_states(kind: StudyKind) -> None:
    rng = np.random.default_rng(0)
    made = [simulate(rng, LAYOUT, kind) for _ in range(300)]
    for at, rates in enumerate(([one.first.mean() for one in made], [one.second.mean() for one in made])):
        assert np.mean(rates) == pytest.approx(made[0].truth[at], abs=4 * np.std(rates) / 300**0.5)


@pytest.mark.parametrize("difference", [True, False])
def test_the_interval_that_was_chosen_holds_the_truth(difference: bool) -> None:
    counted, ideal = measure(LAYOUT, SETTINGS[0], 300, 10, difference=difference)
    assert list(counted) == list(HEAD)
    assert np.mean(counted["chosen"].held) >= 0.93
    assert ideal < np.mean(counted["chosen"].halves) < 1.6 * ideal
    assert [len(one.held) for one in counted.values()] == [10, 300], "bootstraps of the first studies alone"
