"""A user's own environment, from a file in the folder where the commands start, through one whole iteration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.commands import SMALL_STARTER, run_here
from support.preloaded import HERE

from environments import example
from environments.verification.fingerprints import fingerprint
from environments.verification.verify import verify
from memory.records import Task, Trajectory
from memory.run import RunDirectory, read_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]

NAME = "my_depot:depot"
SMALL = """
seed: 4
iterations: 1
environment: {name: "my_depot:depot", options: {starts: 12}}
policy: {path: starter, device: cpu}
tasks: {initial_count: 12}
training: {steps: 3, tasks_per_step: 4, rollouts_per_task: 4, max_tokens: 256, learning_rate: 0.0001}
signals: {contexts_per_iteration: 4, rare_percent: 20}
roles: {exploration: {rounds: 2, steps: 8, drafts_per_context: 2}}
evaluation: {set: null, tasks: held.jsonl}
"""
HELD_OUT = ("--count", "5", "--set", "evaluation.tasks=null", "--output", "held.jsonl")  # of the run's own seed


def command(folder: Path, module: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A command in the user's folder; what comes before the run is done in this process, which saves its imports."""
    if module in ("graph.seed_tasks", "training.embedded.warm_start"):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)  # as python -m does
            return run_here(module, *options, cwd=folder)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}  # nothing of the checkout
    argv = [sys.executable, "-m", module, *options]
    return subprocess.run(argv, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the user's with a copy of the example, a recipe, and a run of one iteration."""
    folder = tmp_path_factory.mktemp("mine")
    shutil.copy(example.__file__, folder / "my_depot.py")
    (folder / "recipe.yaml").write_text(SMALL)
    for module, *options in (
        ("graph.seed_tasks", "--recipe", "recipe.yaml", *HELD_OUT),
        ("graph.seed_tasks", "--recipe", "recipe.yaml", "--count", "100", "--seed", "9", "--output", "lessons.jsonl"),
        ("training.embedded.warm_start", "--environment", NAME, *SMALL_STARTER),
        ("graph.run_iteration", "--recipe", "recipe.yaml", "--run", "run", "--json"),
    ):
        done = command(folder, module, *options)
        assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stdout)
    return folder


def test_an_iteration_trains_and_admits_tasks(folder: Path) -> None:
    (told,) = [json.loads(line) for line in (folder / "printed").read_text().splitlines()]
    assert told["tasks"] == 12
    assert told["admitted"] > 0
    assert (told["evaluation"]["after"]["group"], told["evaluation"]["after"]["n"]) == ("held.jsonl", 5)
    assert 0.0 <= told["evaluation"]["before"]["metrics"]["success"] <= 1.0
    run = RunDirectory.open(folder / "run")
    played = read_jsonl(run.iteration(0) / "trajectories.jsonl", Trajectory)
    assert len(played) == 3 * 4 * 4
    assert all(one.infrastructure_error is None for one in played)
    assert 0 < sum(one.success for one in played) < len(played)


def test_what_is_held_out_is_neither_in_d_0_nor_admitted(folder: Path) -> None:
    held_out = {fingerprint(task) for task in read_jsonl(folder / "held.jsonl", Task)}
    assert len(held_out) == 5
    assert held_out.isdisjoint(fingerprint(task) for task in read_jsonl(folder / "run" / "tasks.jsonl", Task))


def test_what_was_admitted_is_of_the_environment_and_verified(folder: Path) -> None:
    tasks = read_jsonl(folder / "run" / "tasks.jsonl", Task)
    evolved = [task for task in tasks if task.origin == "evolved"]
    assert evolved
    environment = example.depot(starts=12)
    for task in tasks:
        assert task.environment == "depot"
        assert verify(task, environment, (), ()).accepted
    assert {task.initial_state["Depot"]["gate_open"] for task in tasks} == {True, False}


def test_a_policy_is_scored_on_a_file_of_tasks(folder: Path) -> None:
    options = ("--environment", NAME, "--tasks", "run/tasks.jsonl", "--model", "run/policy/checkpoint-3")
    done = command(folder, "evaluation.run", *options, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (score,) = report["scores"]
    assert score["n"] == len(read_jsonl(folder / "run" / "tasks.jsonl", Task))
    assert score["infrastructure_errors"] == 0
    assert score["successes"] > 0


def test_a_policy_of_another_environment_is_a_mistake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    options = ("--environment", NAME, "--tasks", "run/tasks.jsonl", "--model", str(ROOT / "recipes" / "starter"))
    done = run_here("evaluation.run", *options, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "make an initial policy for these with python -m training.embedded.warm_start" in done.stderr
