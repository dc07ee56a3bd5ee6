"""`python -m evaluation.analyses` on a run's tasks and on evaluation output; its refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_here
from support.made_run import make_run

from environments.bfcl.templated.evaluation_sets import load_set
from evaluation.outcomes import TaskOutcome
from evaluation.test_access import SplitAccess
from memory.jsonl import record_id
from memory.records import Task
from memory.run import RunDirectory, read_jsonl, write_jsonl
from memory.tasks import admit, load_tasks, read_given

LAMPS = ("--environment", "support.tiny_benchmark.benchmark:BENCHMARK")


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


def analyse(*arguments: str | Path) -> Any:
    done = run_here("evaluation.analyses.__main__", *map(str, arguments), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_agreement_of_two_evaluations(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", outcomes([True, True, False, False]))
    write_jsonl(tmp_path / "b.jsonl", outcomes([True, False, True, False]))
    found = analyse("agreement", tmp_path / "a.jsonl", tmp_path / "b.jsonl")["set"]
    assert found["cells"] == {"both": 1, "only_first": 1, "only_second": 1, "neither": 1}
    shown = run_here("evaluation.analyses.__main__", "agreement", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    assert "25.00% (1)" in shown.stdout


@pytest.mark.slow
def test_similarity_finds_what_was_copied_from_an_evaluation_set(run: RunDirectory, tmp_path: Path) -> None:
    leaked = Task(id="leaked", origin="given", **{**dict(load_set("templated-dev")[0].spec), "split": "train"})
    write_jsonl(tmp_path / "tasks.jsonl", [*load_tasks(run), leaked])
    found = analyse("similarity", tmp_path / "tasks.jsonl", "--evaluation-set", "templated-dev")["similarity"]
    (near,) = [one for one in found["above"] if one["task"] == "leaked"]
    assert near["cosine"] == pytest.approx(1.0)
    assert found["tasks"] == 9
    assert found["targets"] == 102
    assert found["embedder"] == "hashed-ngrams-1024"


@pytest.mark.process  # git says which commit the access is of
def test_a_held_out_set_is_compared_with_after_its_access_is_logged(run: RunDirectory, tmp_path: Path) -> None:
    to_test = ("similarity", run.root, *LAMPS, "--evaluation-set", "test")
    refused = run_here("evaluation.analyses.__main__", *map(str, to_test))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--evaluation-set test: it is held out: add --access-log FILE" in refused.stderr
    log = tmp_path / "log.jsonl"
    assert analyse(*to_test, "--access-log", log)["similarity"]["targets"] == 6
    (access,) = read_jsonl(log, SplitAccess)
    assert (access.panel, access.model) == ("test", "none: texts and lengths of the tasks alone")


def test_subsets_are_files_that_a_run_can_start_from(run: RunDirectory, tmp_path: Path) -> None:
    found = analyse("subsets", run.root, tmp_path / "out", *LAMPS, "--evaluation-set", "dev")
    assert set(found) == {"low", "medium", "high", "mixed"}
    for level, subset in found.items():
        given = [task for _, task in read_given(tmp_path / "out" / f"{level}.jsonl")]
        assert [task.id for task in given if isinstance(task, Task)] == list(subset["tasks"])
        assert len(given) == 2
    again = run_here(
        "evaluation.analyses.__main__",
        "subsets",
        str(run.root),
        str(tmp_path / "out"),
        "--evaluation-set",
        "none.jsonl",
    )
    assert again.returncode == 2
    assert "exists: choose another" in again.stderr


def test_diversity_is_of_what_each_evolution_admitted(run: RunDirectory) -> None:
    found = analyse("diversity", run.root, "--neighbours", "2", *LAMPS, "--evaluation-set", "dev")["diversity"]
    (evolution,) = found["evolutions"]
    assert (evolution["iteration"], evolution["tasks"]) == (0, 3)
    assert 0.0 < evolution["sr"] < 1.0
    assert evolution["ed"] is not None
    alone = analyse("diversity", run.root, "--neighbours", "2")["diversity"]
    assert alone["evolutions"][0]["sr"] == evolution["sr"]
    assert alone["ed"] is None


def test_lengths_are_by_origin_beside_the_original_tasks(run: RunDirectory) -> None:
    found = analyse("lengths", run.root, "--evaluation-set", "base@dev")
    assert list(found) == ["original", "seed", "evolved"]
    assert found["seed"]["turns"]["share"] == {"1": 1.0}
    assert found["seed"]["calls"]["share"] == {"1": 0.4, "2": 0.4, "3": 0.2}
    assert found["original"]["turns"]["tasks"] == 17
    assert found["original"]["turns"]["mean"] > 1


def nothing(_: Path) -> None:
    """Leave the folder as it is."""


def no_outcome(folder: Path) -> None:
    (folder / "x.jsonl").write_text('{"id": 1}\n')


@pytest.mark.parametrize(
    ("made", "arguments", "says"),
    [
        (nothing, ["agreement", "x.jsonl", "x.jsonl"], "x.jsonl does not exist"),
        (no_outcome, ["agreement", "x.jsonl", "x.jsonl"], "x.jsonl, line 1: task_id: Field required"),
        (no_outcome, ["lengths", "x.jsonl"], "x.jsonl, line 1: environment: Field required"),
        (nothing, ["diversity", "."], ". is not a run, it has no settings.yaml"),
        (nothing, ["similarity", "RUN"], "--evaluation-set is missing: name the evaluation set or the file of tasks"),
        (nothing, ["similarity", "RUN", "--evaluation-set", "x"], "--evaluation-set x: no such set in bfcl"),
        (
            nothing,
            ["similarity", "RUN", "--evaluation-set", "base@dev", "--access-log", "x"],
            "--access-log is for held-out evaluation sets",
        ),
        (
            nothing,
            ["similarity", "RUN", "--evaluation-set", "templated-test"],
            "--evaluation-set templated-test: it is held out, and no test access log has an access to it",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    made: Callable[[Path], None], arguments: list[str], says: str, run: RunDirectory, tmp_path: Path
) -> None:
    made(tmp_path)
    given = [str(run.root) if one == "RUN" else one for one in arguments]
    done = run_here("evaluation.analyses.__main__", *given, cwd=tmp_path)
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
    shown = run_here("evaluation.analyses.__main__", *asked)
    assert shown.stdout.startswith("4 seeds on 30 clusters of 30 tasks show a difference of")
    found = analyse(*asked, "--stratum", "category=base", "--hypotheses", "5")
    assert (found["tests"], found["pairs"], found["clusters"]) == (5, 6, 30)
    assert 0 < found["by_interval"] < found["difference"] < 1
