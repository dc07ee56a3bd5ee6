"""Gates of a study: which are refused, when one passes, and what a report begins with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.made_results import RECIPE, made_study, result

from environments.base import InputError
from evaluation.study.report import write_report
from evaluation.study.study import Place, Study
from evaluation.study.summary import summarise

YES, NO = True, False
GATE = {"measure": "success", "arm": "starter", "at_least": 10, "at_most": 60, "why": "there is room"}


def demanding(folder: Path, *gates: object) -> Study:
    return made_study(folder, f"{RECIPE}gates: {json.dumps(gates)}\n")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(output=tmp_path / "out", work=tmp_path / "work")


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        (GATE | {"arm": "strater"}, "gates name 'strater', which is not an arm: choose from grpo"),
        (GATE | {"against": "strater"}, "gates name 'strater'"),
        (GATE | {"measure": "rare"}, "gates ask for rare of 'starter', which is not trained"),
        (GATE | {"at_least": 61}, "at_least is 61 and at_most 60: no value passes"),
        (GATE | {"measure": "luck"}, "gates.0.measure"),
        (GATE | {"size": 3}, "gates.0.size"),
        ({key: GATE[key] for key in ("measure", "arm", "at_least")}, "gates.0.why"),
    ],
)
def test_a_gate_that_cannot_be_measured_is_refused(gate: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        demanding(tmp_path, gate)
    assert says in str(refused.value)


# The made rounds have 25 % mixed groups, and 2 marks of forgetting and 8 of boundary in all.
@pytest.mark.parametrize(
    ("gate", "value", "state"),
    [
        (GATE, 50.0, "passed"),
        (GATE | {"at_most": 40}, 50.0, "failed"),
        (GATE | {"at_least": 50, "at_most": 50}, 50.0, "passed"),
        (GATE | {"arm": "full", "against": "grpo", "at_least": 5}, 25.0, "passed"),
        (GATE | {"arm": "grpo", "against": "full", "at_least": 0}, -25.0, "failed"),
        (GATE | {"measure": "mixed_groups", "arm": "full", "at_least": 25}, 25.0, "passed"),
        (GATE | {"measure": "forgetting", "arm": "full", "at_least": 10}, 20.0, "passed"),
        (GATE | {"measure": "boundary", "arm": "full", "at_least": 10}, 80.0, "failed"),
        (GATE | {"measure": "rare", "arm": "full", "at_least": 10}, 0.0, "failed"),
        (GATE | {"arm": "random"}, None, "not run yet"),
        (GATE | {"measure": "rare", "arm": "random", "at_least": 10}, None, "not run yet"),
    ],
)
def test_a_gate_passes_within_its_range(gate: object, value: float | None, state: str, tmp_path, place) -> None:
    study = demanding(tmp_path, gate)
    for arm, solved in (("grpo", [YES, NO, NO, NO]), ("full", [YES, YES, NO, NO]), ("starter", [YES, YES, NO, NO])):
        one = result(study, arm, 100, solved)
        one.write(place.result(arm, 100))
    (found,) = summarise(study, "dev", place).gates
    assert (found.value, found.state) == (value, state)


def test_a_report_says_first_that_a_trial_is_void(tmp_path: Path, place: Place) -> None:
    study = demanding(tmp_path, GATE | {"at_most": 40}, GATE | {"arm": "random"})
    result(study, "starter", 100, [YES, NO]).write(place.result("starter", 100))
    text = write_report(study, "dev", place)
    body = [line for line in text.splitlines() if line and not line.startswith("<!--")]
    assert body[0] == ("**The trial is void**: 1 of 2 gates failed (success of starter: 10 to 40 %, found 50.0).")
    assert body[1].startswith("**1 of 2 gates are not measured yet**")
    assert "| success of random: 10 to 60 % |  | 0 of 1 | not run yet | there is room |" in body
    assert [one.state for one in summarise(study, "dev", place).gates] == ["failed", "not run yet"]


def test_gates_are_no_part_of_a_result_or_of_a_report_without_them(tmp_path: Path, place: Place) -> None:
    plain, stated = made_study(tmp_path), demanding(tmp_path, GATE)
    arm = plain.recipe.arm("grpo")
    assert plain.run_hash(arm, 100, "dev", None) == stated.run_hash(arm, 100, "dev", None)
    result(plain, "grpo", 100, [YES, NO]).write(place.result("grpo", 100))
    assert "**Gates**" not in write_report(plain, "dev", place)
