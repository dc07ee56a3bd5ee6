"""What users get wrong: a command, its arguments, and the words that its one sentence must hold."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from memory.jsonl import write_jsonl
from support.made_run import RECIPE, first_tasks

Prepare = Callable[[Path, Path], None]
"""Fills the folder of a case; the second path is a run to copy."""


class Case(NamedTuple):
    """``arguments`` of the command, in which {} is the folder that ``prepare`` fills; ``told`` is in the sentence."""

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
