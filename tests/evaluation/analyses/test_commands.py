"""`python -m evaluation.analyses` on a recorded run, on evaluation output and on the study's results; its refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.commands import run_here
from support.made_run import make_run

from environments.bfcl.templated.evaluation_sets import load_set
from evaluation.outcomes import Score, TaskOutcome, score
from evaluation.test_access import SplitAccess
from graph.records import Evolution
from memory.jsonl import record_id
from memory.records import Task
from memory.run import RunDirectory, read_jsonl, write_json, write_jsonl
from memory.tasks import admit, load_tasks, read_given

RESULTS = ROOT / "results" / "history" / "learning" / "raw"
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
    evolution = Evolution(
        iteration=0,
        signals={"forgetting": 2, "boundary": 3, "rare": 1},
        new=3,
        known=0,
        left_out=0,
        drafts=4,
        admitted=tuple(task.id for task in admitted),
        refused={"no_effect": 1},
        failures={},
    )
    write_json(run.iteration(0).evolution, evolution)
    write_json(run.iteration(0).seconds, run_seconds())
    for path, solved in ((run.iteration(0).evaluation_before, 1), (run.iteration(0).evaluation_after, 3)):
        write_json(path, made_score(solved))
    return run


def run_seconds() -> Any:
    from graph.records import StageSeconds

    return StageSeconds(seconds={"seed": 1.0, "train": 15.0, "evolve": 4.0})


def made_score(solved: int) -> Score:
    return score("set", outcomes([n < solved for n in range(4)]))


def outcomes(solved: list[bool]) -> list[TaskOutcome]:
    return [
        TaskOutcome(task_id=f"t{n}", group="set", cluster=str(n), split="dev", shape=("ls",), success=one)
        for n, one in enumerate(solved)
    ]


def analyse(*arguments: str | Path) -> Any:
    done = run_here("evaluation.analyses.__main__", *map(str, arguments), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_cost_and_curves_of_a_run(run: RunDirectory) -> None:
    (cost,) = analyse("cost", run.root)["runs"].values()
    assert (cost["share"], cost["evolution_seconds"], cost["whole_seconds"]) == (0.2, 4.0, 20.0)
    assert (cost["gain"]["reference"], cost["gain"]["reached"]) == (0.25, 0.75)
    (curve,) = analyse("curves", run.root)["runs"].values()
    assert curve["points"][0]["tasks_per_signal"] == 0.5
    assert curve["shares"]["boundary"] == 0.5
    shown = run_here("evaluation.analyses.__main__", "cost", str(run.root))
    assert "20.00%" in shown.stdout


def test_a_result_of_the_study_is_read_like_a_run() -> None:
    (cost,) = analyse("cost", RESULTS / "full-0.jsonl.gz", "--against", RESULTS / "grpo-0.jsonl.gz")["runs"].values()
    assert cost["evolutions"] == 5
    assert 0.03 < cost["share"] < 0.06
    assert cost["gain"]["reference"] == pytest.approx(0.392, abs=1e-3)


@pytest.mark.slow
def test_agreement_of_two_evaluations_and_of_two_arms(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", outcomes([True, True, False, False]))
    write_jsonl(tmp_path / "b.jsonl", outcomes([True, False, True, False]))
    found = analyse("agreement", tmp_path / "a.jsonl", tmp_path / "b.jsonl")["runs"]["set"]
    assert {name: cell["tasks"] for name, cell in found["cells"].items()} == {
        "both": 1,
        "only_first": 1,
        "only_second": 1,
        "neither": 1,
    }
    arms = analyse("agreement", RESULTS / "grpo-0.jsonl.gz", RESULTS / "full-0.jsonl.gz")["runs"]
    assert list(arms) == ["templated-test", "longer-test", "turns-test"]
    assert arms["templated-test"]["pairs"] == 400


@pytest.mark.slow
def test_similarity_finds_what_was_copied_from_an_evaluation_set(run: RunDirectory, tmp_path: Path) -> None:
    leaked = Task(id="leaked", origin="given", **{**dict(load_set("templated-dev")[0].spec), "split": "train"})
    write_jsonl(tmp_path / "tasks.jsonl", [*load_tasks(run), leaked])
    found = analyse("similarity", tmp_path / "tasks.jsonl", "--evaluation-set", "templated-dev", "--above", "0.99")
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
    assert analyse(*to_test, "--access-log", log)["targets"] == 6
    (access,) = read_jsonl(log, SplitAccess)
    assert (access.panel, access.model) == ("test", "none: texts and lengths of the tasks alone")


def test_subsets_are_files_that_a_run_can_start_from(run: RunDirectory, tmp_path: Path) -> None:
    found = analyse("subsets", run.root, tmp_path / "out", *LAMPS, "--evaluation-set", "dev")["runs"]
    assert set(found) == {"low", "medium", "high", "mixed"}
    for level, subset in found.items():
        given = [task for _, task in read_given(tmp_path / "out" / f"{level}.jsonl")]
        assert [task.id for task in given if isinstance(task, Task)] == list(subset["tasks"])
        assert len(given) == 2
    again = run_here(
        "evaluation.analyses.__main__", "subsets", str(run.root), str(tmp_path / "out"), "--targets", "none.jsonl"
    )
    assert again.returncode == 2
    assert "exists: choose another" in again.stderr


def test_diversity_is_of_what_each_evolution_admitted(run: RunDirectory) -> None:
    found = analyse("diversity", run.root, "--neighbours", "2", *LAMPS, "--evaluation-set", "dev")
    (evolution,) = found["evolutions"]
    assert (evolution["tasks"], evolution["step"]) == (3, 3)
    assert 0.0 < evolution["sr"] < 1.0
    assert evolution["ed"] is not None
    alone = analyse("diversity", run.root, "--neighbours", "2")
    assert alone["evolutions"][0]["sr"] == evolution["sr"]
    assert alone["ed"] is None


def test_lengths_are_by_origin_beside_the_original_tasks(run: RunDirectory) -> None:
    found = analyse("lengths", run.root, "--category", "base", "--split", "train", "--limit", "5")["runs"]
    assert list(found) == ["original", "seed", "evolved"]
    assert found["seed"]["turns"]["share"] == {"1": 1.0}
    assert found["seed"]["calls"]["share"] == {"1": 0.4, "2": 0.4, "3": 0.2}
    assert found["original"]["turns"]["tasks"] == 5
    assert found["original"]["turns"]["mean"] > 1


def nothing(_: Path) -> None:
    """Leave the folder as it is."""


def half_a_file(folder: Path) -> None:
    (folder / "x.jsonl.gz").write_bytes((RESULTS / "full-0.jsonl.gz").read_bytes()[:1000])


def no_outcome(folder: Path) -> None:
    (folder / "x.jsonl").write_text('{"id": 1}\n')


@pytest.mark.parametrize(
    ("made", "arguments", "says"),
    [
        (nothing, ["cost", "x"], "x does not exist: check the path"),
        (nothing, ["cost", "."], ". is not a run, it has no settings.yaml"),
        (no_outcome, ["cost", "x.jsonl"], "x.jsonl is neither a run's folder nor a result of a study"),
        (half_a_file, ["curves", "x.jsonl.gz"], "x.jsonl.gz is not a whole gzip file"),
        (no_outcome, ["agreement", "x.jsonl", "x.jsonl"], "x.jsonl, line 1: task_id: Field required"),
        (no_outcome, ["lengths", "x.jsonl"], "x.jsonl, line 1: environment: Field required"),
        (nothing, ["diversity", "x"], "x is not a folder: name a run"),
        (nothing, ["similarity", "RUN"], "give either --evaluation-set NAME or --category NAME or --targets FILE"),
        (nothing, ["similarity", "RUN", "--origin", "given"], "has no task of origin given: it has evolved, seed"),
        (nothing, ["similarity", "RUN", "--embedder", "x"], "--embedder x is not a folder"),
        (nothing, ["similarity", "RUN", "--evaluation-set", "x"], "--evaluation-set x: no such set in bfcl"),
        (
            nothing,
            ["similarity", "RUN", "--category", "base", "--access-log", "x"],
            "--access-log is for held-out evaluation sets",
        ),
        (nothing, ["similarity", "RUN", "--targets", "x", "--split", "dev"], "--split goes with --category"),
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
