"""`coevolve environment new`: a folder whose class, recipe, contract test and held-out tasks work as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run_here

from environments.contract.checks import PROPERTIES
from memory.jsonl import read_jsonl
from memory.records import Task
from memory.run import RunDirectory

COMMAND = "graph.check_environment"


def new(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_here(COMMAND, "new", *words, cwd=folder)


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


@pytest.mark.slow
@pytest.mark.process
def test_the_folder_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every printed command, with fewer tasks and steps; then the run's score on the held-out file."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = new(tmp_path, "bakery", "--held-out", "6")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "bakery"
    assert sorted(one.name for one in folder.iterdir() if one.is_file()) == [
        "bakery.py",
        "held-out.jsonl",
        "recipe.yaml",
        "test_bakery.py",
    ]
    held_out = read_jsonl(folder / "held-out.jsonl", Task)
    assert {one.environment for one in held_out} == {"bakery"}
    assert len(held_out) == 6
    lines = done.stdout.splitlines()
    assert lines[2] == "cd bakery"
    ran = [in_folder(folder, line) for line in (*lines[3:7], "python -m pytest -q -p no:cacheprovider")]
    assert f"all {len(PROPERTIES)} properties hold" in ran[0]
    assert f"{len(PROPERTIES)} passed" in ran[-1]
    assert RunDirectory(folder / "run").iteration(0).evaluation_after.exists(), "it was scored on the held-out tasks"


SMALLER = {"--count 400": "--count 30", "coevolve environment": f"python -m {COMMAND}"}
SMALL_RUN = ("iterations=1", "training.steps=1", "training.tasks_per_step=2", "tasks.initial_count=8")
SMALL_RUN += ("signals.contexts_per_iteration=2", "roles.exploration.rounds=1", "environment.options.starts=8")
SMALLER["coevolve evolve"] = f"python -P -m graph.run_iteration --set {' --set '.join(SMALL_RUN)}"


def in_folder(folder: Path, line: str) -> str:
    """What a printed command prints, on fewer tasks and in one small iteration."""
    for printed, smaller in SMALLER.items():
        line = line.replace(printed, smaller)
    argv = [sys.executable, *line.split()[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (line, done.stdout[-1500:], done.stderr[-1500:])
    return done.stdout
