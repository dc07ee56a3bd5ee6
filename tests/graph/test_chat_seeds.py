"""D_0 with a chat abstractor over HTTP: its tasks, its costs, and its budget."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chat_table import KEY, reply, settings_of
from support.faulty_server import FaultyServer, Raw
from support.made_run import services_of, settings_for
from support.official_audit import audit
from typer.testing import CliRunner

import graph.run.initial_tasks
from agents.spending import read_requests
from environments.base import InputError
from environments.benchmark import ExplorationHints
from environments.bfcl.benchmark import BENCHMARK
from graph.recipe import load_recipe
from graph.report.costs import cost_of
from graph.report.summary import Summary
from graph.run.initial_tasks import make_seeds, start_states
from graph.run.interruption import Interruption
from graph.run.loop import iterate
from graph.run.progress import Progress
from graph.run.stages import Run
from graph.seed_tasks import app
from memory.run import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def table() -> Iterator[FaultyServer]:
    with FaultyServer(reply) as server:
        yield server


@pytest.fixture
def unguided(
    request: pytest.FixtureRequest, table: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunDirectory:
    """A run without tasks whose D_0 a chat abstractor shall write, from four start states at a time."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(type(BENCHMARK), "exploration", ExplorationHints(seed_chunk=4))
    options = [*settings_of(table, ("abstractor",)), f"roles.budget.calls={request.param}", "roles.concurrency=1"]
    return RunDirectory.create(tmp_path / "run", settings_for(tmp_path / "recipe", *options))


@pytest.mark.parametrize("unguided", [9], indirect=True)
async def test_what_d_0_costs_is_counted_apart_and_its_budget_stops_it_before_the_first_iteration(
    unguided: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load_recipe(unguided.settings_path, ["tasks.initial_count=100"])
    with Progress() as progress:
        run = Run(unguided, settings, progress, Interruption(), resumed=False)
        assert [summary async for summary in iterate(run)] == []
    told = capsys.readouterr().err
    assert f"{unguided.root}: stopped before the first iteration: roles.budget.calls (9) is spent" in told
    assert unguided.settings_path.exists()
    assert not unguided.tasks_path.exists()
    requests = read_requests(unguided.spending_path)
    assert {(one.role, one.iteration) for one in requests} == {("abstractor", None)}
    assert sum(one.measured.calls for one in requests) == 9
    cost = cost_of(unguided, 0, admitted=3)
    assert (cost.model_calls, list(cost.stages), cost.per_admitted) == (9, ["seed"], None)


HTML = Raw(200, "<html><body>Please log in</body></html>")
BROKEN = {
    "limited": (Raw(429, {"error": {"message": "slow down"}}), "HTTP 429: ", "slow down", "base_url"),
    "failing": (Raw(500, "<html>Internal mess</html>"), "HTTP 500: ", "Internal mess", "base_url"),
    "html": (HTML, "no chat completion: ", "<html><body>Please log in", "base_url"),
    "prose": ("I would rather talk about the weather.", "malformed JSON: ", "", "structured: tool_call"),
}


@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_an_endpoint_that_only_fails_costs_tens_of_requests_and_is_told_with_its_cause(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    answer, cause, body, advice = BROKEN[kind]
    with FaultyServer(lambda request: answer) as server:
        settings_for(tmp_path)
        options = ("--recipe", tmp_path / "recipe.yaml", "--run", tmp_path / "run", "--count", "100")
        chat = [part for option in settings_of(server, ("abstractor",)) for part in ("--set", option)]
        ended = CliRunner().invoke(app, [*map(str, options), *chat])
        sent, url = len(server.requests), server.url
    assert ended.exit_code == 1, ended.stderr
    told = ended.stderr.splitlines()[-1]
    place = rf"error: roles.abstractor \({re.escape(url)}, model table\): "
    assert re.match(rf"{place}\d+ questions in a row got no reply that can be read, the last: ", told), told
    assert cause in told
    assert body in told
    assert advice in told
    assert "ask for fewer" not in told
    assert sent <= (16 + 5) * 4, "16 questions at once, 4 attempts each, and a few that began meanwhile"
    spent = read_requests(tmp_path / "run" / "spending.jsonl")
    assert 5 <= len(spent) <= 16 + 5
    assert sum(one.measured.calls for one in spent) <= sent


def test_a_d_0_that_fails_leaves_what_was_paid_and_the_next_start_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(type(BENCHMARK), "exploration", ExplorationHints(seed_chunk=2))
    monkeypatch.setattr(graph.run.initial_tasks, "BARREN_CHUNKS", 1)
    output = tmp_path / "d0.jsonl"
    ledger = output.with_name("d0.jsonl.spending.jsonl")
    with FaultyServer(lambda request: "I would rather not.") as server:
        options = [*settings_of(server, ("abstractor",)), "roles.budget.calls=9", "roles.concurrency=1"]
        run, settings = tmp_path / "run", settings_for(tmp_path / "recipe", *options)
        for paid in (6, 9):  # one context, then two, each with a repair turn; then what is left of the budget
            directory = RunDirectory.create(run, settings)
            with Progress() as progress, directory.lock(), pytest.raises(InputError, match="found 0 of 4 tasks"):
                asyncio.run(_summaries(Run(directory, settings, progress, Interruption(), resumed=False)))
            assert sum(one.measured.calls for one in read_requests(directory.spending_path)) == paid
            assert [path.name for path in run.iterdir()] == ["spending.jsonl"]
        recipe = ["--recipe", str(tmp_path / "recipe" / "recipe.yaml"), "--output", str(output), "--count", "4"]
        given = [word for option in options for word in ("--set", option)]
        for paid in (6, 9):
            assert CliRunner().invoke(app, [*recipe, *given]).exit_code == 2
            assert sum(one.measured.calls for one in read_requests(ledger)) == paid
    assert not output.exists()
    assert f"{run / 'spending.jsonl'} is kept" in capsys.readouterr().err


async def _summaries(run: Run) -> list[Summary]:
    return [summary async for summary in iterate(run)]


@pytest.mark.parametrize("unguided", [200], indirect=True)
async def test_a_chat_abstractor_makes_d_0(unguided: RunDirectory) -> None:
    with Progress() as progress, progress.stage("seeds") as stage:
        seeds = await make_seeds(services_of(unguided), 2, stage)
    assert len(seeds.tasks) == 2
    assert all(task.origin == "seed" and audit(task) == [] for task in seeds.tasks)


@pytest.mark.parametrize(
    ("missing", "barren", "drafts", "explored"),
    [(10, 0, 1, 10), (10, 0, 3, 4), (100, 0, 3, 32), (1, 0, 3, 1), (1, 5, 3, 6), (1, 99, 3, 32), (10, 0, None, 32)],
)
def test_a_paid_chunk_has_no_more_start_states_than_can_be_needed(
    missing: int, barren: int, drafts: int | None, explored: int
) -> None:
    assert start_states(32, missing, barren, drafts) == explored
