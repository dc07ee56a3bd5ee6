"""Hypotheses of a study: which are refused, how one is evaluated, and what a report says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.made_results import RECIPE, made_study, result

from environments.base import InputError
from evaluation.study.findings import Conclusion, conclusion, findings_of
from evaluation.study.recipe import MOST, Hypothesis
from evaluation.study.report import write_report
from evaluation.study.study import ArmResult, Place, Study
from evaluation.study.summary import summarise
from evaluation.test_access import Access
from memory.jsonl import append_jsonl

YES, NO = True, False
SHAPES = [(f"function_{number}",) for number in range(12)]
ARMS = RECIPE.replace("seeds: 1, untrained", "seeds: 2, untrained")
GAIN = {"arm": "full", "against": "grpo", "expected": 20, "why": "evolved tasks call more functions"}
CHOICE = {"arm": "full", "against": "random", "expected": 2.5, "why": "contexts are chosen"}
CHANCE = {"arm": "random", "against": "grpo", "expected": 0, "why": "chance changes nothing"}
START = {"arm": "starter", "against": "grpo", "expected": -10, "why": "it is not trained"}


def stating(folder: Path, *hypotheses: object, recipe: str = ARMS) -> Study:
    return made_study(folder, f"{recipe}hypotheses: {json.dumps(hypotheses)}\n")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(output=tmp_path / "out", work=tmp_path / "work")


def land(place: Place, *results: ArmResult) -> None:
    for one in results:
        one.write(place.result(one.header.arm, one.header.seed))


@pytest.mark.parametrize(
    ("hypotheses", "says"),
    [
        (
            [GAIN | {"arm": "ful"}],
            "hypotheses name 'ful', which is not an arm: choose from grpo, full, random, starter",
        ),
        ([GAIN | {"against": "full"}], "hypotheses compare 'full' with itself"),
        ([GAIN, CHOICE, GAIN | {"expected": 2}], "hypotheses state 'full' against 'grpo' twice"),
        ([GAIN, GAIN | {"arm": "grpo", "against": "full"}], "'grpo' against 'full' twice, in one order or the other"),
        ([GAIN | {"against": "lookup"}], "hypotheses state 'full' against 'lookup', which is not scored: set lookup"),
        ([GAIN | {"expected": 101}], "hypotheses.0.expected"),
        ([GAIN | {"expected": "much"}], "hypotheses.0.expected"),
        ([{key: GAIN[key] for key in ("arm", "against", "why")}], "hypotheses.0.expected"),
        ([GAIN | {"why": ""}], "hypotheses.0.why"),
        ([GAIN | {"size": 3}], "hypotheses.0.size"),
        ([GAIN] * (MOST + 1), f"at most {MOST} items"),
    ],
)
def test_a_hypothesis_that_cannot_be_tested_is_refused(hypotheses: list[object], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        stating(tmp_path, *hypotheses)
    assert says in str(refused.value)
    assert "study.yaml" in str(refused.value)


def test_seeds_that_are_alike_or_alone_test_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'starter' has one seed: a test needs at least 2"):
        stating(tmp_path, START, recipe=RECIPE)
    other = ARMS + "  - {name: ceiling, description: best, seeds: 2, untrained: true}\n"
    with pytest.raises(InputError, match="'ceiling' against 'starter', whose seeds are alike"):
        stating(tmp_path, START | {"arm": "ceiling", "against": "starter"}, recipe=other)
    assert stating(tmp_path, START).recipe.hypotheses == (Hypothesis(**START),)


def test_an_untrained_arm_has_no_lookup_and_an_arm_cannot_be_called_so(tmp_path: Path) -> None:
    recipe = ARMS + "lookup: true\n"
    beside = GAIN | {"against": "lookup"}
    assert stating(tmp_path, GAIN, beside, recipe=recipe).recipe.compared == (("full", "random"), ("full", "grpo"))
    with pytest.raises(InputError, match="'full' against 'lookup' twice"):
        stating(tmp_path, beside, beside, recipe=recipe)
    with pytest.raises(InputError, match="name a trained arm"):
        stating(tmp_path, START | {"against": "lookup"}, recipe=recipe)
    with pytest.raises(InputError, match="an arm is called 'lookup', as the baseline is"):
        made_study(tmp_path, ARMS.replace("name: starter", "name: lookup"))


def test_hypotheses_are_part_of_a_recipes_hash_and_of_no_results(tmp_path: Path) -> None:
    plain, stated = made_study(tmp_path, ARMS), stating(tmp_path, GAIN)
    other = stating(tmp_path, GAIN | {"expected": 3})
    assert len({plain.sha256, stated.sha256, other.sha256}) == 3
    for arm in plain.recipe.arms:
        assert plain.run_hash(arm, 100, "dev", (3, 3)) == stated.run_hash(arm, 100, "dev", (3, 3))
    assert stating(tmp_path, CHOICE, GAIN).recipe.compared == (("full", "random"), ("full", "grpo"))


@pytest.mark.parametrize(
    ("expected", "found", "interval", "corrected", "reached"),
    [
        (0.1, 0.2, (0.05, 0.3), 0.01, "shown"),
        (-0.1, -0.2, (-0.3, -0.05), 0.01, "shown"),
        (0.5, 0.2, (0.05, 0.3), 0.01, "shown"),  # of another size, but on the expected side
        (-0.1, 0.2, (0.05, 0.3), 0.01, "opposite shown"),
        (0.1, -0.2, (-0.3, -0.05), 0.01, "opposite shown"),
        (0.0, 0.2, (0.05, 0.3), 0.01, "difference shown"),
        (0.0, -0.2, (-0.3, -0.05), 0.01, "difference shown"),
        (0.0, 0.0, (-0.1, 0.1), 0.9, "not shown"),
        (0.1, 0.2, (0.05, 0.3), 0.05, "not shown"),
        (0.1, 0.2, (0.0, 0.3), 0.01, "not shown"),
        (0.1, 0.2, (-0.3, -0.1), 0.01, "not shown"),  # the interval is on the other side
        (0.1, 0.2, None, 0.01, "not shown"),
        (0.1, 0.2, (0.05, 0.3), None, "not shown"),
    ],
)
def test_a_result_takes_a_corrected_p_and_an_interval_on_one_side(
    expected: float,
    found: float,
    interval: tuple[float, float] | None,
    corrected: float | None,
    reached: Conclusion,
) -> None:
    assert conclusion(expected, found, interval, corrected) == reached


def landed(place: Place, study: Study, shapes: list[tuple[str, ...]]) -> None:
    """``full`` solves all, ``grpo`` nothing but a third of the call shapes in the last seed: 1, 1 and 2/3; p 0.0153."""
    for seed in (100, 101, 102):
        land(place, result(study, "full", seed, [YES] * 12, shapes))
        land(place, result(study, "grpo", seed, [NO] * 8 + [seed == 102] * 4, shapes))


@pytest.mark.parametrize(
    ("found", "interval", "corrected", "margin", "reached"),
    [
        (0.0, (-0.02, 0.02), 0.9, 0.03, "equality shown"),
        (0.0, (-0.02, 0.02), 0.9, 0.02, "not shown"),
        (0.0, (-0.02, 0.02), 0.9, None, "not shown"),
        (0.01, (0.005, 0.02), 0.01, 0.03, "equality shown"),  # a difference, and one that does not matter
        (0.03, (0.01, 0.05), 0.01, 0.03, "difference shown"),
        (0.0, None, None, 0.03, "not shown"),
    ],
)
def test_equality_is_shown_within_a_margin_alone(
    found: float, interval: tuple[float, float] | None, corrected: float | None, margin: float | None, reached: str
) -> None:
    assert conclusion(0.0, found, interval, corrected, margin) == reached


def test_a_margin_is_for_arms_that_are_expected_to_be_equal(tmp_path: Path, place: Place) -> None:
    with pytest.raises(InputError, match="margin is for arms that are expected to be equal, and expected is 20"):
        stating(tmp_path, GAIN | {"margin": 3})
    study = stating(tmp_path, CHANCE | {"margin": 3})
    land(place, *(result(study, arm, seed, [YES, NO, NO, NO]) for arm in ("grpo", "random") for seed in (100, 101)))
    text = write_report(study, "dev", place)
    assert "| random minus grpo | within 3 |" in text
    assert "Equality is shown where the whole of 95 % is within the margin" in text


def test_success_of_tasks_is_tested_where_a_recipe_says_so(tmp_path: Path, place: Place) -> None:
    study = stating(tmp_path, GAIN, recipe=ARMS + "score: tasks\n")
    shapes = [("ls",), ("ls",), ("ls",), ("cd",)]
    for seed in (100, 101):
        land(
            place,
            result(study, "grpo", seed, [NO] * 4, shapes),
            result(study, "full", seed, [YES, NO, NO, YES], shapes),
        )
    (one,) = summarise(study, "dev", place).hypotheses.findings
    assert one.score.mean == 0.5
    by_shape = stating(tmp_path, GAIN)
    (other,) = summarise(by_shape, "dev", place).hypotheses.findings
    assert other.score.mean == pytest.approx((1 / 3 + 1) / 2)


def test_a_report_begins_with_what_came_of_the_hypotheses(tmp_path: Path, place: Place) -> None:
    study = stating(tmp_path, GAIN, CHOICE)
    landed(place, study, SHAPES)
    land(place, result(study, "random", 100, [YES] + [NO] * 11, SHAPES))
    table = write_report(study, "dev", place)
    facts = summarise(study, "dev", place).hypotheses
    assert (facts.set_name, facts.by_shape) == ("templated-dev", True)
    gain, choice = facts.findings
    assert gain.score.by_seed == pytest.approx({100: 1.0, 101: 1.0, 102: 2 / 3})
    assert gain.score.mean == pytest.approx(8 / 9)
    assert (gain.p, gain.holm) == (pytest.approx(1 - 8 / 66**0.5), pytest.approx(2 - 16 / 66**0.5))
    assert (gain.verdict, gain.seeds, gain.planned) == ("shown", 3, 3)
    assert 0.2 < gain.score.interval[0] <= gain.score.mean <= gain.score.interval[1]
    assert gain.functions_drawn
    assert (choice.verdict, choice.seeds, choice.planned) == ("not run yet", 1, 2)
    assert choice.p is choice.holm is choice.score.interval is None
    assert choice.score.mean == pytest.approx(1 - 1 / 12)
    first, *_ = (line for line in table.splitlines() if line.startswith("**") and "Partial" not in line)
    assert first == "**Hypotheses** (templated-dev, mean over call shapes; percent points)"
    row = next(line for line in table.splitlines() if line.startswith("| full minus grpo |"))
    assert row.startswith("| full minus grpo | +20.0 | +88.9 |")
    assert row.endswith("| no | 0.0153 | 0.0305 | 3 | shown | evolved tasks call more functions |")
    assert "| +2.5 | +91.7 |  |  |  |  | 1 of 2 | not run yet |" in table
    assert "2 hypotheses were written down" in table
    assert "full minus random: +91.7" in table, "its pair is compared"
    assert "another text of the recipe" not in table


def test_an_arm_is_tested_against_the_lookup_over_its_own_tasks(tmp_path: Path, place: Place) -> None:
    beside = GAIN | {"against": "lookup", "expected": -30}
    study = stating(tmp_path, beside, recipe=ARMS + "lookup: true\n")
    for seed in (100, 101, 102):
        full = result(study, "full", seed, [NO, NO, NO, NO], SHAPES)
        looked = tuple(one.model_copy(update={"baseline": "lookup", "success": seed != 102}) for one in full.outcomes)
        land(place, full.model_copy(update={"outcomes": (*full.outcomes, *looked)}))
        land(place, result(study, "grpo", seed, [NO] * 4, SHAPES))
    table = write_report(study, "dev", place)
    (found,) = summarise(study, "dev", place).hypotheses.findings
    assert found.score.by_seed == {100: -1.0, 101: -1.0, 102: 0.0}
    assert (found.seeds, found.planned, found.verdict) == (3, 3, "not shown")
    assert "| full minus lookup | -30.0 | -66.7 |" in table


def test_hypotheses_that_were_not_run_count_in_the_correction(tmp_path: Path, place: Place) -> None:
    study = stating(tmp_path, START, GAIN, CHOICE, CHANCE)
    landed(place, study, SHAPES)
    found = summarise(study, "dev", place).hypotheses
    assert found is not None
    assert [one.verdict for one in found.findings] == ["not run yet", "not shown", "not run yet", "not run yet"]
    assert found.findings[1].p == pytest.approx(0.015268, abs=1e-6)
    assert found.findings[1].holm == pytest.approx(0.061072, abs=4e-6)


def test_without_call_shapes_success_is_tested(tmp_path: Path, place: Place) -> None:
    plain = stating(tmp_path, GAIN)
    landed(place, plain, [])
    table = write_report(plain, "dev", place)
    assert "**Hypotheses** (templated-dev, success; percent points)" in table
    assert "95 % without functions, as call shapes are not known: full minus grpo." in table
    (found,) = summarise(plain, "dev", place).hypotheses.findings
    assert (found.verdict, found.score.mean) == ("shown", pytest.approx(8 / 9))


def test_results_and_accesses_of_another_text_of_the_recipe_are_told(tmp_path: Path, place: Place) -> None:
    """Hypotheses that are added or changed after a test set was opened were not written down before."""
    opened_by = made_study(tmp_path, ARMS)
    held = {"templated-test": opened_by.set_hashes["templated-test"]}
    for seed in (0, 1, 2):
        for arm, solved in (("full", [YES] * 4), ("grpo", [NO] * 4)):
            own = {"recipe": opened_by.run_hash(opened_by.recipe.arm(arm), seed, "test", None)}
            made = result(opened_by, arm, seed, solved, **own)
            outcomes = tuple(one.model_copy(update={"group": "templated-test"}) for one in made.outcomes)
            land(place, made.model_copy(update={"outcomes": outcomes}))
    access = Access(date="2026-01-01", commit="0" * 40, recipe=opened_by.sha256, panels=held, seeds={})
    append_jsonl(place.access_log, [access])
    assert "ypothes" not in write_report(opened_by, "test", place)
    changed = stating(tmp_path, GAIN)
    table = write_report(changed, "test", place)
    assert (
        "**Written down before?** 6 results were made, and the held-out sets accessed 1 times, by another text" in table
    )
    (found,) = summarise(changed, "test", place).hypotheses.findings
    assert found.verdict == "shown"


def test_nothing_run_is_no_result() -> None:
    (found,) = findings_of([Hypothesis(**GAIN)], [None], [3])
    assert (found.verdict, found.score, found.seeds, found.holm) == ("not run yet", None, 0, None)
