"""Table 7 and figures 3 and 4, with the paper's own numbers and on recorded runs."""

from __future__ import annotations

import pytest

from evaluation.analyses.cost import feedback_cost, gain_over
from evaluation.analyses.curves import run_curve
from evaluation.analyses.recorded import RecordedIteration


def iteration(number: int, **changes: object) -> RecordedIteration:
    fields: dict[str, object] = {
        "iteration": number,
        "step": 10 * (number + 1),
        "seconds": {"train": 7572.0, "evolve": 811.0},
        "before": None,
        "after": None,
        "signals": {"forgetting": 30, "boundary": 50, "rare": 20},
        "drafts": 100,
        "admitted": 80,
    }
    return RecordedIteration.model_validate(fields | changes)


def test_the_papers_shares_are_twelve_evolutions_of_the_stated_length() -> None:
    """AppWorld: 12 x 811 s of 100,596 s are 9.67 %."""
    cost = feedback_cost([iteration(number) for number in range(12)])
    assert cost.whole_seconds == 100_596
    assert cost.share == pytest.approx(0.0967, abs=5e-5)
    assert (cost.evolutions, cost.evolution_seconds, cost.gain) == (12, 811.0, None)


@pytest.mark.parametrize(
    ("static", "evolved", "relative"), [(0.2857, 0.3512, 0.2292), (0.58, 0.63, 0.0862), (0.5, 0.4, -0.2)]
)
def test_the_papers_gains(static: float, evolved: float, relative: float) -> None:
    gain = gain_over(static, evolved)
    assert gain is not None
    assert gain.relative == pytest.approx(relative, abs=5e-4)
    assert gain.difference == pytest.approx(evolved - static)


def test_a_gain_over_nothing_is_not_relative_and_one_of_an_unscored_run_is_not_known() -> None:
    gain = gain_over(0.0, 0.25)
    assert gain is not None
    assert (gain.difference, gain.relative) == (0.25, None)
    assert gain_over(None, 0.25) is gain_over(0.25, None) is None


def test_d0_and_evaluations_belong_to_the_whole_run_and_not_to_the_loop() -> None:
    first = iteration(0, seconds={"seed": 10.0, "train": 60.0, "evaluation after": 10.0, "evolve": 20.0}, before=0.1)
    last = iteration(1, seconds={"train": 80.0}, after=0.4)
    cost = feedback_cost([first, last])
    assert (cost.share, cost.share_of_loop) == (20 / 180, 20 / 160)
    assert (cost.evolution_seconds, cost.without_seconds) == (20.0, (1,))
    assert cost.gain is not None
    assert (cost.gain.reference, cost.gain.reached) == (0.1, 0.4)
    against = feedback_cost([first, last], against=0.2).gain
    assert against is not None
    assert against.difference == pytest.approx(0.2)


def test_a_run_without_times_has_no_share() -> None:
    cost = feedback_cost([iteration(0, seconds={})])
    assert (cost.share, cost.share_of_loop, cost.evolution_seconds, cost.whole_seconds) == (None, None, None, 0)


def test_shares_of_signals_and_tasks_per_signal() -> None:
    curve = run_curve([iteration(0, before=0.1, after=0.2), iteration(1, signals={"rare": 100}, drafts=0, admitted=0)])
    assert curve.shares == {"forgetting": 0.15, "boundary": 0.25, "rare": 0.6}
    assert [one.tasks_per_signal for one in curve.points] == [0.8, 0.0]
    assert [one.acceptance for one in curve.points] == [0.8, None]
    assert (curve.start, curve.points[0].success, curve.points[0].step) == (0.1, 0.2, 10)


def test_a_run_without_signals_has_no_shares() -> None:
    curve = run_curve([iteration(0, signals={})])
    assert curve.shares == {}
    assert curve.points[0].tasks_per_signal is None
