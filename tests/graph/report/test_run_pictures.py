"""What the charts and tables of a run show is what its records say."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.made_run import first_tasks, rollouts

from environments.base import InputError
from graph.iteration import iteration_graph
from graph.recipe import load_recipe
from graph.report.lineage import History
from graph.report.record_tables import (
    context_table,
    costs_table,
    deduplication_table,
    drafts_table,
    exploration_table,
    iterations_table,
    lineage_table,
    rollout_table,
)
from graph.report.run_charts import (
    ancestry,
    course_chart,
    deepest,
    effect_chart,
    estimate,
    flow_chart,
    followable,
    generations_chart,
    groups_chart,
    held_out_chart,
    origins_chart,
    refusals_chart,
    rounds,
    seconds_chart,
    success_chart,
)
from graph.report.signal_charts import (
    ReadRound,
    boundary_chart,
    forgetting_chart,
    kinds_chart,
    rare_chart,
)
from graph.report.summary import summarise
from graph.report.tables import Table
from memory.records import Task
from memory.run import RunDirectory, write_json, write_jsonl
from memory.tasks import load_tasks
from training.signal_settings import SignalSettings


@pytest.fixture(scope="module")
def run(evolved: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Two rounds, the graph after the first: the weak tasks and one task that came of each are tried again."""
    run = RunDirectory(tmp_path_factory.mktemp("pictures") / "run")
    shutil.copytree(evolved.root, run.root)
    write_json(run.iteration(0).summary, summarise(run, load_recipe(run.settings_path), 0))
    write_jsonl(run.iteration(1).trajectories, rollouts(tried_again(load_tasks(run)), 1))
    return run


def tried_again(tasks: Iterable[Task]) -> list[Task]:
    added = [task for task in tasks if task.admitted_at is not None and task.reference[0][0].arguments]
    return [*first_tasks()[:4], *added[:4]]


@pytest.fixture(scope="module")
def history(run: RunDirectory) -> History:
    return History.read(run)


@pytest.fixture(scope="module")
def read(history: History) -> ReadRound:
    return ReadRound.read(history, 0)


def test_an_estimate_counts_tasks_and_stays_within_0_and_1() -> None:
    assert estimate([0.5]) == (0.5, None, 1)
    value, interval, n = estimate([1.0, 1.0, 0.0, 1.0])
    assert (value, n) == (0.75, 4)
    assert interval is not None
    assert interval[0] == 0.0 < value < interval[1] == 1.0


def test_groups_have_the_results_of_their_rollouts(history: History) -> None:
    words = groups_chart(history, 0, tasks=5).words
    assert words.count("4 of 4, 2 of 4, 0 of 4") == 5  # as made_run plays them
    with pytest.raises(InputError, match=r"iteration 7 of .* has no rollout"):
        groups_chart(history, 7)


def test_the_graph_is_drawn_with_what_flowed_through_it(history: History) -> None:
    chart = flow_chart(history, 0, iteration_graph().compile().get_graph(xray=True))
    chains = [chain for chain in history.chains.values() if chain.iteration == 0]
    drafts = sum(len(chain.outcomes) for chain in chains)
    admitted = sum(len(chain.admitted) for chain in chains)
    for words in (
        f"extract: {len(history.signals)} signals",
        f"reflect: {len(chains)} contexts",
        f"abstract: {drafts} drafts",
        f"update: {admitted} new tasks",
        "extract -> reflect",
        "verify -> update",
    ):
        assert words in chart.words
    assert "__" not in chart.svg
    with pytest.raises(InputError, match=r"the graph of iteration 1 .* is not done"):
        flow_chart(history, 1, iteration_graph().compile().get_graph(xray=True))


def test_a_followable_chain_reaches_into_a_later_round(history: History) -> None:
    chain = followable(history)
    assert chain.rollout is not None
    assert chain.rollout.success is False
    assert history.course(chain.context.task_id).after(0)
    assert any(history.course(task.id).after(0) for task in chain.admitted)
    assert followable(history) == chain
    with pytest.raises(InputError, match="no weakness of iteration 1"):
        followable(history, 1)


def test_the_course_has_the_weak_task_and_what_came_of_it(history: History) -> None:
    chain = followable(history)
    chart = course_chart(history, chain)
    played = [task for task in chain.admitted if history.groups.get(task.id)]
    assert chart.words.count("new task") == len(played) > 0
    assert chart.svg.count('stroke="#d55e00"') == 1  # the rollout that the story began with


def test_the_effect_has_the_followed_tasks_and_the_controls(run: RunDirectory, history: History) -> None:
    words = effect_chart(history).words
    assert "followed up: 0.50" in words
    assert "before, 0.50 (0.50 to 0.50) after +0.00 (+0.00 to +0.00)" in words  # equal plays in both rounds
    followed = {chain.context.task_id for chain in history.chains.values() if chain.iteration == 0}
    marked = {signal.task_id for signal in history.signals.values()}
    both = {task.id for task in first_tasks()[:4]}
    assert ("a signal, left out" in words) is bool(both & (marked - followed))
    with pytest.raises(InputError, match="no task of iteration 1"):
        effect_chart(history, 1)


def test_success_by_step_and_by_origin(history: History) -> None:
    assert "success: 1.00 (1.00 to 1.00) at 1, 0.50 (0.50 to 0.50) at 2, 0.00 (0.00 to 0.00) at 3" in (
        success_chart(history).words
    )
    assert "mixed groups: 0.00 (0.00 to 0.00) at 1, 1.00 (1.00 to 1.00) at 2" in success_chart(history).words
    words = origins_chart(history).words
    assert "first tasks: 0.50 (0.50 to 0.50) at 0, 0.50 (0.50 to 0.50) at 1" in words
    added = [history.course(task.id).by_iteration[1][0] for task in tried_again(history.tasks.values())[4:]]
    assert f"added tasks: {sum(added) / len(added):.2f} (" in words
    assert rounds(history) == {1: "round 0", 4: "round 1"}


def test_many_steps_share_points(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph.report.run_charts._MOST_POINTS", 3)
    chart = success_chart(history)
    assert "each point: 2 steps" in chart.svg
    assert "success: 0.75" in chart.words


def test_refusals_and_seconds_are_counted(history: History) -> None:
    verifications = [one.verification for chain in history.chains.values() for one in chain.outcomes]
    accepted = sum(one is not None and one.accepted for one in verifications)
    assert f"accepted: {accepted}" in refusals_chart(history).words
    assert "train: 12 s" in seconds_chart(history).words


def test_held_out_scores_are_drawn_or_said_to_be_missing(history: History) -> None:
    assert isinstance(held_out_chart(history), Table)


def test_ancestors_are_told_from_the_first_weak_task(history: History) -> None:
    task = deepest(history)
    chains = ancestry(history, task.id)
    assert [chain.iteration for chain in chains] == [0]
    lines = repr(lineage_table(history, task.id)).splitlines()
    assert [line.split()[1] for line in lines[1:]] == [
        "weak", "signal", "context", "exploration", "draft", "verification", "new"
    ]  # fmt: skip
    assert task.id in lines[-1]
    words = generations_chart(history, tried_again(history.tasks.values())[-1].id).words
    assert "generation 0: 4 of 4, 2 of 4" in words
    assert "generation 1: 4 of 4, 2 of 4" in words
    assert ancestry(history, first_tasks()[0].id) == ()


def test_tables_of_a_chain_hold_its_records(history: History) -> None:
    chain = followable(history)
    assert chain.weak is not None
    assert chain.rollout is not None
    shown = repr(rollout_table(chain.weak, history.trajectory(chain.rollout.id)))
    assert all(call.name in shown for call in chain.weak.reference[0])
    assert chain.weak.turns[0] in shown
    assert chain.context.signature() in repr(context_table(chain.context))
    assert "new" in repr(deduplication_table(chain.deduplication))
    assert "not asked" in repr(deduplication_table(None))
    assert len(drafts_table(chain).rows) == len(chain.outcomes)
    assert len(exploration_table(chain, limit=3).rows) == 3
    assert f"the first 3 of {len(chain.interactions)} actions" in exploration_table(chain, limit=3).caption


def test_tables_of_the_iterations_hold_finished_ones_only(history: History) -> None:
    assert [row[0] for row in iterations_table(history).rows] == ["0"]
    assert [row[0] for row in costs_table(history).rows] == ["0"]


def test_signal_charts_mark_what_the_signals_mark(read: ReadRound) -> None:
    settings = SignalSettings(rare_percent=25, rare_min_patterns=4)
    found = read.extract(settings)
    counts = found.counts()
    assert f"forgetting: {counts['forgetting']} on" in kinds_chart(found).words
    framed = forgetting_chart(read, found, settings, tasks=99).svg.count('stroke="#d55e00"')
    assert framed == counts["forgetting"] > 0
    boundary = boundary_chart(read, found, tasks=99)
    assert boundary.svg.count('stroke="#d55e00"') == counts["boundary"] > 0


def test_rare_patterns_lie_below_the_line(read: ReadRound) -> None:
    settings = SignalSettings(rare_percent=60, rare_min_patterns=2)
    found = read.extract(settings)
    patterns = read.pattern_counts(found)
    line = 0.6 * len(patterns)
    rare = [one for one, count in patterns.items() if 2 <= count < line]
    assert {signal.pattern for signal in found.signals if signal.kind == "rare"} == set(rare)
    chart = rare_chart(read, found, settings)
    assert f"{len(rare)} patterns below the line" in chart.words
    assert f"N = {len(patterns)} patterns" in chart.words
    many = SignalSettings(rare_percent=60, rare_min_patterns=1000)
    assert "Rare: 0 patterns below" in rare_chart(read, read.extract(many), many).words


def test_rounds_that_cannot_be_read_are_refused(tmp_path: Path, run: RunDirectory, read: ReadRound) -> None:
    with pytest.raises(InputError, match="no trajectories of iteration 5"):
        ReadRound.read(read.history, 5)
    nothing = SignalSettings(window=1)
    empty = read.extract(nothing).model_copy(update={"signals": ()})
    with pytest.raises(InputError, match="has no such signal"):
        forgetting_chart(read, empty, nothing)
    shutil.copytree(run.root, tmp_path / "bare")
    bare = RunDirectory.open(tmp_path / "bare")
    shutil.rmtree(bare.iterations_path)
    with pytest.raises(InputError, match="has no rollout yet"):
        success_chart(History.read(bare))
