"""SIGKILL at any point: resuming gives the records of an undisturbed run, and no process outlives its parent."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.commands import run_here
from support.killing import (
    RECIPE,
    arguments,
    command,
    contents,
    differences,
    ended_at,
    finish,
    held_at,
    kill,
    limited,
    seconds_until_gone,
    start,
    wait_for,
)
from support.preloaded import alone

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]

GONE = 60.0  # seconds in which every process of a killed run must have ended; a second is usual


class Undisturbed(NamedTuple):
    recipe: Path
    contents: dict[str, Any]
    summary: dict[str, Any]
    log: str


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """In forks of one process, which have one order of hashes; commands that are alone have another."""
    folder = tmp_path_factory.mktemp("undisturbed")
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    log = folder / "log"
    assert finish(command(folder / "run", recipe), log) == 0, log.read_text()
    summary = json.loads((folder / "run" / "iterations" / "000" / "summary.json").read_text())
    assert summary["contexts"]["new"] >= 3, "too few branches to be killed between"
    assert summary["admitted"] >= 3
    return Undisturbed(recipe, contents(folder / "run"), summary, log.read_text())


def test_an_undisturbed_run_prints_its_summary_alone(undisturbed: Undisturbed) -> None:
    *_, line = undisturbed.log.splitlines()
    printed = json.loads(line)
    assert printed.keys() == undisturbed.summary.keys()
    assert printed["tasks"] == len(undisturbed.contents["tasks.jsonl"]) - printed["admitted"]
    assert sum(printed["signals"].values()) > 0
    assert "embedded policy with argument references ($k)" in printed["labels"]
    assert set(printed["seconds"]) == {
        "seed",
        "evaluation before",
        "train",
        "evaluation lookup",
        "evaluation after",
        "evolve",
    }


@pytest.fixture(scope="module")
def chain(undisturbed: Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, float]]]:
    """A run killed in each stage before the graph, one after the other, always gone on with; what was measured.

    The fixture ends where the graph is about to begin: the tests of the graph's points start from copies.
    """
    root = tmp_path_factory.mktemp("chain") / "run"
    log = root.parent / "log"
    iteration = root / "iterations" / "000"
    # A command that is alone imports everything itself, has an order of hashes of its own, and real children.
    before, after = iteration / "panel_before.jsonl", iteration / "panel_after.json"
    checkpoint = root / "policy" / "checkpoint-2" / "model.safetensors"
    points = [
        ("alone", "parent", "graph.run_iteration", root / "seed" / "branches" / "*" / "verdicts.jsonl"),
        ("fork", "child", "evaluation.run", before),  # its outcomes are there, its score is not
        ("alone", "stopped", "training.run_round", iteration / "metrics.jsonl"),  # in its first step
        ("fork", "both", "training.run_round", checkpoint),  # of a checkpoint that is not yet marked as whole
        ("fork", "both", "graph.run_iteration", after),  # before the graph
    ]
    measured = []
    for kind, victim, where, file in points:
        marker = root.parent / f"held {len(measured)}"
        options = ["--resume"] if measured else []
        argv = held_at(where, file, marker, command(root, undisturbed.recipe, *options))
        if kind == "alone":
            with alone():
                process = start(argv, log, PYTHONHASHSEED=str(len(measured)))
        else:
            process = start(argv, log)
        assert wait_for(marker.exists, process), f"{file}: {log.read_text()}"
        pids = kill(process, victim, root)
        if victim == "child":
            assert process.returncode == 1
            assert "ended with status -9" in log.read_text()
        if victim == "stopped":
            assert process.returncode == 128 + signal.SIGTERM
            assert not (iteration / "round.json").exists()
        measured.append((str(file), seconds_until_gone(root, pids)))
    return root, measured


def test_no_process_outlives_its_parent(chain: tuple[Path, list[tuple[str, float]]]) -> None:
    assert [file for file, seconds in chain[1] if seconds > GONE] == []
    assert len(chain[1]) == 5


def test_a_run_killed_in_every_stage_and_resumed_equals_an_undisturbed_one(
    chain: tuple[Path, list[tuple[str, float]]], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    root = copy_of(chain[0], tmp_path)
    log = tmp_path / "log"
    assert finish(command(root, undisturbed.recipe, "--resume"), log) == 0, log.read_text()
    assert differences(contents(root), undisturbed.contents) == []


def copy_of(root: Path, folder: Path) -> Path:
    shutil.copytree(root, folder / "run")
    return folder / "run"


def resume_here(root: Path, undisturbed: Undisturbed) -> None:
    """Go on in this process, which has imported everything; the chain goes on as a user does."""
    done = run_here("graph.run_iteration", *arguments(root, undisturbed.recipe, "--resume"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("hook", "number"),
    [
        ("renamed", 13),  # between the writes of two branches
        ("flushed", 20),  # in the middle of a write, the old file still in its place
        ("admitted", 1),  # update: the task set has grown, neither evolution.json nor a checkpoint says so
        ("remembered", 1),  # deduplicate: the index is made, nothing is compared
    ],
)
def test_the_graph_killed_at_a_point_and_resumed_leaves_equal_records(
    chain: tuple[Path, list[tuple[str, float]]], undisturbed: Undisturbed, tmp_path: Path, hook: str, number: int
) -> None:
    root = copy_of(chain[0], tmp_path)
    log = tmp_path / "log"
    ended = finish(ended_at("kill", hook, number, *arguments(root, undisturbed.recipe, "--resume")), log)
    assert ended == -9, log.read_text()
    assert not (root / "iterations" / "000" / "summary.json").exists()
    assert seconds_until_gone(root, []) < GONE
    resume_here(root, undisturbed)
    assert differences(contents(root), undisturbed.contents) == []


def test_a_disk_that_is_full_is_told_and_the_run_goes_on_when_there_is_room(
    chain: tuple[Path, list[tuple[str, float]]], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """It fills in a branch."""
    root = copy_of(chain[0], tmp_path)
    log = tmp_path / "log"
    ended = finish(ended_at("full", "flushed", 14, *arguments(root, undisturbed.recipe, "--resume")), log)
    *_, sentence = log.read_text().splitlines()
    assert (ended, sentence.startswith(f"error: {root}/")) == (2, True), sentence
    assert sentence.endswith(": No space left on device: free some space there and go on")
    assert "Traceback" not in log.read_text()
    assert list(root.rglob("*.tmp")) == []
    resume_here(root, undisturbed)
    assert differences(contents(root), undisturbed.contents) == []


def test_a_file_that_may_not_grow_is_told_and_the_run_goes_on_when_it_may(
    chain: tuple[Path, list[tuple[str, float]]], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """It is the database of the graph's checkpoints."""
    root = copy_of(chain[0], tmp_path)
    log = tmp_path / "log"
    assert finish(limited(100, command(root, undisturbed.recipe, "--resume")), log) == 2, log.read_text()
    *_, sentence = log.read_text().splitlines()
    assert sentence.startswith(f"error: {root}/")
    assert "ulimit -f" in sentence
    assert "Traceback" not in log.read_text()
    assert list(root.rglob("*.tmp")) == []
    resume_here(root, undisturbed)
    assert differences(contents(root), undisturbed.contents) == []
