"""What the charts and tables of a run show is what its records say."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import pytest
from support.made_run import first_tasks, rollouts

from environments.base import InputError
from graph.recipe import load_recipe
from graph.report.closing import iterations_table
from graph.report.effect import effect_table, finished_iterations
from graph.report.lineage import History
from graph.report.mistakes import first_story
from graph.report.run_charts import (
    ReadRound,
    ancestry,
    boundary_chart,
    forgetting_chart,
    generations_chart,
    groups_chart,
    rare_table,
    rounds,
)
from graph.report.story import chain_steps, task_story
from graph.report.summary import summarise
from graph.report.tables import story_table
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


def test_groups_have_the_results_of_their_rollouts(history: History) -> None:
    words = groups_chart(history, 0, tasks=5).words
    assert words.count("4 of 4, 2 of 4, 0 of 4") == 5  # as made_run plays them
    with pytest.raises(InputError, match=r"iteration 7 of .* has no rollout"):
        groups_chart(history, 7)


def test_the_effect_has_the_followed_tasks_and_the_controls(history: History) -> None:
    rows = {row[0].partition(" ")[0]: row[1:] for row in effect_table(history).rows}
    assert rows["weak"][0] == "0" or rows["weak"][3] == "0.00"  # equal plays in both rounds
    assert sum(int(row[1]) for row in effect_table(history).rows) == 4


def test_ancestors_are_told_from_the_first_weak_task(history: History) -> None:
    task = next(task for task in history.tasks.values() if task.admitted_at == 0)
    assert [chain.iteration for chain in ancestry(history, task.id)] == [0]
    words = generations_chart(history, tried_again(history.tasks.values())[-1].id).words
    assert "generation 0: 4 of 4, 2 of 4" in words
    assert "generation 1: 4 of 4, 2 of 4" in words
    assert ancestry(history, first_tasks()[0].id) == ()
    assert rounds(history) == {1: "round 0", 4: "round 1"}


def test_a_notebook_shows_the_story_as_a_table(history: History) -> None:
    followed = first_story(history)
    assert followed is not None
    chain = followed.chain
    shown = story_table(task_story(history, followed.task))
    steps = [row[0] for row in shown.rows if row[0]]
    assert steps == [
        "rollout", "signal", "reflection", "exploration", "drafts", "what it asks", "effect", *["weaknesses"] * (
            len(history.chains_from(followed.task.id)) > 0)
    ]  # fmt: skip
    text = repr(shown)
    for words in (followed.weak.turns[0], "wrong >", "[○]", "explore", chain.interactions[0].action.name):
        assert words in text
    for outcome in chain.outcomes:
        assert outcome.draft.id in text
    short = story_table(chain_steps(history, chain), most=3)
    assert max(sum(1 for _ in rows) for rows in split(short.rows)) == 3
    assert "rows more" in repr(short)


def split(rows: Iterable[tuple[str, ...]]) -> list[list[tuple[str, ...]]]:
    found: list[list[tuple[str, ...]]] = []
    for row in rows:
        if row[0]:
            found.append([])
        found[-1].append(row)
    return found


def test_the_table_of_the_iterations_holds_finished_ones_only(history: History) -> None:
    assert [row[0] for row in iterations_table(finished_iterations(history)).rows] == ["0"]


def test_signal_charts_mark_what_the_signals_mark(read: ReadRound) -> None:
    settings = SignalSettings(rare_percent=25, rare_min_patterns=4)
    found = read.extract(settings)
    counts = found.counts()
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
    shown = rare_table(read, found, settings)
    assert f"{len(rare)} patterns below theta / 100 * N = {line:.3g}" in shown.caption
    assert f"N = {len(patterns)} patterns" in shown.caption
    assert [row[2] for row in shown.rows].count("rare") == min(len(rare), 7)
    many = SignalSettings(rare_percent=60, rare_min_patterns=1000)
    assert "0 patterns below" in rare_table(read, read.extract(many), many).caption


def test_rounds_that_cannot_be_read_are_refused(read: ReadRound) -> None:
    with pytest.raises(InputError, match="no trajectories of iteration 5"):
        ReadRound.read(read.history, 5)
    nothing = SignalSettings(window=1)
    empty = read.extract(nothing).model_copy(update={"signals": ()})
    with pytest.raises(InputError, match="has no such signal"):
        forgetting_chart(read, empty, nothing)
