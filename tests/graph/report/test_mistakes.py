"""The expected call beside the wrong one, and the task of a run that is followed first."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from environments.base import MalformedCall, ToolCall
from graph.report.lineage import Chain, History
from graph.report.stories import first_story
from graph.report.story import mistake_of
from graph.show import app
from memory.records import Cause
from memory.run import RunDirectory


@pytest.fixture(scope="module")
def history(evolved: RunDirectory) -> History:
    return History.read(evolved)


@pytest.fixture(scope="module")
def by_cause(history: History) -> dict[Cause | None, Chain]:
    return {chain.context.cause: chain for chain in reversed(history.chains.values())}


def test_the_expected_call_is_beside_what_was_written(history: History, by_cause: dict[Cause, Chain]) -> None:
    for cause in (Cause.MALFORMED, Cause.STOPPED_EARLY, Cause.WRONG_ARGUMENT):
        chain = by_cause[cause]
        assert chain.weak is not None
        found = mistake_of(history, chain)
        assert found is not None
        assert found.expected in chain.weak.reference[chain.context.where[0]]
        assert found.expected.name == chain.context.tool
        if cause is Cause.STOPPED_EARLY:
            assert found.wrong is None
            continue
        assert found.wrong is not None
        assert isinstance(found.wrong.action, MalformedCall if cause is Cause.MALFORMED else ToolCall)
        assert found.wrong.action != found.expected


def test_a_call_that_was_made_before_is_not_expected_again(history: History, by_cause: dict[Cause, Chain]) -> None:
    chain = by_cause[Cause.WRONG_ARGUMENT]
    found = mistake_of(history, chain)
    assert chain.weak is not None
    assert found is not None
    played = history.trajectory(chain.context.trajectory_id).turns[chain.context.where[0]].steps
    made = next(step.action for step in played if not step.observation.failed)
    assert isinstance(made, ToolCall)
    context = chain.context.model_copy(update={"where": (chain.context.where[0], len(played)), "tool": made.name})
    weak = chain.weak.model_copy(update={"reference": ((made,),)})
    assert mistake_of(history, replace(chain, context=context, weak=weak)) is None
    again = weak.model_copy(update={"reference": ((made, made),)})
    expected = mistake_of(history, replace(chain, context=context, weak=again))
    assert expected is not None
    assert (expected.wrong, expected.expected) == (None, made)


@pytest.mark.parametrize(
    "changed",
    [
        {"cause": Cause.UNSTABLE},
        {"cause": Cause.SUPERFLUOUS_CALL},
        {"cause": None},
        {"tool": "not_in_the_reference"},
        {"where": (7, 0)},
        {"where": (-1, 0)},
        {"where": (0, -1)},
        {"rollout": None},
        {"weak": None},
        {"success": True},
        {"success": None},
        {"expected": "as written"},
    ],
    ids=str,
)
def test_nothing_is_expected(history: History, by_cause: dict[Cause, Chain], changed: dict[str, Any]) -> None:
    chain = by_cause[Cause.WRONG_ARGUMENT]
    assert chain.rollout is not None
    assert chain.weak is not None
    if "success" in changed:
        chain = replace(chain, rollout=chain.rollout.model_copy(update=changed))
    elif "expected" in changed:
        found = mistake_of(history, chain)
        assert found is not None
        assert found.wrong is not None
        chain = replace(chain, weak=chain.weak.model_copy(update={"reference": ((found.wrong.action,),)}))
    elif changed.keys() <= {"rollout", "weak"}:
        chain = replace(chain, **changed)
    else:
        chain = replace(chain, context=chain.context.model_copy(update=changed))
    assert mistake_of(history, chain) is None


def test_the_story_is_about_the_tool_of_the_mistake_whatever_came_of_it(
    grown_run: RunDirectory, tmp_path: Path
) -> None:
    history = History.read(grown_run)
    story = first_story(history)
    assert story is not None
    assert story.mistake is not None
    assert not isinstance(getattr(story.mistake.wrong, "action", None), MalformedCall)
    assert story.mistake.expected.name in {call.name for turn in story.task.reference for call in turn}
    assert story.task in story.chain.admitted
    weak = story.chain.weak
    assert weak is not None
    made = story.task.admitted_at
    assert made is not None
    assert max(history.course(weak.id)) > made
    assert history.course(story.task.id)
    turned = RunDirectory(shutil.copytree(grown_run.root, tmp_path / "turned"))
    for number in history.iterations[made + 1 :]:
        path = turned.iteration(number).trajectories
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["outcome"]["success"] = True
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    other = first_story(History.read(turned))
    assert other is not None
    assert other.task == story.task
    assert History.read(turned).course(story.task.id) != history.course(story.task.id)


def test_without_a_wrong_call_the_next_best_task_is_followed(grown_run: RunDirectory) -> None:
    history = History.read(grown_run)
    for name, chain in history.chains.items():
        history.chains[name] = replace(chain, context=chain.context.model_copy(update={"cause": Cause.UNSTABLE}))
    story = first_story(history)
    assert story is not None
    assert story.mistake is None
    assert story.chain.signal is not None
    assert story.chain.signal.kind != "rare"
    history.chains.clear()
    assert first_story(history) is None


def test_show_has_the_expected_call_beside_the_wrong_one(
    history: History, evolved: RunDirectory, by_cause: dict[Cause, Chain], capsys: pytest.CaptureFixture[str]
) -> None:
    for cause in (Cause.STOPPED_EARLY, Cause.WRONG_ARGUMENT):
        chain = by_cause[cause]
        app([chain.context.id, "--run", str(evolved.root)], standalone_mode=False)
        lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.strip()]
        (row,) = [rest for word, *rest in lines if word == "expected"]
        found = mistake_of(history, chain)
        assert found is not None
        assert row[0].startswith(f"{found.expected.name}(")
