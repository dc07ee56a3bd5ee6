"""`coevolve environment new`: a folder whose class, recipe, contract test and held-out tasks work as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.commands import run_here
from support.preloaded import HERE

from environments import checkout, example
from environments.contract.checks import PROPERTIES
from environments.verification.canonical import fingerprint
from environments.verification.verify import verify
from graph.check_environment import SIZES
from graph.settings import load_recipe
from memory.jsonl import read_jsonl
from memory.records import Task, Trajectory
from memory.run import RunDirectory

COMMAND = "graph.check_environment"


def new(folder: Path, *words: str, roles: str = "scripted") -> subprocess.CompletedProcess[str]:
    return run_here(COMMAND, "new", *words, *(("--roles", roles) if roles else ()), cwd=folder)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Bakery", "cannot name a module"),
        ("a-b", "cannot name a module"),
        ("class", "cannot name a module"),
        ("../up", "cannot name a module"),
        ("bfcl", "is the name of a benchmark or of an installed module"),
        ("json", "is the name of a benchmark or of an installed module"),
        ("there", "exists: choose another NAME"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "there").mkdir()
    done = new(tmp_path, name)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert says in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["there"]


@pytest.mark.slow
def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a disk that is full")

    monkeypatch.setattr("graph.seed_tasks.seed_file", fail)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ValueError, match="is full"):
        new(tmp_path, "bakery")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["local", "scripted"])
def test_the_recipe_states_who_words_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    given: list[str] = []
    monkeypatch.setattr("graph.seed_tasks.seed_file", lambda recipe, settings, *_: given.extend(settings))
    monkeypatch.setattr(checkout, "PACKAGED_FOLDER", tmp_path)
    if kind == "local":
        (tmp_path / "config.json").write_text("{}")
    done = new(tmp_path, "bakery", roles="local" if kind == "local" else "")
    roles = load_recipe(tmp_path / "bakery" / "recipe.yaml", ["environment.name=environments.example:depot"]).roles
    assert (roles.explorer.kind, roles.abstractor.kind) == (kind, kind)
    assert (roles.exploration.rounds, roles.exploration.independent) == ((1, True) if kind == "local" else (4, False))
    sizes = SIZES[kind]
    assert f"tasks.initial_count={sizes.held_out}" in given
    assert f"--count {sizes.lessons} --seed 1" in done.stdout
    assert f"--passes {sizes.passes} " in done.stdout
    assert f"--count {sizes.held_out} --seed 30" in done.stdout
    why = "; as stated)" if kind == "local" else "by rules (by default)"
    assert done.stderr.strip().endswith(why)


SMALLER = {"--count 400 --seed 1": "--count 100 --seed 9", "coevolve environment": f"python -m {COMMAND}"}
SMALL_RUN = ("seed=4", "iterations=1", "tasks.initial_count=12", "environment.options.starts=12")
SMALL_RUN += ("training.steps=3", "training.tasks_per_step=4", "training.rollouts_per_task=4")
SMALL_RUN += ("signals.contexts_per_iteration=4", "signals.rare_percent=20", "roles.exploration.rounds=2")
SMALL_RUN += ("roles.exploration.steps=8", "roles.exploration.drafts_per_context=2")
SMALLER["coevolve evolve"] = f"python -P -m graph.run_iteration --json --set {' --set '.join(SMALL_RUN)}"


def in_folder(folder: Path, line: str) -> str:
    """What a printed command prints, on fewer tasks and in one small iteration."""
    for printed, smaller in SMALLER.items():
        line = line.replace(printed, smaller)
    argv = [sys.executable, *line.split()[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}  # nothing of the checkout
    done = subprocess.run(argv, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (line, done.stdout[-1500:], done.stderr[-1500:])
    return done.stdout


class Made(NamedTuple):
    """The folder, and what each printed command printed in it."""

    folder: Path
    printed: list[str]

    @property
    def tasks(self) -> list[Task]:
        return read_jsonl(self.folder / "run" / "tasks.jsonl", Task)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, preloaded: None) -> Made:
    """Every printed command, with fewer tasks and steps."""
    above = tmp_path_factory.mktemp("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        done = new(above, "bakery")
    assert done.returncode == 0, done.stderr
    folder, lines = above / "bakery", done.stdout.splitlines()
    held_out = (folder / "held-out.jsonl").read_text().splitlines(keepends=True)
    assert len(held_out) == 80
    (folder / "held-out.jsonl").write_text("".join(held_out[:6]))
    assert lines[2] == "cd bakery"
    return Made(folder, [in_folder(folder, line) for line in lines[3:7]])


@pytest.mark.slow
@pytest.mark.process
def test_the_folder_and_its_contract_test_are_as_printed(made: Made) -> None:
    names = {"bakery.py", "held-out.jsonl", "recipe.yaml", "test_bakery.py", "lessons.jsonl"}
    assert {one.name for one in made.folder.iterdir() if one.is_file()} == names
    assert f"all {len(PROPERTIES)} properties hold" in made.printed[0]
    tested = in_folder(made.folder, "python -m pytest -q -p no:cacheprovider")
    assert f"{len(PROPERTIES)} passed" in tested


@pytest.mark.slow
@pytest.mark.process
def test_an_iteration_trains_and_admits_verified_tasks(made: Made) -> None:
    told = json.loads(made.printed[-1])
    assert told["tasks"] == 12
    assert told["admitted"] > 0
    assert (told["evaluation"]["after"]["group"], told["evaluation"]["after"]["n"]) == ("held-out.jsonl", 6)
    played = read_jsonl(RunDirectory.open(made.folder / "run").iteration(0).trajectories, Trajectory)
    assert len(played) == 3 * 4 * 4
    assert all(one.infrastructure_error is None for one in played)
    assert any(one.success for one in played)
    environment = example.depot(starts=12)
    for task in made.tasks:
        assert task.environment == "bakery"
        assert verify(task.model_copy(update={"environment": "depot"}), environment, (), ()).accepted
    assert {task.origin for task in made.tasks} == {"seed", "evolved"}


@pytest.mark.slow
@pytest.mark.process
def test_what_is_held_out_is_neither_in_d_0_nor_admitted(made: Made) -> None:
    held_out = read_jsonl(made.folder / "held-out.jsonl", Task)
    assert {one.environment for one in held_out} == {"bakery"}
    assert len(held_out) == 6
    assert {fingerprint(one) for one in held_out}.isdisjoint(map(fingerprint, made.tasks))


@pytest.mark.slow
@pytest.mark.process
def test_a_policy_of_another_environment_is_a_mistake(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(made.folder)
    options = ("--environment", "bakery:bakery", "--tasks", "run/tasks.jsonl", "--model", "recipes/starter")
    done = run_here("evaluation.run", *options, cwd=made.folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "make an initial policy for these with python -m training.warm_start --model embedded" in done.stderr
