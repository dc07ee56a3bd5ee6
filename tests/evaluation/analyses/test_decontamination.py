"""The audit of a run or a file: what is found, how it ends, and that the user's mistakes are one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from environments.base import TaskSpec, ToolCall
from environments.bfcl.templated.evaluation_sets import load_set
from environments.example import depot
from evaluation.analyses.__main__ import app
from memory.jsonl import write_jsonl
from memory.records import Task


def task(number: int, spec: TaskSpec) -> Task:
    return Task(id=f"task-{number}", origin="given", **{**dict(spec), "split": "train"})


def parcels(name: str, **arguments: str) -> TaskSpec:
    start = depot().starts()[0]
    return TaskSpec(
        **start.model_dump(include={"environment", "split", "classes", "initial_state", "tools"}),
        turns=("Do it",),
        reference=((ToolCall(name=name, arguments=arguments),),),
    )


def test_a_held_out_task_in_disguise_is_found(tmp_path: Path) -> None:
    spec = load_set("templated-dev")[0].spec
    spec = spec.model_copy(update={"initial_state": {**spec.initial_state, "unused": 1}, "turns": ("Other words",)})
    write_jsonl(tmp_path / "mine.jsonl", [task(1, spec)])
    shown = CliRunner().invoke(app, ["decontaminate", str(tmp_path / "mine.jsonl")])
    assert shown.exit_code == 1, shown.output
    assert "task-1" in shown.stdout
    assert "1 equal to held-out ones" in " ".join(shown.stdout.split())


def test_a_file_of_an_own_environment_is_clean(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "mine.jsonl", [task(1, parcels("list_parcels"))])
    own = ["--environment", "environments.example:depot"]
    done = CliRunner().invoke(app, ["decontaminate", str(tmp_path / "mine.jsonl"), *own])
    assert done.exit_code == 0, done.output
    assert "1 tasks: 0 equal" in done.stdout
    done = CliRunner().invoke(app, ["decontaminate", str(tmp_path / "mine.jsonl")])
    assert done.exit_code == 2
    assert "add --environment" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "neither a run nor a file"), ("", "has no task"), ("{}\n", "line 1"), ("[", "line 1: no JSON")],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "mine.jsonl"
    if text is not None:
        path.write_text(text)
    done = CliRunner().invoke(app, ["decontaminate", str(path)])
    assert done.exit_code == 2
    assert said in done.stderr
    assert str(path) in done.stderr
