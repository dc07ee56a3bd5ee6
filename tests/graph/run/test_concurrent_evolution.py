"""`evolution.concurrent`: equal records whatever the timing, one iteration of staleness, and ends of either side.

Rounds are acted out by a script in place of a training process; everything else is the command's own loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.acted_rounds import acted_out
from support.made_run import first_tasks, records, settings_for

from agents.settings import BudgetSettings
from agents.spending import Ledger, RepeatedFailure, Request
from environments.base import InputError
from graph.recipe import load_recipe
from graph.report.summary import Summary
from graph.run import loop
from graph.run.interruption import Interrupted, Interruption
from graph.run.progress import Progress
from graph.run.stages import Run, evolve
from memory.processes import ChildFailure
from memory.records import Measured, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl, write_jsonl
from memory.tasks import admit, load_tasks, tasks_at
from training.grpo.record import RoundRecord

pytestmark = pytest.mark.slow

ITERATIONS = 3
Side = Callable[[Run, int], Any]


@asynccontextmanager
async def nothing(run: Run, iteration: int) -> AsyncIterator[None]:
    yield


class Sides:
    """The two sides of the loop with something around each, and the order in which they began and ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.around: dict[str, Side] = {}
        self.events: list[tuple[str, int, str]] = []
        monkeypatch.setattr(loop, "train", self._noted("train", acted_out))
        monkeypatch.setattr(loop, "evolve", self._noted("evolve", evolve))

    def _noted(self, name: str, work: Side) -> Side:
        async def done(run: Run, iteration: int) -> None:
            self.events.append((name, iteration, "begins"))
            try:
                async with self.around.get(name, nothing)(run, iteration):
                    await work(run, iteration)
            except asyncio.CancelledError:
                self.events.append((name, iteration, "stopped"))
                raise
            self.events.append((name, iteration, "ends"))

        return done


def new_run(root: Path, *overrides: str) -> RunDirectory:
    settings = settings_for(root.parent / "recipe", f"iterations={ITERATIONS}", "evolution.concurrent=true", *overrides)
    run = RunDirectory.create(root, settings)
    admit(run, first_tasks())
    return run


def work_on(run: RunDirectory, *, resumed: bool = False) -> list[Summary]:
    interruption = Interruption()
    settings = load_recipe(run.settings_path)

    async def collect(work: Run) -> list[Summary]:
        return [summary async for summary in loop.iterate(work)]

    with run.lock(), Progress() as progress:
        return interruption.run(collect(Run(run, settings, progress, interruption, resumed)))


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    return Sides(monkeypatch)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, dict[str, str]]:
    """A run in which each graph waited for the whole round beside it."""
    run = new_run(tmp_path_factory.mktemp("undisturbed") / "run")
    with pytest.MonkeyPatch.context() as monkeypatch:
        sides = Sides(monkeypatch)

        @asynccontextmanager
        async def last(run: Run, iteration: int) -> AsyncIterator[None]:
            following = run.directory.iteration(iteration + 1).round
            while iteration + 1 < ITERATIONS and not following.exists():
                await asyncio.sleep(0.01)
            yield

        sides.around["evolve"] = last
        work_on(run)
    assert sides.events.index(("train", 1, "ends")) < sides.events.index(("evolve", 0, "ends"))
    return run, records(run.root)


def test_records_are_equal_whichever_side_is_first(
    undisturbed: tuple[RunDirectory, dict[str, str]], sides: Sides, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def last(run: Run, iteration: int) -> AsyncIterator[None]:
        while iteration > 0 and not run.directory.iteration(iteration - 1).summary.exists():
            await asyncio.sleep(0.01)
        yield

    sides.around["train"] = last
    run = new_run(tmp_path / "run")
    summaries = work_on(run)
    order = sides.events
    assert order.index(("train", 1, "begins")) < order.index(("evolve", 0, "ends")) < order.index(("train", 1, "ends"))
    assert records(run.root) == undisturbed[1]
    assert [summary.iteration for summary in summaries] == [0, 1, 2]


def test_a_round_is_one_iteration_behind_and_says_so(undisturbed: tuple[RunDirectory, dict[str, str]]) -> None:
    run, _ = undisturbed
    tasks = load_tasks(run)
    rounds = [read_json(run.iteration(number).round, RoundRecord) for number in range(ITERATIONS)]
    assert [one.task_set for one in rounds] == [None, 0, 1]
    admitted = [{task.id for task in tasks if task.admitted_at == number} for number in range(ITERATIONS)]
    assert admitted[0]
    for number in range(ITERATIONS):
        played = {one.task_id for one in read_jsonl(run.iteration(number).trajectories, Trajectory)}
        held = {task.id for task in tasks_at(tasks, max(0, number - 1))}
        assert played == held
    assert not admitted[0] & {one.task_id for one in read_jsonl(run.iteration(1).trajectories, Trajectory)}
    assert admitted[0] <= {one.task_id for one in read_jsonl(run.iteration(2).trajectories, Trajectory)}
    summaries = [read_json(run.iteration(number).summary, Summary) for number in range(ITERATIONS)]
    assert [one.tasks for one in summaries] == [one.tasks for one in rounds]
    assert all("exploration beside training: tasks of one iteration before" in one.labels for one in summaries)


def test_a_round_that_fails_stops_the_graph_and_resuming_gives_equal_records(
    undisturbed: tuple[RunDirectory, dict[str, str]], sides: Sides, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def failing(run: Run, iteration: int) -> AsyncIterator[None]:
        if iteration == 1:
            while not run.directory.iteration(0).contexts.exists():
                await asyncio.sleep(0.005)
            raise ChildFailure("training.run_round ended with status 1", 1, "")
        yield

    run = new_run(tmp_path / "run")
    sides.around["train"] = failing
    with pytest.raises(ChildFailure, match="status 1"):
        work_on(run)
    assert ("evolve", 0, "stopped") in sides.events
    assert not run.iteration(0).summary.exists()
    sides.around.clear()
    work_on(run, resumed=True)
    assert records(run.root) == undisturbed[1]


def test_a_graph_that_fails_stops_the_round_and_resuming_gives_equal_records(
    undisturbed: tuple[RunDirectory, dict[str, str]], sides: Sides, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def failing(run: Run, iteration: int) -> AsyncIterator[None]:
        yield
        if iteration == 0:
            run.directory.iteration(0).evolution.unlink()
            raise RepeatedFailure("5 questions of the reflector in a row failed")

    run = new_run(tmp_path / "run")

    @asynccontextmanager
    async def slow(run: Run, iteration: int) -> AsyncIterator[None]:
        await asyncio.sleep(60 if iteration == 1 else 0)
        yield

    sides.around = {"evolve": failing, "train": slow}
    with pytest.raises(RepeatedFailure, match="in a row failed"):
        work_on(run)
    assert ("train", 1, "stopped") in sides.events
    assert not run.iteration(1).round.exists()
    sides.around.clear()
    work_on(run, resumed=True)
    assert records(run.root) == undisturbed[1]


def test_a_signal_ends_both_sides(
    undisturbed: tuple[RunDirectory, dict[str, str]], sides: Sides, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def struck(run: Run, iteration: int) -> AsyncIterator[None]:
        if iteration == 1:
            while not run.directory.iteration(0).contexts.exists():
                await asyncio.sleep(0.005)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        yield

    run = new_run(tmp_path / "run")
    sides.around["train"] = struck
    with pytest.raises(Interrupted) as stopped:
        work_on(run)
    assert stopped.value.status == 143
    assert {("train", 1, "stopped"), ("evolve", 0, "stopped")} <= set(sides.events)
    sides.around.clear()
    work_on(run, resumed=True)
    assert records(run.root) == undisturbed[1]


def test_a_budget_that_a_graph_spends_stops_the_run_when_the_round_beside_it_is_done(
    sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    run = new_run(tmp_path / "run", "roles.abstractor={kind: chat, model: m}", "roles.budget.calls=1")

    @asynccontextmanager
    async def paying(run: Run, iteration: int) -> AsyncIterator[None]:
        cost = Request(
            role="abstractor", subject="s", iteration=iteration, outcome="failed", measured=Measured(calls=1)
        )
        Ledger(run.directory.spending_path, BudgetSettings()).add(cost)
        yield

    sides.around["evolve"] = paying
    summaries = work_on(run)
    assert [summary.iteration for summary in summaries] == [0]
    assert sides.events[-1][:2] in {("train", 1), ("evolve", 0)}
    assert run.iteration(1).round.exists()
    assert not run.iteration(1).signals.exists()
    # Still spent: nothing goes on, and what was trained is kept.
    events = len(sides.events)
    assert [summary.iteration for summary in work_on(run, resumed=True)] == [0]
    assert [one for one in sides.events[events:] if one[0] == "evolve"] == []


def test_a_run_without_its_tasks_is_refused(undisturbed: tuple[RunDirectory, dict[str, str]], sides: Sides) -> None:
    run, _ = undisturbed
    whole = run.tasks_path.read_bytes()
    last = max(task.admitted_at or 0 for task in load_tasks(run))
    assert last > 0
    try:
        write_jsonl(run.tasks_path, [task for task in load_tasks(run) if task.admitted_at != last])
        with pytest.raises(InputError, match=f"tasks of iteration {last + 1}, not"):
            work_on(run, resumed=True)
    finally:
        run.tasks_path.write_bytes(whole)
    assert [one.iteration for one in work_on(run, resumed=True)] == list(range(ITERATIONS))


def test_settings_of_an_earlier_version_have_no_such_section_and_train_on_their_own_tasks(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    text = settings.model_dump(mode="json")
    del text["evolution"]
    path = tmp_path / "settings.yaml"
    path.write_text(json.dumps(text))
    assert load_recipe(path) == settings
    assert not settings.evolution.concurrent
