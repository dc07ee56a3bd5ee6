"""What users get wrong, told by the real commands: one sentence on stderr, exit status 2, and nothing half-written.

One mistake of each command is made in a process of its own, the others in this one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run_here, run_process
from support.made_run import make_run
from support.mistakes import CASES, a_run, tasks
from support.preloaded import alone

from memory.processes import exclusive
from memory.run import RunDirectory

pytestmark = pytest.mark.usefixtures("preloaded")

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
