"""Simulated studies have the truth that they state, and tell methods that cover other tasks from those that do not."""

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
def test_the_interval_that_was_chosen_holds_the_truth_and_one_over_seeds_alone_does_not(difference: bool) -> None:
    counted, ideal = measure(LAYOUT, SETTINGS[0], 300, 10, difference=difference)
    held = {name: np.mean(one.held) for name, one in zip(HEAD, counted, strict=True)}
    wide = {name: np.mean(one.halves) for name, one in zip(HEAD, counted, strict=True)}
    assert held["chosen"] >= 0.93
    assert held["t over seeds"] < 0.93
    assert ideal < wide["chosen"] < 1.6 * ideal
    assert len(counted[0].held) == 10, "bootstraps of the first studies alone"
