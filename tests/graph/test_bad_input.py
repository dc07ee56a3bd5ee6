"""What users get wrong, told by the real commands: one sentence on stderr, exit status 2, and nothing half-written."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from made_run import RECIPE, first_tasks, make_run

from memory.child_process import hold_lock
from memory.jsonl import write_jsonl
from memory.run import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


class Case(NamedTuple):
    """``arguments`` of the command, in which {} is the folder that ``prepare`` fills; ``told`` is in the sentence."""

    command: str
    arguments: str
    told: str
    prepare: Callable[[Path], None] = lambda folder: None


def recipe(text: str | bytes) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / "mine.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())

    return prepare


def a_run(folder: Path) -> None:
    shutil.copytree(made, folder / "run")


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A run in which a file is not as it was."""

    def prepare(folder: Path) -> None:
        a_run(folder)
        path = folder / "run" / name
        path.write_bytes(change(path.read_bytes()))

    return prepare


def a_file(folder: Path) -> None:
    (folder / "run").write_text("")


def a_folder(folder: Path) -> None:
    (folder / "run").mkdir()


def parts(folder: Path) -> None:
    (folder / "run").mkdir()
    shutil.copy(made / "tasks.jsonl", folder / "run")


def tasks(folder: Path) -> None:
    write_jsonl(folder / "mine.jsonl", first_tasks())


def broken_tasks(folder: Path) -> None:
    tasks(folder)
    path = folder / "mine.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"split": "train"', b'"split": 3', 1))


def third_line_broken(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join([*lines[:2], b'{"id": "x"\n', *lines[3:]])


def without_last_line(text: bytes) -> bytes:
    return b"".join(text.splitlines(keepends=True)[:-1])


def damaged(name: str) -> Callable[[Path], None]:
    """A run with a database that is none."""

    def prepare(folder: Path) -> None:
        a_run(folder)
        path = folder / "run" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no database" * 1000)

    return prepare


def finished(folder: Path) -> None:
    """A run after one iteration whose task file has lost a line."""
    changed("tasks.jsonl", without_last_line)(folder)
    iteration = folder / "run" / "iterations" / "000"
    summary = (
        '{"iteration": 0, "tasks": 5, "admitted": 0, "refused": {}, "signals": {}, "panel": null, "seconds": {},'
        ' "contexts": {"new": 0, "known": 0, "left_out": 0}, "cost": {}}'
    )
    (iteration / "summary.json").write_text(summary)


NEW = "--run {}/run"
RESUME = "--run {}/run --resume"
SET = f"{NEW} --set"
ROUND = "--run {}/run --iteration"
CASES = {
    "unknown setting": Case("graph.run_iteration", f"{SET} training.stepz=1", "unknown key 'training.stepz': did you"),
    "wrong type": Case("graph.run_iteration", f"{SET} training.steps=ten", "training.steps: input should be a valid"),
    "option of a chat role": Case(
        "graph.run_iteration", f"{SET} roles.reflector.base_url=http://x", "'base_url' is for kind: chat"
    ),
    "option of another embedder": Case(
        "graph.run_iteration", f"{SET} memory.embedder_path=x", "'embedder_path' is for sentence-transformers"
    ),
    "option of another environment": Case(
        "graph.run_iteration", f"{SET} environment.options={{{{a:1}}}}", "bfcl would ignore it"
    ),
    "limit of no panel": Case(
        "graph.run_iteration", f"{SET} evaluation.panel=null --set evaluation.limit=3", "'limit' is for a panel"
    ),
    "count beside a file": Case(
        "graph.run_iteration", f"{SET} tasks.initial=x --set tasks.initial_count=3", "'initial_count' is for D_0"
    ),
    "recipe that is not there": Case(
        "graph.run_iteration", f"{NEW} --recipe {{}}/none.yaml", "cannot read this recipe"
    ),
    "recipe that is no YAML": Case(
        "graph.run_iteration", f"{NEW} --recipe {{}}/mine.yaml", "not YAML: line 2", recipe("a: 1\nb: [1")
    ),
    "recipe that is a list": Case(
        "graph.run_iteration", f"{NEW} --recipe {{}}/mine.yaml", "a recipe is a mapping of sections", recipe("- 1")
    ),
    "recipe that is a number": Case(
        "graph.run_iteration", f"{NEW} --recipe {{}}/mine.yaml", "a recipe is a mapping of sections", recipe("7")
    ),
    "recipe that is no text": Case(
        "graph.run_iteration", f"{NEW} --recipe {{}}/mine.yaml", "cannot read this recipe", recipe(b"\xff\xfe\x00a")
    ),
    "recipe that is a folder": Case("graph.run_iteration", f"{NEW} --recipe {{}}", "Is a directory"),
    "model that is not there": Case(
        "graph.run_iteration",
        f"{NEW} --recipe {{}}/mine.yaml --set policy.path={{}}/none",
        "the policy {}/none does not exist",
        recipe(RECIPE),
    ),
    "run that is there": Case("graph.run_iteration", NEW, "exists: add --resume", a_run),
    "run of another recipe": Case(
        "graph.run_iteration", f"{RESUME} --recipe {{}}/mine.yaml", "'seed' differs from the run", recipe("seed: 4")
    ),
    "run path that is a file": Case("graph.run_iteration", NEW, "cannot be made, File exists", a_file),
    "run path below a file": Case("graph.run_iteration", "--run {}/run/below", "Not a directory", a_file),
    "resumed run path that is a file": Case("graph.run_iteration", RESUME, "cannot be made, File exists", a_file),
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
    "task file cut in a line": Case(
        "graph.run_iteration",
        RESUME,
        "tasks.jsonl, line 5: Invalid JSON",
        changed("tasks.jsonl", lambda text: text[:-9]),
    ),
    "task file without its last line": Case(
        "graph.run_iteration", RESUME, "tasks.jsonl holds 4 tasks of iteration 1, not 5: restore it", finished
    ),
    "checkpoints that are no database": Case(
        "graph.run_iteration",
        f"{RESUME} --iterations 1",
        "checkpoints.sqlite is damaged",
        damaged("checkpoints.sqlite"),
    ),
    "memory that is no database": Case(
        "graph.run_iteration", f"{RESUME} --iterations 1", "failures is damaged", damaged("failures/chroma.sqlite3")
    ),
    "two places for tasks": Case("graph.seed_tasks", "--run {}/a --output {}/b", "either --run DIR or --output FILE"),
    "unknown setting of D_0": Case("graph.seed_tasks", "--output {}/b --set tasks.x=1", "unknown key 'tasks.x'"),
    "tasks into a run that is there": Case("graph.seed_tasks", NEW, "exists: add --resume", a_run),
    "tasks below a file": Case(
        "graph.seed_tasks", "--count 1 --output {}/run/b", "lies below the file {}/run: choose", a_file
    ),
    "tasks into a folder": Case("graph.seed_tasks", "--count 1 --output {}/run", "is a folder: name a file", a_folder),
    "round of no run": Case("training.run_round", f"{ROUND} 0", "is no run, it has no settings.yaml"),
    "round without the one before": Case("training.run_round", f"{ROUND} 2", "001/round.json is missing", a_run),
    "round that is done": Case("training.run_round", f"{ROUND} 0", "exists, iteration 0 has its round", a_run),
    "round on corrupt tasks": Case(
        "training.run_round",
        f"{ROUND} 1",
        "tasks.jsonl, line 3: Invalid JSON",
        changed("tasks.jsonl", third_line_broken),
    ),
    "warm start on no tasks": Case(
        "training.warm_start", "--tasks {}/none.jsonl --out {}/out", "none.jsonl does not exist"
    ),
    "warm start on corrupt tasks": Case(
        "training.warm_start", "--tasks {}/mine.jsonl --out {}/out", "mine.jsonl, line 1: split", broken_tasks
    ),
    "warm start over a folder": Case(
        "training.warm_start", "--tasks {}/none.jsonl --out {}/run", "run exists: choose another --out", a_folder
    ),
    "warm start with a wrong option": Case(
        "training.warm_start", "--tasks {}/none.jsonl --out {}/out --balance 2", "--balance: Input should be less"
    ),
    "unknown panel": Case("evaluation.run", "--panel nonsense --output {}/o", "--panel nonsense: no such panel"),
    "no choice": Case("evaluation.run", "--output {}/o", "either --panel NAME or --category NAME"),
    "scores of no model": Case(
        "evaluation.run", "--panel templated-dev --limit 1 --model {}/none", "the policy {}/none does not exist"
    ),
    "outcomes into a folder": Case("evaluation.run", "--panel templated-dev --output {}", "is a folder: name a file"),
    "panels that are there": Case("environments.bfcl.panels", "", "panels are fixed, give --force"),
}

made = Path()


@pytest.fixture(scope="module", autouse=True)
def _made(tmp_path_factory: pytest.TempPathFactory) -> None:
    global made  # noqa: PLW0603 - the table's preparations are plain functions
    made = make_run(tmp_path_factory.mktemp("made") / "run").root


def run_command(command: str, arguments: list[str], before: list[str] = []) -> subprocess.CompletedProcess[str]:  # noqa: B006
    return subprocess.run(
        [*before, sys.executable, "-m", command, *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )


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


@pytest.mark.parametrize("name", CASES)
def test_it_is_told_in_one_sentence_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    case.prepare(tmp_path)
    if "another recipe" in name:
        a_run(tmp_path)
    before = everything_in(tmp_path)
    ended = run_command(case.command, [word.format(tmp_path, tmp_path) for word in case.arguments.split()])
    refused(ended, case.told.replace("{}", str(tmp_path)))
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("graph.run_iteration", ["--resume"]), ("graph.run_iteration", []), ("graph.seed_tasks", [])],
)
def test_a_second_process_names_the_first(tmp_path: Path, command: str, arguments: list[str]) -> None:
    a_run(tmp_path)
    run = RunDirectory.open(tmp_path / "run")
    with run.lock():
        ended = run_command(command, ["--run", str(run.root), *arguments])
    refused(ended, f"another process (pid {os.getpid()}) uses {run.root}: wait until it ends or stop it")


def test_a_second_round_names_the_first(tmp_path: Path) -> None:
    a_run(tmp_path)
    run = RunDirectory.open(tmp_path / "run")
    with hold_lock(run.round_lock_path, end_orphan=False):
        ended = run_command("training.run_round", ["--run", str(run.root), "--iteration", "1"])
    refused(ended, f"round.lock is held by process {os.getpid()}")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("graph.run_iteration", ["--run", "{}/run"]),
        ("graph.seed_tasks", ["--run", "{}/run"]),
        ("graph.seed_tasks", ["--count", "1", "--output", "{}/d0.jsonl"]),
        ("evaluation.run", ["--panel", "templated-dev", "--limit", "8", "--output", "{}/outcomes.jsonl"]),
        ("training.warm_start", ["--tasks", "{}/mine.jsonl", "--out", "{}/out", "--steps", "1", "--hidden", "32"]),
    ],
)
def test_a_file_that_may_not_grow_leaves_nothing_behind(tmp_path: Path, command: str, arguments: list[str]) -> None:
    tasks(tmp_path)
    before = everything_in(tmp_path)
    limited = ["bash", "-c", 'ulimit -f 1 && exec "$@"', "bash"]
    ended = run_command(command, [word.format(tmp_path) for word in arguments], limited)
    refused(ended, "File too large")
    assert re.match(r"error: /\S+: .*File too large", ended.stderr.splitlines()[-1]), "it names no file"
    assert "ulimit -f" in ended.stderr.splitlines()[-1]
    assert everything_in(tmp_path) == before


def _without_override() -> list[str]:
    """What keeps root from writing where permissions forbid it."""
    if os.geteuid() != 0:
        return []
    code = (
        "import ctypes, os, sys\n"
        f"for capability in ({CAP_DAC_OVERRIDE}, {CAP_DAC_READ_SEARCH}):\n"
        f"    assert ctypes.CDLL(None).prctl({PR_CAPBSET_DROP}, capability, 0, 0, 0) == 0\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", code]


@pytest.mark.skipif(os.geteuid() == 0 and not hasattr(ctypes.CDLL(None), "prctl"), reason="root may write anywhere")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("graph.run_iteration", ["--resume"]),
        ("training.run_round", ["--iteration", "1"]),
        ("graph.run_iteration", ["--run", "{}/run/below"]),
    ],
)
def test_a_run_that_may_not_be_written_is_left_alone(tmp_path: Path, command: str, arguments: list[str]) -> None:
    a_run(tmp_path)
    root = tmp_path / "run"
    for lock in root.glob("*.lock"):
        lock.unlink()
    before = everything_in(tmp_path)
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        ended = run_command(
            command, ["--run", str(root), *(a.format(tmp_path) for a in arguments)], _without_override()
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    refused(ended, "Permission denied")
    assert str(root) in ended.stderr.splitlines()[-1]
    assert everything_in(tmp_path) == before
