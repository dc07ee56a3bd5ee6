"""Summaries and panel scores: read from the files that the stages wrote."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from made_run import make_run, run_graph
from rich.console import Console

from agents.settings import RoleSettings
from evaluation.outcomes import Report, Score
from graph.interruption import Interruption
from graph.progress import Progress
from graph.recipe import load_recipe
from graph.records import PanelScore, PolicyCard
from graph.stages import Run, panel_score, score_before
from graph.summary import COMPACT_LABEL, Summary, iteration_table, summarise, summary_table
from memory.child_process import ChildFailure
from memory.records import FailureContext, Measured
from memory.run import RunDirectory, read_json, read_jsonl, write_json, write_jsonl
from training.policy import PolicyCard as WrittenCard

BEFORE = PanelScore(name="templated-dev", n=40, successes=10, success=0.25, interval=(0.14, 0.40))
AFTER = BEFORE.model_copy(update={"successes": 14, "success": 0.35, "interval": (0.22, 0.50)})


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of a compact policy whose graph has run and whose panel was scored, its first 40 tasks."""
    root = tmp_path_factory.mktemp("scored") / "run"
    run = make_run(root, "evaluation.panel=templated-dev", "evaluation.limit=40")
    run_graph(run)
    write_json(run.iteration(0) / "panel_before.json", BEFORE)
    write_json(run.iteration(0) / "panel_after.json", AFTER)
    (root / "policy" / "none").mkdir(parents=True)
    write_json(root / "policy" / "none" / "coevolve.json", WrittenCard(rendering="compact"))
    return run


def summary_of(run: RunDirectory) -> Summary:
    return summarise(run, load_recipe(run.settings_path), 0)


def test_the_panel_and_the_labels_of_what_was_scored(scored: RunDirectory) -> None:
    summary = summary_of(scored)
    assert summary.panel is not None
    assert summary.panel.model_dump() == {"name": "templated-dev", "n": 40, "before": 0.25, "after": 0.35}
    assert summary.labels == ("scripted roles", COMPACT_LABEL, "panel: its first 40 tasks only")


def test_the_labels_name_the_models_of_chat_roles(scored: RunDirectory) -> None:
    settings = load_recipe(scored.settings_path)
    chat = RoleSettings(kind="chat", model="some-model")
    mixed = settings.model_copy(update={"roles": settings.roles.model_copy(update={"explorer": chat})})
    labels = summarise(scored, mixed, 0).labels
    assert labels[:2] == ("scripted roles: reflector, abstractor", "chat roles on some-model")


def test_the_tables_say_everything(scored: RunDirectory) -> None:
    summary = summary_of(scored)
    for table in (iteration_table(summary), summary_table([summary])):
        out = io.StringIO()
        Console(file=out, width=160).print(table)
        for word in ("0.250 -> 0.350", "n=40", "forgetting", "left out", "train", "sampled tokens", COMPACT_LABEL):
            assert word in " ".join(out.getvalue().split())


def test_costs_of_chat_roles_are_added_up(scored: RunDirectory, tmp_path: Path) -> None:
    plain = summary_of(scored).cost
    path = scored.iteration(0) / "contexts.jsonl"
    contexts = read_jsonl(path, FailureContext)
    paid = Measured(calls=2, prompt_tokens=100, completion_tokens=7)
    try:
        write_jsonl(path, [context.model_copy(update={"measured": paid}) for context in contexts])
        cost = summary_of(scored).cost
    finally:
        write_jsonl(path, contexts)
    n = len(contexts)
    assert (cost.model_calls, cost.prompt_tokens, cost.completion_tokens) == (2 * n, 100 * n, 7 * n)
    assert cost.environment_calls == plain.environment_calls > 0


async def test_a_later_iteration_begins_with_the_score_that_the_one_before_ended_with(scored: RunDirectory) -> None:
    with Progress() as progress:
        run = Run(scored, load_recipe(scored.settings_path), progress, Interruption(), resumed=True)
        await score_before(run, 1)
    assert read_json(scored.iteration(1) / "panel_before.json", PanelScore) == AFTER


def test_the_line_that_an_evaluation_prints_is_understood(tmp_path: Path) -> None:
    score = Score(
        group="templated-dev",
        n=40,
        successes=14,
        success=0.35,
        interval=(0.22, 0.50),
        clusters=9,
        infrastructure_errors=0,
    )
    report = Report(
        environment="bfcl", model="m", rendering="compact", decoding="greedy", scores=(score,), mean=0.35, seconds=1.0
    )
    assert panel_score("templated-dev", ["a warning", report.model_dump_json()], tmp_path / "log") == AFTER
    with pytest.raises(ChildFailure, match="printed no report"):
        panel_score("templated-dev", ["a warning"], tmp_path / "log")


def test_the_policys_card_is_understood(tmp_path: Path) -> None:
    write_json(tmp_path / "coevolve.json", WrittenCard(rendering="compact"))
    assert read_json(tmp_path / "coevolve.json", PolicyCard).rendering == "compact"
