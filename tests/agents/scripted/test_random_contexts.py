"""Contexts of uniformly drawn calls: what they hold, and what they must not know."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from environments.base import Environment, MalformedCall, ObservationStatus, ToolCall
from graph.unsignalled import random_contexts
from memory.records import FailureContext, Step, Task, Trajectory, Unsignalled

ROUND = {
    "lights": (
        [[ToolCall(name="setHeadlights", arguments={"mode": "on"})]],
        [
            [[ToolCall(name="setHeadlights", arguments={"mode": "on"})]],
            [
                [
                    ToolCall(name="displayCarStatus", arguments={"option": "fuel"}),
                    ToolCall(name="setHeadlights", arguments={"mode": "disco"}),
                ]
            ],
        ],
    ),
    "engine": (
        [
            [
                ToolCall(name="lockDoors", arguments={"unlock": False, "door": ["driver"]}),
                ToolCall(name="startEngine", arguments={"ignitionMode": "START"}),
            ]
        ],
        [
            [[ToolCall(name="startEngine", arguments={"ignitionMode": "START"})]],
            [
                [
                    MalformedCall(text="start(", reason="unclosed"),
                    ToolCall(name="fillFuelTank", arguments={"fuelAmount": 5}),
                ]
            ],
        ],
    ),
    "folders": (
        [
            [ToolCall(name="mkdir", arguments={"dir_name": "plans"})],
            [ToolCall(name="cd", arguments={"folder": "plans"})],
        ],
        [
            [
                [ToolCall(name="mkdir", arguments={"dir_name": "plans"})],
                [ToolCall(name="cat", arguments={"file_name": "nothing.txt"})],
            ]
        ],
    ),
    "silent": ([[ToolCall(name="fillFuelTank", arguments={"fuelAmount": 9})]], [[[]]]),
}


@pytest.fixture
def tasks_and_round(attempt) -> tuple[dict[str, Task], list[Trajectory]]:
    tasks, trajectories = {}, []
    for task_id, (reference, plays) in ROUND.items():
        for sample, actions in enumerate(plays):
            made = attempt(reference, actions)
            tasks[task_id] = made.task.model_copy(update={"id": task_id})
            changes = {"id": f"{task_id}/{sample}", "task_id": task_id, "sample": sample}
            trajectories.append(made.trajectory.model_copy(update=changes))
    return tasks, trajectories


def drawn(made, environment: Environment, count: int, seed: int = 1, trajectories=None) -> tuple[FailureContext, ...]:
    tasks, played = made
    return random_contexts(trajectories or played, tasks, environment, count, seed, iteration=2)


def told_otherwise(trajectory: Trajectory) -> Trajectory:
    """The same calls in a world where every outcome is the other one and every error has another text."""

    def other(step: Step) -> Step:
        if step.observation.status is not ObservationStatus.ERROR:
            return step
        return step.model_copy(update={"observation": step.observation.model_copy(update={"text": "something else"})})

    turns = tuple(
        turn.model_copy(update={"steps": tuple(other(step) for step in turn.steps)}) for turn in trajectory.turns
    )
    assert trajectory.outcome is not None
    outcome = trajectory.outcome.model_copy(update={"success": not trajectory.success, "failure": "made up"})
    return trajectory.model_copy(update={"turns": turns, "outcome": outcome, "reward": 1.0 - (trajectory.reward or 0)})


def test_a_context_is_the_place_of_a_call_that_ran(tasks_and_round, environment) -> None:
    tasks, trajectories = tasks_and_round
    by_id = {one.id: one for one in trajectories}
    contexts = drawn(tasks_and_round, environment, 50)
    assert len(contexts) == 7  # the different calls of each task
    for context in contexts:
        turn, step = context.where
        (call,) = by_id[context.trajectory_id].turns[turn].steps[step].observation.calls
        task = tasks[context.task_id]
        assert (context.kind, context.cause, context.error_class, context.signal_id) == (
            Unsignalled.RANDOM,
            None,
            "",
            "",
        )
        assert context.iteration == 2
        assert context.tool == call.name == context.explore[0]
        assert {each.name for calls in task.reference for each in calls} <= set(context.explore) <= set(task.tools)
        assert len(context.explore) > len({context.tool, *(each.name for calls in task.reference for each in calls)})
        assert context.setup == tuple(each for calls in task.reference[:turn] for each in calls)
        assert (context.classes, context.initial_state, context.tools) == (task.classes, task.initial_state, task.tools)
    assert len({context.id for context in contexts}) == len(contexts)
    assert list(contexts) == sorted(contexts, key=lambda context: context.id)


def test_no_failure_leaks_into_a_context(tasks_and_round, environment) -> None:
    _, trajectories = tasks_and_round
    otherwise = [told_otherwise(one) for one in trajectories]
    assert any(one != other for one, other in zip(trajectories, otherwise, strict=True))
    for seed in range(5):
        contexts = drawn(tasks_and_round, environment, 50, seed)
        assert contexts == drawn(tasks_and_round, environment, 50, seed, trajectories=otherwise)
        text = " ".join((one.how + one.why + " ".join(one.facts)) for one in contexts)
        assert "rror" not in text
        assert "start(" not in text


def test_what_a_call_that_worked_was_answered_is_a_fact(tasks_and_round, environment) -> None:
    facts = {context.tool: context.facts for context in drawn(tasks_and_round, environment, 50)}
    assert any(fact.startswith("observed=") for fact in facts["displayCarStatus"])
    assert facts["startEngine"] == ('ignitionMode="START"',)


def test_every_task_is_drawn_once_before_any_is_drawn_twice(tasks_and_round, environment) -> None:
    for seed in range(8):
        counts = [Counter(one.task_id for one in drawn(tasks_and_round, environment, n, seed)) for n in (2, 3, 5)]
        assert [sorted(count.values()) for count in counts[:2]] == [[1, 1], [1, 1, 1]]
        assert counts[2].total() == 5
        assert set(counts[2]) == {"lights", "engine", "folders"}


def test_the_draw_is_the_seeds_and_no_order_matters(tasks_and_round, environment) -> None:
    _, trajectories = tasks_and_round
    shuffled = random.Random(1).sample(trajectories, len(trajectories))
    one = drawn(tasks_and_round, environment, 3, seed=4)
    assert one == drawn(tasks_and_round, environment, 3, seed=4, trajectories=shuffled)
    others = {tuple((c.task_id, c.tool) for c in drawn(tasks_and_round, environment, 3, seed)) for seed in range(8)}
    assert len(others) > 2


def test_calls_are_drawn_as_often_as_they_were_made(tasks_and_round, environment) -> None:
    """Of the three calls of ``lights`` two are of setHeadlights: well or wrong, they count alike."""
    tasks, trajectories = tasks_and_round
    lights = [one for one in trajectories if one.task_id == "lights"]
    tools = Counter(random_contexts(lights, tasks, environment, 1, seed, 0)[0].tool for seed in range(300))
    assert 160 < tools["setHeadlights"] < 240
    assert tools.total() == 300


def test_nothing_is_drawn_of_an_infrastructure_error(tasks_and_round, environment) -> None:
    _, trajectories = tasks_and_round
    broken = [one.model_copy(update={"infrastructure_error": "worker died", "outcome": None}) for one in trajectories]
    assert drawn(tasks_and_round, environment, 5, trajectories=broken) == ()
