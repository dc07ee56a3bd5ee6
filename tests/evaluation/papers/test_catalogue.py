"""The index of tables and figures: complete, of recipes that fit, and refused where it is wrong."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from environments.appworld.benchmark import AppWorld
from environments.base import InputError
from environments.benchmark import EvaluationSet
from environments.checkout import ROOT
from evaluation.papers.catalogue import (
    INDEX,
    Part,
    StudyPlan,
    load_catalogue,
    load_plan,
    value_of,
)
from evaluation.papers.estimate import environment_of
from evaluation.papers.machine import set_size
from evaluation.study.recipe import load_study
from graph.recipe import load_recipe
from graph.settings import RunSettings
from memory.strict_yaml import read_recipe

CATALOGUE = load_catalogue()
PARTS = [(item, part) for item in CATALOGUE.items for part in item.parts]
STUDIES = sorted({part.recipe for _, part in PARTS if part.recipe is not None})
SECTIONS = set(RunSettings.model_fields)


def test_every_table_and_figure_of_both_papers_is_listed() -> None:
    coevolve = {f"T{n}" for n in range(1, 17)} | {f"F{n}" for n in range(1, 14)}
    seal = {f"SEAL-T{n}" for n in range(1, 7)} | {f"SEAL-F{n}" for n in range(1, 4)}
    assert {item.id for item in CATALOGUE.items} == coevolve | seal


def test_every_recipe_of_the_folder_is_used() -> None:
    found = {path.relative_to(ROOT) for path in INDEX.parent.glob("*.yaml") if path != INDEX}
    assert found == set(STUDIES)


def test_what_is_out_says_why() -> None:
    out = {item.id: item.note for item in CATALOGUE.items if item.kind == "out"}
    assert set(out) == {"SEAL-T2"}
    assert "tau2-bench" in out["SEAL-T2"]
    assert "WebShop and ALFWorld" in CATALOGUE.item("t10").note


@pytest.mark.parametrize("path", STUDIES, ids=[path.stem for path in STUDIES])
def test_a_study_has_a_baseline_and_changes_settings_that_exist(path: Path) -> None:
    plan = load_plan(path)
    names = [arm.name for arm in plan.arms]
    assert "grpo" in names
    assert len(set(names)) == len(names)
    assert set(plan.sets) == {"dev", "test"}
    keys = [*plan.settings, *(key for arm in plan.arms for key in arm.overrides)]
    assert {key.partition(".")[0] for key in keys} <= SECTIONS
    assert {arm.seeds for arm in plan.arms} == {1}, "the index says one seed each"


@pytest.mark.parametrize("path", STUDIES, ids=[path.stem for path in STUDIES])
def test_no_arm_is_like_another(path: Path) -> None:
    plan = load_plan(path)
    trees = [(arm.untrained, yaml.safe_dump(plan.settings_of(arm))) for arm in plan.arms]
    assert len(set(trees)) == len(trees)


@pytest.mark.parametrize("name", ["t4-bfcl", "t4-appworld", "t14-bfcl"])
def test_every_arm_of_a_budget_study_trains_for_as_many_steps(name: str) -> None:
    plan = load_plan(INDEX.parent / f"{name}.yaml")
    trees = [plan.settings_of(arm) for arm in plan.arms]
    assert {value_of(tree, "training.steps") * tree["iterations"] for tree in trees} == {120}


def test_the_two_recipes_of_a_table_differ_in_the_benchmark_alone() -> None:
    twins = [(path, path.with_name(path.name.replace("bfcl", "appworld"))) for path in STUDIES if "bfcl" in path.name]
    pairs = [(bfcl, appworld) for bfcl, appworld in twins if appworld in STUDIES]
    assert len(pairs) == 6
    for bfcl, appworld in pairs:
        one, other = (read_recipe(path) for path in (bfcl, appworld))
        assert len(one["arms"]) == len(other["arms"])
        for left, right in zip(one["arms"], other["arms"], strict=True):
            assert str(left).replace("bfcl", "appworld") == str(right)


def test_a_first_task_set_is_prepared_for_every_arm_that_names_one() -> None:
    for item, part in PARTS:
        if part.recipe is None or item.id == "T13":
            continue
        plan = load_plan(part.recipe)
        named = {plan.settings.get("tasks.initial"), *(arm.overrides.get("tasks.initial") for arm in plan.arms)}
        assert {Path(name) for name in named if name} == {one.output for one in part.prepare}, item.id


def test_an_analysis_reads_a_study_of_the_list() -> None:
    for item, part in PARTS:
        if part.of is not None:
            assert part.of in STUDIES, item.id
            arms = {arm.name for arm in load_plan(part.of).arms}
            text = " ".join(part.command)
            assert any(f"{name}-{{seed}}" in text or f"{{policy:{name}}}" in text for name in arms), item.id


def test_settings_of_an_arm_are_base_settings_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("iterations: 2\ntraining: {steps: 3, seal: null}\n")
    plan = StudyPlan.model_validate(
        {
            "base": tmp_path / "base.yaml",
            "settings": {"training.steps": 4},
            "panels": {"dev": ["a"], "test": ["b"]},
            "arms": [{"name": "grpo", "overrides": {"training.seal.weights": None, "tasks.initial": "x"}}],
        }
    )
    tree = plan.settings_of(plan.arms[0])
    assert tree == {"iterations": 2, "training": {"steps": 4, "seal": {"weights": None}}, "tasks": {"initial": "x"}}
    assert read_recipe(plan.base)["training"] == {"steps": 3, "seal": None}
    assert value_of(tree, "training.steps.x", "none") == "none"


def test_former_names_of_settings_are_read_as_a_study_reads_them(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("evaluation: {panel: mine}\n")
    plan = StudyPlan.model_validate(
        {
            "base": tmp_path / "base.yaml",
            "settings": {"training.lend_reference": "none"},
            "panels": {"dev": ["a"], "test": ["b"]},
            "arms": [{"name": "grpo"}],
        }
    )
    tree = plan.settings_of(plan.arms[0])
    assert tree == {"evaluation": {"set": "mine"}, "training": {"experimental": {"lend_reference": "none"}}}


@dataclasses.dataclass
class Wrong:
    """A change of the index, and what is said of it."""

    item: dict[str, object]
    says: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong({"id": "T3", "title": "x", "kind": "text", "note": "y"}, "T3 is listed twice: remove one"),
        Wrong({"id": "X1", "title": "x", "kind": "text", "note": "y"}, "String should match pattern"),
        Wrong({"id": "T99", "title": "x", "kind": "text"}, "T99 is not run: say why, or where it is, in note"),
        Wrong({"id": "T99", "title": "x", "kind": "study"}, "T99 is of kind study: give parts"),
        Wrong({"id": "T99", "title": "x", "kind": "study", "parts": [{"name": "a"}]}, "needs 'recipe'"),
    ],
    ids=["twice", "id", "reason", "parts", "recipe"],
)
def test_a_wrong_index_is_refused_by_name(wrong: Wrong, tmp_path: Path) -> None:
    tree = yaml.safe_load(INDEX.read_text())
    tree["items"].append(wrong.item)
    (tmp_path / "index.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(InputError, match=wrong.says.replace("(", r"\(")):
        load_catalogue(tmp_path / "index.yaml")


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe AppWorld's sets, whose ids are in data that not every machine has, as sets of one task."""

    def one_task(benchmark: AppWorld, name: str) -> EvaluationSet:
        return EvaluationSet(name=name, held_out=benchmark.evaluation_sets[name], sha256="of one task", tasks=1)

    monkeypatch.setattr(AppWorld, "evaluation_set", one_task)


@pytest.mark.parametrize("path", STUDIES, ids=[path.stem for path in STUDIES])
def test_every_arm_is_a_right_recipe(path: Path, tmp_path: Path, described: None) -> None:
    """By the readers of a study and of a run."""
    plan = load_plan(path)
    for name in (*plan.sets["dev"], *plan.sets["test"]):
        assert set_size(environment_of(plan.settings_of(plan.arms[0])), name) > 0
    study = load_study(path)
    for arm in study.recipe.arms:
        recipe = tmp_path / f"{arm.name}.yaml"
        admissions = [1] * study.iterations(arm) if arm.match_admissions else None
        recipe.write_text(json.dumps(study.settings_of(arm, 0, admissions)))
        load_recipe(recipe)


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(InputError, match="no table or figure is called 'T99': choose from T1, T2"):
        CATALOGUE.item("T99")
    assert Part(name="a").vllm is False
