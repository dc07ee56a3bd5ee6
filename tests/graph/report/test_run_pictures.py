"""What the tables of a run show is what its records say."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import pytest
from support.made_run import first_tasks, rollouts

from environments.base import InputError
from graph.recipe import load_recipe
from graph.report.effect import finished_iterations, weak_tasks
from graph.report.lineage import History
from graph.report.stories import first_story
from graph.report.story import chain_steps, effect_steps, task_story
from graph.report.summary import summarise
from graph.report.tables import groups_table, iterations_table, story_table
from memory.records import Task
from memory.run import RunDirectory, write_json, write_jsonl
from memory.tasks import load_tasks


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


def test_groups_have_the_results_of_their_rollouts(history: History) -> None:
    shown = groups_table(history, 0, tasks=5)
    assert shown.columns == ("task", "step 1", "step 2", "step 3")
    assert [row[1:] for row in shown.rows] == [("●●●●", "●●○○", "○○○○")] * 5  # as made_run plays them
    with pytest.raises(InputError, match=r"iteration 7 of .* has no rollout"):
        groups_table(history, 7)


def test_weak_tasks_that_were_tried_again_are_pairs(history: History) -> None:
    assert weak_tasks(history).count(" pair") == 2


def test_a_notebook_shows_the_story_as_a_table(history: History) -> None:
    followed = first_story(history)
    assert followed is not None
    chain = followed.chain
    assert chain.weak is not None
    shown = story_table(task_story(history, followed.task))
    steps = [row[0] for row in shown.rows if row[0]]
    assert steps == [
        "rollout", "signal", "reflection", "exploration", "drafts", "what it asks", "effect", *["weaknesses"] * (
            len(history.chains_from(followed.task.id)) > 0)
    ]  # fmt: skip
    text = repr(shown)
    for words in (chain.weak.turns[0], "wrong >", "[○]", "explore", chain.interactions[0].action.name):
        assert words in text
    for outcome in chain.outcomes:
        assert outcome.draft.id in text
    effect = repr(story_table(effect_steps(history, chain)))
    assert all(dots in effect for group in history.groups[followed.task.id] for dots in [group.dots()])
    assert f"{chain.weak.id}: {history.course(chain.weak.id)[0][0]:.0%} of " in effect
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
