"""The whole loop with a small policy that is really trained: stopped in the middle of a round, and gone on with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.made_run import records
from support.small_policy import make_policy, small_tasks

from memory.jsonl import write_jsonl
from memory.run import RunDirectory
from memory.tasks import load_tasks

pytestmark = [pytest.mark.slow, pytest.mark.process]

RECIPE = """
iterations: 1
environment: {options: {classes: [GorillaFileSystem]}}
policy: {path: POLICY, device: cpu}
tasks: {initial: TASKS}
training: {steps: 3, tasks_per_step: 3, rollouts_per_task: 8, max_new_tokens: 16, max_tokens: 120, max_actions: 3}
signals: {contexts_per_iteration: 3}
evaluation: {set: null}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loop")
    make_policy(folder / "policy", small_tasks())
    write_jsonl(folder / "tasks.jsonl", small_tasks())
    text = RECIPE.replace("POLICY", str(folder / "policy")).replace("TASKS", str(folder / "tasks.jsonl"))
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"


def start(recipe: Path, root: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "graph.run_iteration", "--recipe", str(recipe), "--run", str(root), "--json"]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_run_stopped_in_its_round_and_resumed_equals_an_undisturbed_one(recipe: Path, tmp_path: Path) -> None:
    with start(recipe, tmp_path / "whole") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    (line,) = out.splitlines()
    told = json.loads(line)
    assert told["tasks"] == len(load_tasks(RunDirectory.open(tmp_path / "whole"))) - told["admitted"]
    assert sum(told["signals"].values()) > 0
    assert told["contexts"]["new"] > 0
    assert "embedded policy with argument references ($k)" in told["labels"]
    assert set(told["seconds"]) == {"seed", "train", "evolve"}

    root = tmp_path / "stopped"
    with start(recipe, root) as process:
        log = root / "iterations" / "000" / "training.log"
        while process.poll() is None and not (log.exists() and '"step":1,' in log.read_text()):
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, ""), err
    assert not (root / "iterations" / "000" / "round.json").exists()

    with start(recipe, root, "--resume") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert comparable(root) == comparable(tmp_path / "whole")


def comparable(root: Path) -> dict[str, str]:
    """The records of the run: its tasks and its iterations, without the trainer's own files."""
    return {name: text for name, text in records(root).items() if not name.startswith("policy/")}
