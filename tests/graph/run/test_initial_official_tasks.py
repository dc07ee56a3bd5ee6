"""D_0 of BFCL's own training tasks: all four categories by index, nothing that is held out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from environments.base import InputError
from environments.bfcl.official import indices, load_category
from environments.bfcl.package import CATEGORIES, CLASSES
from environments.verification.fingerprints import fingerprint
from graph.assembly import RunServices, assemble
from graph.recipe import load_recipe
from graph.run.initial_tasks import _official
from graph.run.interruption import Interruption
from graph.run.progress import Progress
from graph.run.stages import Run, make_tasks
from memory.run import RunDirectory
from memory.tasks import load_tasks


def services(folder: Path, *classes: str) -> RunServices:
    folder.mkdir(exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"tasks: {{initial: official}}\nenvironment: {{options: {{classes: [{', '.join(classes)}]}}}}\n")
    run = RunDirectory.create(folder / "run", load_recipe(recipe))
    return assemble(run, load_recipe(recipe))


@pytest.fixture(scope="module")
def every_class(tmp_path_factory: pytest.TempPathFactory) -> RunServices:
    return services(tmp_path_factory.mktemp("official"), *CLASSES)


@pytest.mark.slow
def test_all_categories_have_the_training_indices_and_no_other(every_class: RunServices) -> None:
    interruption = Interruption()
    with Progress() as progress:
        run = Run(every_class.run, every_class.settings, progress, interruption, resumed=False)
        interruption.run(make_tasks(run))
    tasks = load_tasks(every_class.run)
    assert len(tasks) == 180
    assert {task.id for task in tasks} == {f"{name}-{index}" for name in CATEGORIES for index in indices("train")}
    assert {(task.origin, task.split, task.admitted_at) for task in tasks} == {("official", "train", None)}
    assert sum(not all(task.reference) for task in tasks) == 90, "turns to abstain in are what SEAL's labels are about"
    assert sum(bool(task.withheld) for task in tasks) == sum(task.long_context for task in tasks) == 45


def test_what_is_on_a_evaluation_set_is_refused_and_told(every_class: RunServices) -> None:
    (held_out, *_) = load_category("miss_func", ("train",))
    told: list[str] = []
    guarded = dataclasses.replace(every_class, held_out=frozenset({fingerprint(held_out.spec)}))
    tasks = _official(guarded, told.append)
    assert held_out.id not in {task.id for task in tasks}
    assert any(line.startswith(f"tasks.initial: {held_out.id}: sealed: ") for line in told)


def test_tasks_of_other_classes_are_left_out_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    tasks = _official(services(tmp_path, "VehicleControlAPI"), told.append)
    assert tasks
    assert {task.classes for task in tasks} == {("VehicleControlAPI",)}
    assert told == [f"tasks.initial: {180 - len(tasks)} of 180 official tasks need other classes"]


def test_classes_without_an_official_task_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"environment\.options\.classes: no official training task"):
        _official(services(tmp_path, "MathAPI"), lambda line: None)


def test_an_own_environment_has_none(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "environment: {name: 'environments.example:depot'}\ntasks: {initial: official}\nevaluation: {set: null}\n"
    )
    with pytest.raises(InputError, match=r"tasks.initial: environments.example:depot has no official tasks"):
        load_recipe(recipe)
