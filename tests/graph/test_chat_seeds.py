"""D_0 and the unguided baseline with chat roles over HTTP: tasks, costs, budgets, and what a stop leaves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.chat_table import KEY, reply, settings_of
from support.faulty_server import FaultyServer, Raw
from support.made_run import make_run, run_graph, services_of, settings_for
from support.official_audit import audit
from typer.testing import CliRunner

import graph.nodes.new_tasks
import graph.run.initial_tasks
from agents.spending import BudgetReached, RepeatedFailure, read_requests
from environments.base import InputError
from environments.benchmark import ExplorationHints
from environments.bfcl.benchmark import BENCHMARK
from graph.recipe import load_recipe
from graph.report.figures import facts_of
from graph.report.summary import Summary, cost_of, summarise
from graph.run.initial_tasks import Seeds, make_seeds, start_states
from graph.run.progress import show_stage
from graph.run.stages import Run, iterate
from graph.seed_tasks import app
from memory.records import DraftVerification, FailureContext, Interaction, Unsignalled
from memory.run import RunDirectory, read_jsonl

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
    run = Run(unguided, settings, resumed=False)
    assert [summary async for summary in iterate(run)] == []
    told = capsys.readouterr().err
    assert f"{unguided.root}: stopped before the first iteration: roles.budget.calls (9) is spent" in told
    assert unguided.settings_path.exists()
    assert not unguided.tasks_path.exists()
    requests = read_requests(unguided.spending_path)
    assert {(one.role, one.iteration) for one in requests} == {("abstractor", None)}
    assert sum(one.measured.calls for one in requests) == 9
    cost = cost_of(unguided, 0)
    assert (cost.model_calls, list(cost.stages)) == (9, ["seed"])


HTML = Raw(200, "<html><body>Please log in</body></html>")
BROKEN = {
    "limited": (Raw(429, {"error": {"message": "slow down"}}), "HTTP 429: ", "slow down", "base_url"),
    "failing": (Raw(500, "<html>Internal mess</html>"), "HTTP 500: ", "Internal mess", "base_url"),
    "html": (HTML, "no chat completion: ", "<html><body>Please log in", "base_url"),
    "prose": ("I would rather talk about the weather.", "malformed JSON: ", "", "another model"),
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
            with directory.lock(), pytest.raises(InputError, match="found 0 of 4 tasks"):
                asyncio.run(_summaries(Run(directory, settings, resumed=False)))
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
    with show_stage("seeds") as stage:
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


CHAT = ("explorer", "abstractor")
SMALL = ("roles.exploration.rounds=1", "roles.exploration.steps=3", "roles.concurrency=1", "tasks.initial_count=4")


def chat_run(table: FaultyServer, folder: Path, *options: str, roles: tuple[str, ...] = CHAT) -> RunDirectory:
    given = [*settings_of(table, roles), *SMALL, *options]
    return RunDirectory.create(folder / "run", settings_for(folder / "recipe", *given))


async def seeds_of(run: RunDirectory) -> Seeds:
    settings = load_recipe(run.settings_path)
    with show_stage("seeds") as stage:
        return await make_seeds(services_of(run), settings.tasks.initial_count, stage)


async def test_a_chat_explorer_makes_d_0_within_the_recipes_limits(
    table: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    run = chat_run(table, tmp_path, "roles.exploration.min_reference_calls=2")
    seeds = await seeds_of(run)
    assert len(seeds.tasks) == 4
    assert all(task.origin == "seed" and audit(task) == [] for task in seeds.tasks)
    assert all(sum(map(len, task.reference)) >= 2 for task in seeds.tasks)
    seen = read_jsonl(run.seed.interactions, Interaction)
    assert {(one.run, one.position) for one in seen} == {(0, 0), (0, 1), (0, 2)}
    requests = read_requests(run.spending_path)
    assert {(one.role, one.iteration) for one in requests} == {("explorer", None), ("abstractor", None)}
    cost = cost_of(run, 0)
    assert cost.stages["seed"].requests == len(requests)
    prompts = [request.prompt for request in table.requests if request.schema == "NextCall"]
    assert all("There is no particular weakness" in prompt for prompt in prompts)
    assert seeds.contexts == len({one.context_id for one in seen}), "no start state without a purpose"


async def test_a_stopped_d_0_goes_on_without_paying_twice(
    table: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    validated = ("verification.mode=both",)
    roles = (*CHAT, "validator")
    whole = await seeds_of(chat_run(table, tmp_path / "whole", *validated, roles=roles))
    paid = read_requests(RunDirectory(tmp_path / "whole" / "run").spending_path)
    run = chat_run(table, tmp_path, *validated, roles=roles)

    # As the first branch writes its verifications, then before the abstractor of the second is asked.
    for name, where in (("write_jsonl", "verdicts.jsonl"), ("derive_seed", "'abstract'")):
        kept = getattr(graph.nodes.new_tasks, name)

        def stopped(*args: object, kept: Callable[..., object] = kept, where: str = where) -> object:
            if where in str(args):
                raise RepeatedFailure("stopped here")
            return kept(*args)

        with monkeypatch.context() as patched:
            patched.setattr(graph.nodes.new_tasks, name, stopped)
            with pytest.raises(RepeatedFailure):
                await seeds_of(run)
    again = await seeds_of(run)
    assert [task.model_dump() for task in again.tasks] == [task.model_dump() for task in whole.tasks]
    assert again.contexts == whole.contexts
    asked = [(one.role, one.subject) for one in read_requests(run.spending_path)]
    assert sorted(asked) == sorted((one.role, one.subject) for one in paid)
    for name in ("contexts", "interactions", "drafts", "verdicts"):
        first, second = (getattr(RunDirectory(tmp_path / at).seed, name) for at in ("whole/run", "run"))
        assert len(first.read_text().splitlines()) == len(second.read_text().splitlines()) > 0


async def test_what_a_spent_budget_left_of_d_0_is_made_once_there_is_more(
    table: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    run = chat_run(table, tmp_path, "roles.budget.calls=7")
    with pytest.raises(BudgetReached):
        await seeds_of(run)
    before = read_requests(run.spending_path)
    assert list(run.seed.branches.glob("*/failure.json"))
    run.save_settings(load_recipe(run.settings_path, ["roles.budget.calls=100"]))
    assert len((await seeds_of(run)).tasks) == 4
    assert not list(run.seed.branches.glob("*/failure.json"))
    after = read_requests(run.spending_path)
    assert after[: len(before)] == before
    explored = {one.subject for one in before if one.role == "abstractor" and one.outcome == "answered"}
    assert explored.isdisjoint(one.subject for one in after[len(before) :])


def test_the_unguided_baseline_is_explored_by_the_chat_explorer_and_drafts_by_both_verifications(
    table: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    options = ["signals.contexts=unguided", "signals.contexts_per_iteration=6", "verification.mode=both"]
    run = make_run(tmp_path / "run", *settings_of(table, (*CHAT, "validator")), *SMALL[:2], *options)
    run_graph(run)
    summary = summarise(run, load_recipe(run.settings_path), 0)
    assert "drafts verified by replays and by an agent" in summary.labels
    contexts = read_jsonl(run.iteration(0).contexts, FailureContext)
    assert len(contexts) == 6
    assert {one.kind for one in contexts} == {Unsignalled.UNGUIDED}
    assert len(read_jsonl(run.iteration(0).interactions, Interaction)) == 6 * 1 * 3
    assert summary.cost.stages.keys() == {"explore", "abstract", "validate"}
    assert {one.iteration for one in read_requests(run.spending_path)} == {0}
    assert facts_of(summary)["cost stages validate requests"] == str(summary.cost.stages["validate"].requests)
    found = read_jsonl(run.iteration(0).verdicts, DraftVerification)
    carried_out = [one for one in found if one.agent is not None]
    assert sum(one.agent.accepted for one in carried_out if one.agent) >= summary.admitted > 0
    assert sum(one.reason == "agent" for one in carried_out) == summary.refused["agent"] > 0
    assert {one.reason for one in carried_out} <= {None, "agent", "duplicate"}, "the replays come first"
