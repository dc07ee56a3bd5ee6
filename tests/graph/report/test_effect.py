"""Whether a run helped, in one sentence: paired by task, with its interval, beside the lookup."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.made_run import AFTER, BEFORE

from evaluation.outcomes import TaskOutcome, paired_change
from graph.report.closing import closing
from graph.report.effect import did_it_help
from graph.report.figures import overview
from graph.report.lineage import History
from graph.report.summary import summarise
from graph.settings import load_recipe
from memory.run import RunDirectory, write_json, write_jsonl


def outcomes(*solved: bool, fault: int | None = None) -> list[TaskOutcome]:
    return [
        TaskOutcome(
            task_id=f"t{number}",
            group="held-out",
            cluster=f"start-{number % 4}",
            split="dev",
            shape=(f"tool-{number % 5}",),
            success=one,
            infrastructure_error="gone" if number == fault else None,
        )
        for number, one in enumerate(solved)
    ]


def test_a_change_is_paired_by_task() -> None:
    nothing, half, most = (
        outcomes(*[False] * 20),
        outcomes(*[True, False] * 10),
        outcomes(*[True, True, False, True] * 5),
    )
    up = paired_change(nothing, most)
    assert up is not None
    assert (up.tasks, up.before, up.after) == (20, 0.0, 0.75)
    assert up.interval is not None
    assert 0.75 - up.interval[0] > 0.1, "four start states are few"
    assert 0.75 < up.interval[1] <= 1
    same = paired_change(half, list(reversed(half)))
    assert same is not None
    assert same.interval is not None
    assert same.interval[0] <= 0.0 <= same.interval[1]
    assert same.words().startswith("+0.0 points (95 %: ")
    faulted = paired_change(outcomes(*[False] * 20, fault=0), outcomes(*[True] * 20, fault=1))
    assert faulted is not None
    assert faulted.tasks == 18, "what was not evaluated on one side counts on neither"
    assert paired_change(outcomes(True), outcomes(False)) == (1, 1.0, 0.0, None)
    assert paired_change([], half) is None


@pytest.fixture
def scored(evolved: RunDirectory, tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(evolved.root, run.root)
    run.save_settings(load_recipe(run.settings_path, ["evaluation.set=templated-dev"]))
    folder = run.iteration(0)
    for what, score, solved in (
        ("before", BEFORE, [False]),
        ("after", AFTER, [True]),
        ("lookup", AFTER, [True, False]),
    ):
        files = folder.evaluation(what)
        write_json(files.score, score)
        write_jsonl(files.outcomes, outcomes(*(solved * 20)[:20]))
    return run


def test_page_and_closing_text_say_it_in_one_sentence(scored: RunDirectory) -> None:
    history = History.read(scored)
    words = did_it_help(history)
    assert re.match(
        r"On 20 held-out tasks \(held-out\) success went from 0.0% to 100.0%: \+100.0 points \(95 %: ", words
    )
    assert (
        "A lookup over the training tasks, without a model, solves 50.0%: the policy minus the lookup is +50.0" in words
    )
    assert "holds zero" not in words
    told = overview(history)
    assert told["verdict"] == words
    assert told["iterations"][0]["evaluation"]["lookup"].success == AFTER.success
    settings = load_recipe(scored.settings_path)
    assert words in " ".join(closing(scored, settings, [summarise(scored, settings, 0)]).split())


def test_no_difference_and_no_evaluation_are_said(scored: RunDirectory) -> None:
    files = scored.iteration(0).evaluation("before")
    write_jsonl(files.outcomes, outcomes(*[True] * 20))
    write_jsonl(scored.iteration(0).evaluation("lookup").outcomes, [])
    words = did_it_help(History.read(scored))
    assert "The interval holds zero: this run alone does not show that training helped." in words
    assert "lookup" not in words
    files.outcomes.unlink()
    assert did_it_help(History.read(scored)) == "No held-out task was evaluated both before and after training."
    scored.iteration(0).evaluation_after.unlink()
    assert did_it_help(History.read(scored)).startswith("No iteration was scored on held-out tasks")
