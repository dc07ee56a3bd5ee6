"""What users get wrong, told by the real commands: one sentence on stderr, exit status 2, and nothing half-written.

One mistake of each command is made in a process of its own, the others in this one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.commands import run_here, run_process
from support.made_run import RECIPE, first_tasks, make_run
from support.preloaded import alone

from memory.jsonl import write_jsonl
from memory.processes import exclusive
from memory.run import RunDirectory

pytestmark = pytest.mark.usefixtures("preloaded")

Prepare = Callable[[Path, Path], None]
"""Fills the folder of a case; the second path is a run to copy."""


class Case(NamedTuple):
    """What a user gets wrong.

    ``arguments`` of the command, in which {} is the folder that ``prepare`` fills; ``told`` is in the sentence.
    """

    command: str
    arguments: str
    told: str
    prepare: Prepare = lambda folder, made: None


def recipe(text: str | bytes) -> Prepare:
    def prepare(folder: Path, made: Path) -> None:
        (folder / "mine.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())

    return prepare


def a_run(folder: Path, made: Path) -> None:
    shutil.copytree(made, folder / "run")


def another_recipe(folder: Path, made: Path) -> None:
    a_run(folder, made)
    recipe("seed: 4")(folder, made)


def changed(name: str, change: Callable[[bytes], bytes]) -> Prepare:
    """A run in which a file is not as it was."""

    def prepare(folder: Path, made: Path) -> None:
        a_run(folder, made)
        path = folder / "run" / name
        path.write_bytes(change(path.read_bytes()))

    return prepare


def a_file(folder: Path, made: Path) -> None:
    (folder / "run").write_text("")


def a_folder(folder: Path, made: Path) -> None:
    (folder / "run").mkdir()


def parts(folder: Path, made: Path) -> None:
    (folder / "run").mkdir()
    shutil.copy(made / "tasks.jsonl", folder / "run")


def tasks(folder: Path, made: Path) -> None:
    write_jsonl(folder / "mine.jsonl", first_tasks())


def third_line_broken(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join([*lines[:2], b'{"id": "x"\n', *lines[3:]])


def without_last_line(text: bytes) -> bytes:
    return b"".join(text.splitlines(keepends=True)[:-1])


def finished(folder: Path, made: Path) -> None:
    """A run after one iteration whose task file has lost a line."""
    changed("tasks.jsonl", without_last_line)(folder, made)
    iteration = folder / "run" / "iterations" / "000"
    summary = (
        '{"iteration": 0, "tasks": 5, "admitted": 0, "refused": {}, "signals": {}, "evaluation": null, "seconds": {},'
        ' "contexts": {"new": 0, "known": 0, "left_out": 0}, "cost": {}}'
    )
    (iteration / "summary.json").write_text(summary)


NEW = "--run {}/run"
RESUME = "--run {}/run --resume"
SET = f"{NEW} --set"
ROUND = "--run {}/run --iteration"
CASES = {
    "unknown setting": Case("graph.run_iteration", f"{SET} training.stepz=1", "unknown key 'training.stepz': did you"),
    "option of another environment": Case(
        "graph.run_iteration", f"{SET} environment.options={{{{a:1}}}}", "bfcl would ignore it"
    ),
    "recipe that is not there": Case(
        "graph.run_iteration", f"{NEW} --recipe {{}}/none.yaml", "none.yaml does not exist"
    ),
    "recipe that is no YAML": Case(
        "graph.run_iteration", f"{NEW} --recipe {{}}/mine.yaml", "not YAML: line 2", recipe("a: 1\nb: [1")
    ),
    "recipe that is a folder": Case("graph.run_iteration", f"{NEW} --recipe {{}}", "is a folder, a pipe or a device"),
    "model that is not there": Case(
        "graph.run_iteration",
        f"{NEW} --recipe {{}}/mine.yaml --set policy.path={{}}/none",
        "the policy {}/none does not exist",
        recipe(RECIPE),
    ),
    "run that is there": Case("graph.run_iteration", NEW, "exists: add --resume", a_run),
    "run of another recipe": Case(
        "graph.run_iteration", f"{RESUME} --recipe {{}}/mine.yaml", "'seed' differs from the run", another_recipe
    ),
    "resumed run that was never made": Case("graph.run_iteration", RESUME, "{}/run is not a run, there is nothing to"),
    "parts of a run": Case("graph.run_iteration", NEW, "holds parts of a run but no settings.yaml", parts),
    "corrupt settings": Case(
        "graph.run_iteration",
        RESUME,
        "settings.yaml: not YAML",
        changed("settings.yaml", lambda text: text + b"\na: ["),
    ),
    "corrupt line of a task": Case(
        "graph.run_iteration", RESUME, "tasks.jsonl, line 3: Invalid JSON", changed("tasks.jsonl", third_line_broken)
    ),
    "task file without its last line": Case(
        "graph.run_iteration", RESUME, "tasks.jsonl holds 4 tasks of iteration 1, not 5: restore it", finished
    ),
    "two places for tasks": Case("graph.seed_tasks", "--run {}/a --output {}/b", "either --run DIR or --output FILE"),
    "tasks into a folder": Case("graph.seed_tasks", "--count 1 --output {}/run", "is a folder: name a file", a_folder),
    "table over a file": Case(
        "benchmarks", "--only grpo --output {}/run", "{}/run exists: choose another --output", a_file
    ),
    "blind root of no world": Case(
        "environments.appworld.synthetic_world.build",
        "--world {}/run --blind-only",
        "{}/run has no full/data",
        a_folder,
    ),
    "round of no run": Case("training.run_round", f"{ROUND} 0", "is not a run, it has no settings.yaml"),
    "round that is done": Case("training.run_round", f"{ROUND} 0", "exists, iteration 0 has its round", a_run),
    "warm start on no tasks": Case(
        "training.warm_start", "--model embedded --tasks {}/none.jsonl --out {}/out", "none.jsonl does not exist"
    ),
    "supervised start with a wrong option": Case(
        "training.warm_start",
        "--model {}/none --tasks {}/none.jsonl --out {}/out --order random",
        "--order: Input should be 'given' or 'mixed'",
    ),
    "embedded start with an option of a chat template": Case(
        "training.warm_start",
        "--model embedded --tasks {}/none.jsonl --out {}/out --thinking",
        "embedded has no chat template, its rendering is compact: leave it null",
    ),
    "unknown evaluation set": Case(
        "evaluation.run", "--evaluation-set nonsense --output {}/o", "--evaluation-set nonsense: no such set"
    ),
    "no choice": Case("evaluation.run", "--output {}/o", "either --evaluation-set NAME or --tasks FILE"),
    "scores of no model": Case(
        "evaluation.run",
        "--evaluation-set templated-dev --limit 1 --model {}/none",
        "the policy {}/none does not exist",
    ),
}

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run after its first round, which the preparations copy."""
    return make_run(tmp_path_factory.mktemp("made") / "run").root


def everything_in(folder: Path) -> dict[str, str]:
    """Every file by its hash and every folder, but for lock files, which hold nothing."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if path.suffix != ".lock"
    }


def refused(ended: subprocess.CompletedProcess[str], told: str) -> None:
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    *progress, sentence = ended.stderr.splitlines()
    assert sentence.startswith("error: "), ended.stderr
    assert told in sentence
    assert not any("Traceback" in line or line.startswith("error: ") for line in progress)


# The first of each command, and the command that is no typer app.
IN_A_PROCESS = {*{case.command: name for name, case in reversed(CASES.items())}.values(), "blind root of no world"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.process if name in IN_A_PROCESS else ()) for name in CASES]
)
def test_it_is_told_in_one_sentence_and_nothing_is_written(made: Path, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    case.prepare(tmp_path, made)
    before = everything_in(tmp_path)
    run = run_process if name in IN_A_PROCESS else run_here
    ended = run(case.command, *(word.format(tmp_path, tmp_path) for word in case.arguments.split()))
    refused(ended, case.told.replace("{}", str(tmp_path)))
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("graph.run_iteration", ["--resume"]), ("graph.run_iteration", []), ("graph.seed_tasks", [])],
)
@pytest.mark.process
def test_a_second_process_names_the_first(made: Path, tmp_path: Path, command: str, arguments: list[str]) -> None:
    a_run(tmp_path, made)
    run = RunDirectory.open(tmp_path / "run")
    with run.lock():
        ended = run_process(command, "--run", str(run.root), *arguments)
    refused(ended, f"another process (pid {os.getpid()}) uses {run.root}: wait until it ends or stop it")


@pytest.mark.process
def test_a_second_round_names_the_first(made: Path, tmp_path: Path) -> None:
    a_run(tmp_path, made)
    run = RunDirectory.open(tmp_path / "run")
    with exclusive(run.round_lock_path, "it"):
        ended = run_process("training.run_round", "--run", str(run.root), "--iteration", "1")
    refused(ended, f"another process (pid {os.getpid()}) uses the training of {run.root}")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("graph.run_iteration", ["--run", "{}/run"]),
        ("graph.seed_tasks", ["--run", "{}/run"]),
        ("graph.seed_tasks", ["--count", "1", "--output", "{}/d0.jsonl"]),
        ("evaluation.run", ["--evaluation-set", "templated-dev", "--limit", "8", "--output", "{}/outcomes.jsonl"]),
        ("training.warm_start", ["--model", "embedded", "--tasks", "{}/mine.jsonl", "--out", "{}/out"]),
    ],
)
@pytest.mark.slow
def test_a_file_that_may_not_grow_leaves_nothing_behind(
    made: Path, tmp_path: Path, command: str, arguments: list[str]
) -> None:
    tasks(tmp_path, made)
    before = everything_in(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))  # as ulimit -f 1 does
    try:
        ended = run_here(command, *(word.format(tmp_path) for word in arguments))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    refused(ended, "File too large")
    assert re.match(r"error: /\S+: .*File too large", ended.stderr.splitlines()[-1]), "it names no file"
    assert "ulimit -f" in ended.stderr.splitlines()[-1]
    assert everything_in(tmp_path) == before


def _without_override() -> tuple[str, ...]:
    """What keeps root from writing where permissions forbid it."""
    if os.geteuid() != 0:
        return ()
    code = (
        "import ctypes, os, sys\n"
        f"for capability in ({CAP_DAC_OVERRIDE}, {CAP_DAC_READ_SEARCH}):\n"
        f"    assert ctypes.CDLL(None).prctl({PR_CAPBSET_DROP}, capability, 0, 0, 0) == 0\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return (sys.executable, "-c", code)


@pytest.mark.skipif(os.geteuid() == 0 and not hasattr(ctypes.CDLL(None), "prctl"), reason="root may write anywhere")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("graph.run_iteration", ["--resume"]),
        ("training.run_round", ["--iteration", "1"]),
        ("graph.run_iteration", ["--run", "{}/run/below"]),
    ],
)
@pytest.mark.process
def test_a_run_that_may_not_be_written_is_left_alone(
    made: Path, tmp_path: Path, command: str, arguments: list[str]
) -> None:
    a_run(tmp_path, made)
    root = tmp_path / "run"
    for lock in root.glob("*.lock"):
        lock.unlink()
    before = everything_in(tmp_path)
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with alone():  # a fork of the preloaded process would not have lost what root may
            ended = run_process(
                command, "--run", str(root), *(a.format(tmp_path) for a in arguments), before=_without_override()
            )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    refused(ended, "Permission denied")
    assert str(root) in ended.stderr.splitlines()[-1]
    assert everything_in(tmp_path) == before
