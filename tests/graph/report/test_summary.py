"""Summaries and scores: read from the files that the stages wrote."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.made_run import AFTER, BEFORE, make_run, run_graph, settings_for

import environments.command
import graph.run.stages
from agents.settings import RoleSettings
from agents.spending import Request
from evaluation.outcomes import Report, Score, ScoreChange
from evaluation.settings import read_settings
from graph.report.figures import facts_of, overview
from graph.report.lineage import History
from graph.report.summary import COMPACT_LABEL, StageCost, Summary, summarise
from graph.run.stages import Run, printed_score, score_before
from graph.settings import load_recipe
from memory.processes import ChildFailure
from memory.records import Measured, SignalKind, StopReason, Trajectory
from memory.run import PolicyDirectory, RunDirectory, read_json, read_jsonl, write_json, write_jsonl
from training.grpo.record import RoundRecord, RoundSeconds, SamplingGap
from training.rollout.policy import PolicyCard
from training.rollout.sampling import EngineFigures

REPORT = Report(environment="bfcl", model="m", rendering="compact", scores=(AFTER,), mean=0.35, seconds=1.0)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of a compact policy whose graph has run and whose evaluation set was scored, its first 40 tasks."""
    root = tmp_path_factory.mktemp("scored") / "run"
    run = make_run(root, "evaluation.set=templated-dev", "evaluation.limit=40")
    run_graph(run)
    write_json(run.iteration(0) / "panel_before.json", BEFORE)
    write_json(run.iteration(0) / "panel_after.json", AFTER)
    (root / "policy" / "none").mkdir(parents=True)
    write_json(PolicyDirectory(root / "policy" / "none").card, PolicyCard(rendering="compact"))
    return run


def summary_of(run: RunDirectory) -> Summary:
    return summarise(run, load_recipe(run.settings_path), 0)


def test_the_evaluation_set_and_the_labels_of_what_was_scored(scored: RunDirectory) -> None:
    summary = summary_of(scored)
    assert summary.evaluation == ScoreChange(before=BEFORE, after=AFTER)
    assert summary.evaluation.words() == "0.250 -> 0.350, 95 %: 0.22-0.50, templated-dev, n=40"
    assert summary.labels == ("scripted roles", COMPACT_LABEL, "evaluation set: its first 40 tasks only")


def test_rollouts_that_the_environment_ended_are_reported_with_task_and_cause(
    scored: RunDirectory, tmp_path: Path
) -> None:
    run = RunDirectory(shutil.copytree(scored.root, tmp_path / "run"))
    path = run.iteration(0).trajectories
    played = read_jsonl(path, Trajectory)
    ended = {"outcome": None, "reward": None, "infrastructure_error": "the disk of\nthe worker is full"}
    first = played[0].task_id
    faults = [one.id for one in played if one.task_id == first][:2]
    faults.append(next(one.id for one in played if one.task_id != first))
    write_jsonl(path, [one.model_copy(update=ended) if one.id in faults else one for one in played])
    record = read_json(run.iteration(0).round, RoundRecord)
    write_json(run.iteration(0).round, record.model_copy(update={"infrastructure_errors": 3}))
    assert summary_of(scored).warnings == ()
    (words,) = summary_of(run).warnings
    assert words.startswith(f"3 of {len(played)} rollouts, of 2 tasks, ended in a fault of the environment")
    assert f"2 of them of {first}" in words
    assert words.endswith("(3 times) is the disk of the worker is full")


def test_the_labels_name_the_models_of_chat_roles(scored: RunDirectory) -> None:
    settings = load_recipe(scored.settings_path)
    chat = RoleSettings(kind="chat", model="some-model")
    mixed = settings.model_copy(update={"roles": settings.roles.model_copy(update={"explorer": chat})})
    labels = summarise(scored, mixed, 0).labels
    assert labels[:2] == ("scripted roles: reflector, abstractor", "chat roles on some-model")


def test_the_labels_name_the_roles_of_a_local_model(scored: RunDirectory) -> None:
    settings = load_recipe(scored.settings_path, ["roles.abstractor.kind=local"])
    labels = summarise(scored, settings, 0).labels
    assert labels[:2] == (
        "scripted roles: reflector, explorer",
        "roles of a language model on this machine: abstractor",
    )


def test_signals_are_counted_by_trajectory_and_task(scored: RunDirectory) -> None:
    summary = summary_of(scored)
    assert (summary.signals, summary.marked) == (dict(zip(SignalKind, (30, 20, 2), strict=True)), 40)
    assert summary.signal_tasks == dict(zip(SignalKind, (5, 5, 1), strict=True))


def test_a_finished_iteration_is_one_sentence(scored: RunDirectory) -> None:
    summary = summary_of(scored)
    assert summary.sentences == (
        "success 0.250 -> 0.350, 95 %: 0.22-0.50, templated-dev, n=40; "
        f"{summary.admitted} of {summary.drafts} drafts admitted to {summary.tasks} tasks",
    )
    unscored = summary.model_copy(update={"evaluation": None, "faulted": "3 rollouts ended in a fault"})
    assert unscored.sentences[0].startswith(f"{summary.admitted} of ")
    assert unscored.sentences[1:] == ("3 rollouts ended in a fault",)


def request(role: str, iteration: int | None = 0, outcome: str = "answered", **measured: float) -> Request:
    paid = Measured(seconds=1.5, calls=2, prompt_tokens=100, completion_tokens=7)
    changed = paid.model_copy(update=measured)
    return Request(role=role, subject="made", iteration=iteration, outcome=outcome, measured=changed)


@pytest.fixture
def paid(scored: RunDirectory) -> Iterator[RunDirectory]:
    """The scored run with a ledger: D_0's, all stages of the first iteration, and one line of the second."""
    write_jsonl(
        scored.spending_path,
        [
            request("abstractor", iteration=None, prompt_tokens=1000, money=0.5),
            request("reflector"),
            request("reflector", outcome="refused", money=0.25),
            request("explorer"),
            request("abstractor", outcome="failed", prompt_tokens=0, completion_tokens=0),
            request("validator"),
            request("explorer", iteration=1, prompt_tokens=99999),
        ],
    )
    yield scored
    scored.spending_path.unlink()


def test_costs_come_from_the_ledger_refused_requests_included(paid: RunDirectory) -> None:
    summary = summary_of(paid)
    cost = summary.cost
    assert (cost.model_calls, cost.prompt_tokens, cost.completion_tokens, cost.money) == (12, 1400, 35, 0.75)
    assert list(cost.stages) == ["seed", "reflect", "explore", "abstract", "validate"]
    assert cost.stages["reflect"] == StageCost(
        requests=2, refused=1, calls=4, prompt_tokens=200, completion_tokens=14, seconds=3.0, money=0.25
    )
    assert (cost.stages["abstract"].refused, cost.stages["abstract"].calls) == (1, 2)
    assert sum(stage.calls for stage in cost.stages.values()) == cost.model_calls


def test_costs_of_scripted_roles_are_the_environments_alone(scored: RunDirectory) -> None:
    cost = summary_of(scored).cost
    assert (cost.model_calls, cost.stages) == (0, {})
    assert cost.environment_calls > 0


def test_costs_and_a_spent_budget_are_on_the_page(paid: RunDirectory) -> None:
    summary = summary_of(paid).model_copy(update={"stopped": "roles.budget.tokens"})
    facts = facts_of(summary)
    reflected = {"requests": "2", "refused": "1", "calls": "4", "prompt tokens": "200", "completion tokens": "14"}
    reflected |= {"seconds": "3", "money": "0.25"}
    begin = "cost stages reflect "
    assert {name.removeprefix(begin): one for name, one in facts.items() if name.startswith(begin)} == reflected
    assert facts["stopped"] == "roles.budget.tokens"
    assert "12 model calls" in summary.cost.words()


async def test_a_later_iteration_begins_with_the_score_that_the_one_before_ended_with(scored: RunDirectory) -> None:
    run = Run(scored, load_recipe(scored.settings_path), resumed=True)
    await score_before(run, 1)
    assert read_json(scored.iteration(1) / "panel_before.json", Score) == AFTER


def test_why_turns_stopped_is_in_the_summary_and_on_the_page(scored: RunDirectory) -> None:
    assert summary_of(scored).stop_reasons == {}, "no sampler played the rollouts of this run"
    path = scored.iteration(0).round
    record = read_json(path, RoundRecord)
    counted = {StopReason.END_OF_TURN: 40, StopReason.ACTIONS: 2}
    write_json(path, record.model_copy(update={"stop_reasons": counted}))
    try:
        summary = summary_of(scored)
    finally:
        write_json(path, record)
    assert summary.stop_reasons == counted
    told = facts_of(summary)
    assert (told["stop reasons end of turn"], told["stop reasons actions"]) == ("40", "2")


def test_how_far_the_sampler_was_from_the_trainer_is_on_the_page(scored: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(scored.root, tmp_path / "run"))
    record = read_json(run.iteration(0).round, RoundRecord)
    gaps = [SamplingGap(mean=0.001 * place, largest=1.0 / place) for place in range(1, len(record.steps) + 1)]
    steps = [step.model_copy(update={"measured": gap}) for step, gap in zip(record.steps, gaps, strict=True)]
    write_json(run.iteration(0).round, record.model_copy(update={"steps": tuple(steps)}))
    write_json(run.iteration(0).summary, summary_of(run))
    mean = sum(gap.mean for gap in gaps) / len(gaps)
    facts = overview(History.read(run))["costs"][0][1]
    begin = "sampler and trainer differ by nats"
    assert (facts[f"{begin} mean"], facts[f"{begin} largest"]) == (f"{mean:.6g}", "1")


def test_the_line_that_an_evaluation_prints_is_understood(tmp_path: Path) -> None:
    assert printed_score(["a warning", REPORT.model_dump_json()], tmp_path / "log") == AFTER
    whole = AFTER.model_copy(update={"shared_interval": (0.1, 0.6), "metrics": {"success": 0.35, "tgc": 33.3}})
    wider = REPORT.model_copy(update={"scores": (whole,)})
    assert printed_score([wider.model_dump_json()], tmp_path / "log") == whole
    with pytest.raises(ChildFailure, match="printed no report"):
        printed_score(["a warning"], tmp_path / "log")


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        ([], {"max_new_tokens": 48, "max_tokens": 512, "max_actions": 20}),
        (["training.max_new_tokens=64", "training.max_tokens=900"], {"max_new_tokens": 64, "max_tokens": 900}),
        ([], {"max_episode_steps": None}),
        (["training.max_episode_steps=30"], {"max_episode_steps": 30}),
        (["training.max_episode_steps=30", "evaluation.max_episode_steps=9"], {"max_episode_steps": 9}),
        (["evaluation.max_new_tokens=7", "evaluation.max_tokens=70"], {"max_new_tokens": 7, "max_tokens": 70}),
        (["environment.options.max_steps=9"], {"max_actions": 9}),
    ],
)
async def test_an_evaluation_inside_a_run_has_the_recipes_limits_and_shows_how_far_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    overrides: list[str],
    limits: dict[str, int],
) -> None:
    asked: list[str] = []

    async def run_child(argv: list[str], *, on_line: Callable[[str], None], **_: object) -> int:
        asked.extend(argv)
        on_line('{"evaluated": 8, "of": 40, "successes": 3}')
        on_line('{"evaluated": 20, "of": 40, "successes": 5}')
        on_line(REPORT.model_dump_json())
        return 0

    monkeypatch.setattr(graph.run.stages, "run_child", run_child)
    monkeypatch.setattr(environments.command, "INTERVAL", 0.0)
    settings = settings_for(tmp_path, "evaluation.set=templated-dev", *overrides)
    directory = RunDirectory.create(tmp_path / "run", settings)
    await score_before(Run(directory, settings, resumed=False), 0)
    assert asked[2:4] == ["evaluation.run", "--settings"]
    stated = read_settings(Path(asked[4]))
    assert {key: stated[key] for key in limits} == limits
    assert (stated["evaluation_set"], stated["device"]) == (("templated-dev",), settings.policy.device)
    told = capsys.readouterr().err
    assert re.search(r"evaluation before training: 20 of 40, \d+ s left, success 0.25\n", told), told
    assert read_json(directory.iteration(0) / "panel_before.json", Score) == AFTER


def test_every_metric_of_a_benchmark_stands_in_the_summary_of_a_run() -> None:
    before, after = (
        score.model_copy(update={"metrics": score.metrics | {"goals": goals}})
        for score, goals in ((BEFORE, 12.5), (AFTER, 2 / 3))
    )
    words = ScoreChange(before=before, after=after).words()
    assert words == "0.250 -> 0.350, 95 %: 0.22-0.50, goals 12.5 -> 0.667, templated-dev, n=40"
    assert "goals - -> 0.667" in ScoreChange(before=BEFORE, after=after).words()


def test_the_work_of_an_engine_beside_the_trainer_is_shown(scored: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(scored.root, tmp_path / "run"))
    former = summary_of(run)
    assert former.measured is None
    assert "measured" not in former.model_dump()
    assert not [name for name in facts_of(former) if "engine" in name]
    engine = EngineFigures(messages=200, tokens=900, resampled=3, gap=2.9e-6, sampling=45.0, load=6.0)
    record = read_json(run.iteration(0).round, RoundRecord)
    spent = RoundSeconds(load=9.0, rollouts=51.0, optimisation=28.0, save=2.5, engine=engine)
    write_json(run.iteration(0).round, record.model_copy(update={"measured": spent}))
    summary = summary_of(run)
    assert Summary.model_validate_json(summary.model_dump_json()) == summary
    assert summary.model_copy(update={"measured": None}) == former
    shown = facts_of(summary)
    told = ("messages", "tokens", "resampled", "gap", "sampling", "load")
    assert [shown[f"measured engine {name}"] for name in told] == ["200", "900", "3", "2.9e-06", "45", "6"]
