"""Pictures of SEAL's records: each turn's label and factor, and when a guideline was shown."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from graph.report.seal_charts import WeightedRollout, interface_chart, weight_chart
from training.seal.diagnosis import Diagnosis, FailureProfile, LabelStatistics, TurnLabel
from training.seal.interface import InterfaceState
from training.seal.seal import SealState, SealStep

STATE, EMPTY = TurnLabel.STATE_MISMATCH, TurnLabel.EMPTY_TURN


def row(success: bool, *labels: TurnLabel) -> WeightedRollout:
    diagnosis = Diagnosis(success=success, turns=labels)
    return WeightedRollout(diagnosis, tuple(1.5 for _ in labels), 1.25, 2.0 if success else -2.0)


def step(number: int, shown: tuple[TurnLabel, ...], **counts: int) -> SealStep:
    labels = {TurnLabel(label): LabelStatistics(count=count) for label, count in counts.items()}
    profile = FailureProfile(trajectories=8, turns=sum(counts.values()), labels=labels)
    return SealStep(step=number, profile=profile, state=SealState(interface=InterfaceState(guidelines=shown)))


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_row_has_its_labels_factors_weight_and_weighted_advantage() -> None:
    chart = weight_chart("one group", [row(True, TurnLabel.PASS), row(False, STATE, TurnLabel.CHECKER_ERROR)])
    found = texts(chart.svg)
    assert [word for word in found if word in ("success", "failure")] == ["success", "failure"]
    assert {"pass", "state mismatch", "1.50", "1.25", "+2.00", "+2.50", "-2.50", "left out"} <= set(found)
    assert "state mismatch, checker error, weight 1.25, advantage -2.00 becomes -2.50" in chart.words


def test_factors_that_do_not_fit_are_refused() -> None:
    bad = row(True, TurnLabel.PASS)._replace(rho=())
    for rows in ([], [bad]):
        with pytest.raises(ValueError, match="weights"):
            weight_chart("x", rows)


def test_a_guideline_is_shown_from_the_step_after_its_profile() -> None:
    steps = [step(1, (STATE,), state_mismatch=9), step(2, (), state_mismatch=2), step(3, (), state_mismatch=1)]
    chart = interface_chart("one round", steps)
    assert chart.words == "one round. state mismatch: shown in steps 2"
    root = ElementTree.fromstring(chart.svg)
    cells = [one.get("fill") for one in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert cells == ["#ffffff", "#0072b2", "#ffffff"]
    assert {"9", "2", "1"} <= set(texts(chart.svg))


def test_a_guideline_without_a_failure_has_a_row_too_and_no_step_is_refused() -> None:
    words = interface_chart("x", [step(1, (EMPTY,), state_mismatch=1), step(2, (), state_mismatch=1)]).words
    assert "empty turn: shown in steps 2" in words
    with pytest.raises(ValueError, match="no step"):
        interface_chart("x", [])
