"""The two sides of the rollout and step benchmarks do the same work, and their figures become the right rows."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")

from benchmarks import chat_policy, grpo_step, rollouts
from benchmarks.chat_policy import CLASS, TOOLS, chat_tasks
from benchmarks.grpo_sides import OUR_ROLLOUTS, OURS, TRL, Figures
from benchmarks.trl_environment import environment_class
from environments.base import UserTurn
from environments.bfcl.environment import BFCLEnvironment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment() -> BFCLEnvironment:
    return BFCLEnvironment((CLASS,))


def test_the_references_of_the_tasks_succeed_and_single_calls_do_not(environment: BFCLEnvironment) -> None:
    for task in chat_tasks():
        results = []
        for calls in (task.reference[0], task.reference[0][:1]):
            episode = environment.open(task)
            episode.start()
            for call in calls:
                episode.step(call)
            episode.end_turn()
            results.append(episode.outcome().success)
        assert results == [True, False]
    assert len({task.turns for task in chat_tasks()}) == 8


def test_trl_acts_in_the_same_environment(environment: BFCLEnvironment) -> None:
    tasks = chat_tasks()
    tools = environment_class(environment, tasks)()
    public = [name for name in dir(tools) if not name.startswith("_")]
    assert sorted(public) == sorted([*TOOLS, "reset", "get_reward"])
    for task in (tasks[1], tasks[0]):
        tools.reset(task_id=task.id, prompt="ignored")
        assert tools.get_reward() == 0.0
        tools.reset(task_id=task.id)
        episode = environment.open(task)
        episode.start()
        for call in task.reference[0]:
            assert getattr(tools, call.name)(**call.arguments) == episode.step(call).text
        assert tools.get_reward() == 1.0


def test_both_sides_read_the_same_prompt(environment: BFCLEnvironment) -> None:
    from training.rendering.chat_template import ChatTemplateRendering
    from training.rendering.tool_calls import tool_schema

    specs = environment.tools(TOOLS)
    schemas = [tool_schema(spec) for spec in specs]
    conversations = [chat_policy._conversation(task) for task in chat_tasks()]
    tokenizer = chat_policy._tokenizer(conversations, schemas)
    for task in chat_tasks()[:2]:
        messages = [{"role": "user", "content": task.turns[0]}]
        trl = tokenizer.apply_chat_template([messages], tools=schemas, add_generation_prompt=True, return_dict=True)
        ours = ChatTemplateRendering(tokenizer).begin().first(UserTurn(index=0, text=task.turns[0], tools=TOOLS), specs)
        assert ours == trl["input_ids"][0]
        assert len(ours) < 1000


def figures(sampled: int, rollout: float, step: float) -> Figures:
    """CPU time is half of wall-clock time."""
    return Figures(
        rollouts=64,
        successes=32,
        sampled_tokens=sampled,
        prompt_tokens=6400,
        rollout_wall=rollout,
        rollout_cpu=rollout / 2,
        wall=step,
        cpu=step / 2,
    )


def interleaved(slow: float) -> Callable[..., dict[str, tuple[Figures, ...]]]:
    taken = {
        OURS: (figures(400, 2.0, 4.0),) * 3,
        TRL: (figures(200, 2.0 * slow, 4.0 * slow),) * 3,
        OUR_ROLLOUTS: (figures(400, 2.0, 6.0),) * 3,
    }
    return lambda work, sides, repeats: {side: taken[side][:repeats] for side in sides}


@pytest.mark.parametrize(("slow", "ratio", "met"), [(1.0, 2.0, True), (0.6, 1.2, False)])
def test_rows_of_the_rollout_phase(slow: float, ratio: float, met: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "interleaved", interleaved(slow))
    monkeypatch.setattr(rollouts, "_embedded", lambda repeats: None)
    wall, cpu, _ = rollouts.measure(2)
    assert (wall.ours, cpu.ours) == (200.0, 400.0)
    assert wall.ratio == cpu.ratio == pytest.approx(ratio)
    assert wall.met is cpu.met is met
    assert "prompts of 100 tokens" in wall.note


@pytest.mark.process
def test_the_embedded_policy_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "TASKS", 1)
    monkeypatch.setattr(rollouts, "K", 2)
    row = rollouts._embedded(repeats=1)
    assert row.ours > 0
    assert row.ratio is row.other is row.met is None
    assert "2 rollouts" in row.note


@pytest.mark.parametrize(("slow", "ratio", "met"), [(2.0, 0.5, True), (1.0, 1.0, False)])
def test_rows_of_the_step(slow: float, ratio: float, met: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpo_step, "interleaved", interleaved(slow))
    wall, cpu, optimisation = grpo_step.measure(3)
    assert (wall.ours, wall.other) == (4.0, 4.0 * slow)
    assert wall.ratio == cpu.ratio == pytest.approx(ratio)
    assert wall.met is cpu.met is met
    assert (optimisation.ours, optimisation.other) == (1.0, 2.0)
    assert optimisation.repeats == 3
