"""Whole iterations with chat roles over HTTP: a table of good and bad replies, budgets, and an endpoint with faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.changed_tasks import held_out_tasks, human_wordings, shingles
from support.chat_table import KEY, ROLES, reply, settings_of
from support.faulty_server import ChatRequest, Fault, FaultyServer
from support.made_run import ENVIRONMENT, make_round, make_run, run_graph
from support.official_audit import audit

from agents.spending import Request, read_requests
from environments.verification.canonical import fingerprint
from environments.verification.decontamination import held_out_fingerprints
from environments.verification.verify import Refusal, verify
from graph.report.summary import Summary
from graph.run.stages import Run, iterate
from graph.settings import load_recipe
from memory.failures import DeduplicationResult
from memory.records import Draft, FailureContext, Interaction
from memory.run import RunDirectory, read_json, read_jsonl
from memory.run_files import Evolution, ExtractionRecord, Failure
from memory.tasks import load_tasks, tasks_at

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]


def command(run: RunDirectory, *options: str) -> subprocess.CompletedProcess[str]:
    """``graph.run_iteration --resume`` on the run."""
    arguments = [sys.executable, "-m", "graph.run_iteration", "--run", str(run.root), "--resume", *options]
    environment = {**os.environ, "OPENAI_API_KEY": KEY}
    return subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=120, env=environment)


def rows(run: RunDirectory, name: str, model: type, iteration: int = 0) -> list:
    return read_jsonl(run.iteration(iteration) / name, model)


@pytest.fixture(scope="module")
def table() -> Iterator[FaultyServer]:
    with FaultyServer(reply) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COEVOLVE_KEYS", f"{server.url}=OPENAI_API_KEY")
        yield server


@pytest.fixture(scope="module")
def evolved(
    table: FaultyServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunDirectory, subprocess.CompletedProcess[str]]:
    """A run whose first iteration went through the command, with all three roles on chat models."""
    run = make_run(tmp_path_factory.mktemp("chat") / "run", *settings_of(table))
    ended = command(run, "--iterations", "1", "--json")
    assert ended.returncode == 0, ended.stderr
    return run, ended


def test_tasks_are_admitted_and_refused_with_reasons(evolved) -> None:
    run, _ = evolved
    evolution = read_json(run.iteration(0) / "evolution.json", Evolution)
    assert evolution.admitted
    assert evolution.refused[Refusal.UNGROUNDED_ARGUMENT] > 0
    assert len(evolution.admitted) + sum(evolution.refused.values()) == evolution.drafts
    admitted = [task for task in load_tasks(run) if task.origin == "evolved"]
    assert {len(task.turns) for task in admitted} == {1, 2}
    before = {fingerprint(task) for task in tasks_at(load_tasks(run), 0)}
    for task in admitted:
        assert verify(task, ENVIRONMENT, before, held_out_fingerprints("bfcl")).accepted
        assert audit(task) == []
    assert evolution.stopped is None


def test_drafts_are_graded(evolved) -> None:
    run, _ = evolved
    drafts = {draft.id: draft for draft in rows(run, "drafts.jsonl", Draft)}
    assert {str(draft.difficulty) for draft in drafts.values()} >= {"easy", "hard"}


def test_no_prompt_holds_a_held_out_wording(evolved, table: FaultyServer) -> None:
    prompts = {str(message["content"]) for request in table.requests for message in request.messages}
    assert len(prompts) > 50
    assert not human_wordings() & {run for text in prompts for run in shingles(text)}
    sets = {text for found, _, task in held_out_tasks() if found == "panel" for text in task.turns if len(text) > 40}
    assert not [text for text in sets if any(text in prompt for prompt in prompts)]


def test_what_was_refused_and_repaired_stands_in_the_ledger(evolved) -> None:
    run, _ = evolved
    requests = read_requests(run.spending_path)
    refused = [one for one in requests if one.outcome == "refused"]
    failures = rows(run, "reflection_failures.jsonl", Failure)
    assert failures
    assert {one.subject for one in refused} == {failure.id for failure in failures}
    assert {failure.cause for failure in failures} == {"RoleRefused"}
    assert all(one.measured.prompt_tokens > 0 for one in refused)
    repaired = [one for one in requests if one.outcome == "answered" and one.faults]
    assert {one.role for one in repaired} == {"reflector", "abstractor"}
    assert all(one.measured.calls == 2 for one in repaired)
    assert {one.iteration for one in requests} == {0}
    known = {one.id for one in rows(run, "contexts.jsonl", FailureContext)}
    assert {one.subject for one in requests if one.role in ("explorer", "abstractor")} <= known


def test_the_summary_counts_every_request_by_stage(evolved) -> None:
    run, ended = evolved
    summary = Summary.model_validate_json(ended.stdout)
    requests = read_requests(run.spending_path)
    assert summary.cost.model_calls == sum(one.measured.calls for one in requests)
    assert summary.cost.completion_tokens == sum(one.measured.completion_tokens for one in requests)
    stages = summary.cost.stages
    assert {stage: spent.requests for stage, spent in stages.items()} == {
        stage: Counter(one.role for one in requests)[role]
        for stage, role in zip(("reflect", "explore", "abstract"), ROLES, strict=True)
    }
    assert stages["reflect"].refused == summary.failed["RoleRefused"] > 0
    assert "chat roles on table" in summary.labels


def test_the_key_is_in_no_file_and_in_nothing_that_was_printed(evolved, table: FaultyServer) -> None:
    run, ended = evolved
    assert all(KEY in request.authorization for request in table.requests)
    files = [path for path in run.root.rglob("*") if path.is_file()]
    assert run.checkpoints_path in files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in ended.stdout + ended.stderr


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


async def test_a_budget_ends_the_run_after_the_iteration_and_resume_with_more_goes_on(
    table: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = ["roles.concurrency=1", "roles.budget.calls=40"]
    run = make_run(tmp_path / "run", *settings_of(table), *budget)
    ended = command(run, "--json")
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    summary = Summary.model_validate_json(line)
    assert summary.stopped == "roles.budget.calls"
    assert summary.admitted > 0
    assert summary.failed["BudgetReached"] > 0
    assert summary.cost.model_calls == 40
    sentence = f"{run.root}: stopped after iteration 0: roles.budget.calls (40) is spent: raise it and go on with"
    assert f"{sentence} --resume --set roles.budget.calls=MORE\n" in ended.stderr
    compared = rows(run, "judgements.jsonl", DeduplicationResult)
    failed = {one.id for one in rows(run, "branch_failures.jsonl", Failure)}
    finished = {one.context_id for one in rows(run, "drafts.jsonl", Draft)}
    assert failed | finished == {one.context_id for one in compared if one.status == "new"}

    spent = read_requests(run.spending_path)
    asked, tasks = len(table.requests), run.tasks_path.read_bytes()
    again = command(run, "--json")
    assert (again.returncode, again.stdout) == (0, ended.stdout)
    assert "roles.budget.calls (40) is spent" in again.stderr
    assert (len(table.requests), run.tasks_path.read_bytes()) == (asked, tasks)
    shorter = load_recipe(run.settings_path, ["iterations=1"])
    assert [one async for one in iterate(Run(run, shorter, resumed=True))] == [summary]
    assert "roles.budget.calls is spent: a further iteration needs more of it" in capsys.readouterr().err

    make_round(run, 1, tasks_at(load_tasks(run), 0))
    more = command(run, "--json", "--set", "roles.budget.calls=400")
    assert more.returncode == 0, more.stderr
    first, second = (Summary.model_validate_json(one) for one in more.stdout.splitlines())
    assert first == summary
    assert second.stopped is None
    assert second.cost.model_calls > 0
    assert second.admitted > 0
    assert read_requests(run.spending_path)[: len(spent)] == spent
    assert {one.iteration for one in read_requests(run.spending_path)[len(spent) :]} == {1}
    assert len({fingerprint(task) for task in load_tasks(run)}) == len(load_tasks(run))


def test_with_faults_in_a_fifth_of_the_requests_no_context_is_lost_and_no_task_doubled(
    keyed: None, tmp_path: Path
) -> None:
    def faults(request: ChatRequest) -> Fault | None:
        return list(Fault)[int(request.draw("kind", 5) * len(Fault))] if request.draw("fault", 5) < 0.2 else None

    with FaultyServer(reply, faults=faults) as server:
        run = make_run(tmp_path / "run", *settings_of(server, timeout=1.0, max_retries=4))
        run_graph(run)
        assert sum(server.injected.values()) > 0.1 * len(server.requests)
        assert len(server.injected) >= 5
    chosen = set(read_json(run.iteration(0) / "extraction.json", ExtractionRecord).chosen)
    contexts = rows(run, "contexts.jsonl", FailureContext)
    given_up = rows(run, "reflection_failures.jsonl", Failure)
    assert {one.signal_id for one in contexts} | {one.id for one in given_up} == chosen
    assert len(contexts) + len(given_up) == len(chosen)
    new = {one.context_id for one in rows(run, "judgements.jsonl", DeduplicationResult) if one.status == "new"}
    failed = {one.id for one in rows(run, "branch_failures.jsonl", Failure)}
    explored = {one.context_id for one in rows(run, "interactions.jsonl", Interaction)}
    assert explored | failed == new
    assert explored & failed == set()
    tasks = load_tasks(run)
    assert len({fingerprint(task) for task in tasks}) == len({task.id for task in tasks}) == len(tasks)
    assert any(task.origin == "evolved" for task in tasks)
    _every_failure_has_its_cause(
        read_requests(run.spending_path), [*given_up, *rows(run, "branch_failures.jsonl", Failure)]
    )


def _every_failure_has_its_cause(requests: list[Request], failures: list[Failure]) -> None:
    assert any(one.faults for one in requests)
    for request in requests:
        assert request.outcome == "answered" or request.faults
    for failure in failures:
        assert failure.cause in ("RoleRefused", "EndpointFailed")
        assert any(one.subject == failure.id and one.outcome != "answered" for one in requests)
