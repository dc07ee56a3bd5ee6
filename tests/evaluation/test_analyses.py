"""`python -m evaluation.analyses` on a run's tasks and on evaluation output; its refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import run_here
from support.made_run import make_run

from environments.bfcl.evaluation_sets import load_set
from evaluation.outcomes import TaskOutcome
from memory.jsonl import record_id
from memory.records import Task
from memory.run import RunDirectory, write_jsonl
from memory.tasks import admit, load_tasks, read_given

DEPOTS = ("--environment", "support.tiny_benchmark:BENCHMARK")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of one round whose graph admitted three tasks, each a task of D_0 with one more sentence."""
    run = make_run(tmp_path_factory.mktemp("made") / "run")
    admitted = [
        task.model_copy(
            update={
                "id": record_id("task", "evolved", task.id),
                "origin": "evolved",
                "admitted_at": 0,
                "turns": (f"{task.turns[0]} Then stop.",),
            }
        )
        for task in load_tasks(run)[:3]
    ]
    admit(run, admitted)
    return run


def outcomes(solved: list[bool]) -> list[TaskOutcome]:
    return [
        TaskOutcome(task_id=f"t{n}", group="set", cluster=str(n), split="dev", shape=("ls",), success=one)
        for n, one in enumerate(solved)
    ]


def analyse(*arguments: str | Path) -> str:
    done = run_here("evaluation.analyses", *map(str, arguments))
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_agreement_of_two_evaluations(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", outcomes([True, True, False, False]))
    write_jsonl(tmp_path / "b.jsonl", outcomes([True, False, True, False]))
    assert analyse("agreement", tmp_path / "a.jsonl", tmp_path / "b.jsonl").count("25.00% (1)") == 4


@pytest.mark.slow
def test_similarity_finds_what_was_copied_from_an_evaluation_set(run: RunDirectory, tmp_path: Path) -> None:
    leaked = Task(id="leaked", origin="given", **{**dict(load_set("templated-dev")[0].spec), "split": "train"})
    write_jsonl(tmp_path / "tasks.jsonl", [*load_tasks(run), leaked])
    found = analyse("similarity", tmp_path / "tasks.jsonl", "--evaluation-set", "templated-dev")
    assert "9 tasks against 102, hashed-ngrams-1024: mean " in found
    assert found.count("leaked") == 1
    assert "1.000" in found


def test_subsets_are_files_that_a_run_can_start_from(run: RunDirectory, tmp_path: Path) -> None:
    analyse("similarity", run.root, "--subsets", tmp_path / "out", *DEPOTS, "--evaluation-set", "dev")
    for level in ("low", "medium", "high", "mixed"):
        given = [task for _, task in read_given(tmp_path / "out" / f"{level}.jsonl")]
        assert len(given) == 2
        assert all(isinstance(task, Task) for task in given)
    again = run_here(
        "evaluation.analyses",
        "similarity",
        str(run.root),
        "--subsets",
        str(tmp_path / "out"),
        "--evaluation-set",
        "none.jsonl",
    )
    assert again.returncode == 2
    assert "exists: choose another" in again.stderr


def test_diversity_is_of_what_each_evolution_admitted(run: RunDirectory) -> None:
    found = analyse("diversity", run.root, "--neighbours", "2", *DEPOTS, "--evaluation-set", "dev")
    assert "│ 0 │ 3 │" in found
    assert "6 target tasks; SR@2 needs more than 2 tasks" in found
    assert "no target tasks, so no ED_rel" in analyse("diversity", run.root, "--neighbours", "2")


def test_lengths_are_by_origin_beside_the_original_tasks(run: RunDirectory) -> None:
    found = analyse("lengths", run.root, "--evaluation-set", "base@dev")
    assert "original ┃ seed ┃ evolved" in found
    assert re.search(r"2 calls │ [\d.]+% │ 40.0% │", found)
    assert "tasks with known turns │ 17 │" in found


def nothing(_: Path) -> None:
    """Leave the folder as it is."""


def empty(folder: Path) -> None:
    (folder / "x.jsonl").touch()


def no_outcome(folder: Path) -> None:
    (folder / "x.jsonl").write_text('{"id": 1}\n')


@pytest.mark.parametrize(
    ("made", "arguments", "says"),
    [
        (nothing, ["agreement", "x.jsonl", "x.jsonl"], "x.jsonl does not exist"),
        (no_outcome, ["agreement", "x.jsonl", "x.jsonl"], "x.jsonl, line 1: task_id: Field required"),
        (no_outcome, ["lengths", "x.jsonl"], "x.jsonl, line 1: environment: Field required"),
        (nothing, ["lengths", "none.jsonl"], "none.jsonl is neither a run nor a file of tasks: name one"),
        (empty, ["lengths", "x.jsonl"], "x.jsonl has no task"),
        (nothing, ["diversity", "."], ". is not a run, it has no settings.yaml"),
        (nothing, ["similarity", "RUN"], "missing option '--evaluation-set'"),
        (nothing, ["similarity", "RUN", "--evaluation-set", "x"], "--evaluation-set x: no such set in bfcl"),
        (
            nothing,
            ["similarity", "RUN", "--evaluation-set", "templated-test"],
            "--evaluation-set templated-test is held out: name a development set, or a file of tasks",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    made: Callable[[Path], None], arguments: list[str], says: str, run: RunDirectory, tmp_path: Path
) -> None:
    made(tmp_path)
    given = [str(run.root) if one == "RUN" else one for one in arguments]
    done = run_here("evaluation.analyses", *given, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_power_of_a_study_from_the_outcomes_of_an_arm_s_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        rows = [
            one.model_copy(update={"strata": {"category": "base" if n % 2 else "other"}})
            for n, one in enumerate(outcomes([(n * (seed + 2)) % 5 < 2 for n in range(40)]))
        ]
        write_jsonl(tmp_path / f"{seed}.jsonl", rows)
    files = [str(tmp_path / f"{seed}.jsonl") for seed in range(3)]
    asked = ("power", *files, "--seeds", "4", "--clusters", "30")
    shown = run_here("evaluation.analyses", *asked)
    assert shown.stdout.startswith("4 seeds on 30 clusters of 30 tasks show a difference of")
    assert "among 5 hypotheses" in analyse(*asked, "--stratum", "category=base", "--hypotheses", "5")
