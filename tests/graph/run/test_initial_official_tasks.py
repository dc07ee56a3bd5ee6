"""D_0 of BFCL's own training tasks: all four categories by index, nothing that is held out."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path

import pytest

from agents.scripted.reflector import RuleReflector
from environments.base import InputError
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import CATEGORIES, CLASSES, UNPRODUCIBLE, indices, load_category
from environments.command import run_interruptible
from environments.turns import behind, open_for_agent
from environments.verification.canonical import fingerprint
from environments.verification.replay import bare_task
from environments.verification.verify import Refusal, verify
from graph.assembly import RunServices, assemble
from graph.run.initial_tasks import official_tasks
from graph.run.stages import Run, make_tasks
from graph.settings import load_recipe
from memory.records import Evidence, Signal, SignalKind, Step, StopReason, Task, Trajectory, TrajectoryTurn
from memory.run import RunDirectory
from memory.tasks import load_tasks


def services(folder: Path, *classes: str, tasks: str = "", options: str = "") -> RunServices:
    folder.mkdir(exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"tasks: {{initial: official{tasks}}}\nenvironment: {{options: {{classes: [{', '.join(classes)}]{options}}}}}\n"
    )
    run = RunDirectory.create(folder / "run", load_recipe(recipe))
    return assemble(run, load_recipe(recipe))


@pytest.fixture(scope="module")
def every_class(tmp_path_factory: pytest.TempPathFactory) -> RunServices:
    return services(tmp_path_factory.mktemp("official"), *CLASSES)


@pytest.mark.slow
def test_all_categories_have_the_training_indices_and_no_other(every_class: RunServices) -> None:
    run = Run(every_class.run, every_class.settings, resumed=False)
    run_interruptible(make_tasks(run))
    tasks = load_tasks(every_class.run)
    assert len(tasks) == 180
    assert {task.id for task in tasks} == {f"{name}-{index}" for name in CATEGORIES for index in indices("train")}
    assert {(task.origin, task.split, task.admitted_at) for task in tasks} == {("official", "train", None)}
    assert sum(not all(task.reference) for task in tasks) == 90, "turns to abstain in are what SEAL's labels are about"
    assert sum(bool(task.withheld) for task in tasks) == sum(task.long_context for task in tasks) == 45


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "whole"), [("turns", 0), ("both", 45)])
def test_each_turn_with_a_call_is_a_task_behind_the_turns_before_it(tmp_path: Path, parts: str, whole: int) -> None:
    told: list[str] = []
    asked = services(tmp_path, *CLASSES, tasks=f", official: {parts}", options=", categories: [base]")
    tasks = official_tasks(asked, told.append)
    official = {one.id: one.spec for one in load_category("base", ("train",))}
    turns = [one for one in tasks if one.parents]
    assert told == [f"tasks.initial: base-4 is kept, but no agent can solve it: {UNPRODUCIBLE[4]}"]
    assert len(tasks) - len(turns) == whole
    single = sum(len(spec.turns) == 1 for spec in official.values())  # are in the set as whole tasks where it has these
    wanted = sum(bool(calls) for spec in official.values() for calls in spec.reference)
    assert len(turns) == wanted - (single if whole else 0)
    assert len({fingerprint(one) for one in tasks}) == len(tasks)
    for one in turns:
        (name,) = one.parents
        spec, played = official[name], one.played
        assert one.id == f"{name}-turn-{played + 1}"
        assert (one.turns, one.reference) == (spec.turns[: played + 1], spec.reference[: played + 1])
        assert one.reference[-1]


def test_what_is_withheld_until_a_later_turn_is_never_shown() -> None:
    (task, *_) = load_category("miss_func", ("train",))
    ((revealed, names),) = task.spec.withheld.items()
    world = BFCLEnvironment()
    for turn in range(len(task.spec.turns)):
        one = behind(task.spec, turn)
        with closing(world.open(one)) as episode:
            history, shown = open_for_agent(episode, one)
        assert (len(history), shown.index) == (turn, turn)
        assert set(names).issubset(shown.tools) == (turn >= revealed)


def test_an_explorer_of_a_turns_weakness_begins_where_the_turn_began() -> None:
    whole = next(one.spec for one in load_category("base", ("train",)) if len(one.spec.reference) > 2)
    task = Task(id="one", origin="official", **dict(behind(whole, 2)))
    world = BFCLEnvironment()
    with closing(world.open(task)) as episode:
        given, turn = open_for_agent(episode, task)
        begun, outcome = episode.state(), episode.outcome()
    history = [
        TrajectoryTurn(
            text=one.opened.text,
            steps=tuple(Step(action=call, observation=answer) for call, answer in one.steps),
            ended=True,
            stop_reason=StopReason.PLAYED,
        )
        for one in given
    ]
    played = Trajectory(
        id="rollout",
        task_id=task.id,
        iteration=0,
        step=1,
        sample=0,
        turns=(*history, TrajectoryTurn(text=turn.text, ended=True, stop_reason=StopReason.END_OF_TURN)),
        outcome=outcome,
        reward=0.0,
    )
    signal = Signal(id="s", kind=SignalKind.BOUNDARY, iteration=0, task_id=task.id, trajectory_id=played.id)
    found = RuleReflector().reflect_now(Evidence(signal=signal, task=task, trajectory=played), world)
    assert found.where == (2, 0)
    assert found.setup == (*task.setup, *(call for calls in task.reference[:2] for call in calls))
    assert found.tool in {call.name for call in task.reference[2]}
    place = bare_task(task).model_copy(update={"setup": found.setup})
    with closing(world.open(place)) as episode:
        episode.start()
        assert episode.state() == begun


def test_a_held_out_turn_in_a_users_file_is_refused(every_class: RunServices) -> None:
    """By content: also a first turn alone, and one in which nobody plays what was played."""
    held_out = [one for one in load_category("base", ("dev",)) if all(one.spec.reference)][:3]
    for one in held_out:
        for turn in range(len(one.spec.turns)):
            cut = behind(one.spec, turn).model_copy(update={"split": "train"})
            for played in {0, cut.played}:
                asked = cut.model_copy(update={"played": played})
                result = verify(asked, every_class.environment, (), every_class.held_out)
                assert result.reason == Refusal.HELD_OUT, (one.id, turn, played, result)


def test_what_is_on_a_evaluation_set_is_refused_and_told(every_class: RunServices) -> None:
    (held_out, *_) = load_category("miss_func", ("train",))
    told: list[str] = []
    guarded = dataclasses.replace(every_class, held_out=frozenset({fingerprint(held_out.spec)}))
    tasks = official_tasks(guarded, told.append)
    assert held_out.id not in {task.id for task in tasks}
    assert any(line.startswith(f"tasks.initial: {held_out.id}: sealed: ") for line in told)


def test_tasks_of_other_classes_are_left_out_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    tasks = official_tasks(services(tmp_path, "VehicleControlAPI"), told.append)
    assert tasks
    assert {task.classes for task in tasks} == {("VehicleControlAPI",)}
    assert told == [f"tasks.initial: {180 - len(tasks)} of 180 official tasks need other classes"]


def test_classes_without_an_official_task_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"environment\.options\.classes: no official training task"):
        official_tasks(services(tmp_path, "MathAPI"), lambda line: None)


def test_an_own_environment_has_none(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "environment: {name: 'environments.example:depot'}\ntasks: {initial: official}\nevaluation: {set: null}\n"
    )
    with pytest.raises(InputError, match=r"tasks.initial: environments.example:depot has no official tasks"):
        load_recipe(recipe)
