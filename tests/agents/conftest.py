"""Attempts at tasks that really ran, for whoever reads or explores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from environments.base import Action, Environment, StartState, TaskSpec, ToolCall
from environments.settings import EnvironmentSettings
from memory.records import (
    Evidence,
    FailureContext,
    Signal,
    SignalKind,
    Step,
    Task,
    Trajectory,
    TrajectoryTurn,
)

Attempt = Callable[..., Evidence]

CAR_STATE = {
    "fuelLevel": 10.0,
    "batteryVoltage": 12.6,
    "engineState": "stopped",
    "doorStatus": dict.fromkeys(("driver", "passenger", "rear_left", "rear_right"), "unlocked"),
    "parkingBrakeStatus": "released",
    "destination": "None",
    "distanceToNextVehicle": 50.0,
    "acTemperature": 25.0,
}
FILES_STATE = {
    "root": {
        "home": {
            "type": "directory",
            "contents": {
                "notes.txt": {"type": "file", "content": "alpha beta gamma"},
                "papers": {
                    "type": "directory",
                    "contents": {
                        "draft.txt": {"type": "file", "content": "first line\nsecond line"},
                        "final.txt": {"type": "file", "content": "final words"},
                    },
                },
            },
        }
    }
}
STATES = {"VehicleControlAPI": CAR_STATE, "GorillaFileSystem": FILES_STATE}


@pytest.fixture(scope="session")
def environment() -> Environment:
    return EnvironmentSettings().open()


@pytest.fixture(scope="session")
def car_start(environment: Environment) -> StartState:
    return _start(environment, "VehicleControlAPI")


@pytest.fixture(scope="session")
def files_start(environment: Environment) -> StartState:
    return _start(environment, "GorillaFileSystem")


def _start(environment: Environment, name: str) -> StartState:
    like = next(start for start in environment.starts() if start.classes == (name,))
    return like.model_copy(update={"id": f"made-{name}", "initial_state": {name: STATES[name]}})


@pytest.fixture
def attempt(environment: Environment, car_start: StartState, files_start: StartState) -> Attempt:
    """``attempt(reference, actions, ...)``: the evidence of an attempt that was played in the environment.

    ``reference`` and ``actions`` hold one sequence a turn; the class is guessed from the first reference call.
    """

    def play(
        reference: Sequence[Sequence[ToolCall]],
        actions: Sequence[Sequence[Action]],
        *,
        texts: Sequence[str] | None = None,
        setup: Sequence[ToolCall] = (),
        kind: SignalKind = SignalKind.BOUNDARY,
        pattern: tuple[str, ...] = (),
    ) -> Evidence:
        start = car_start if reference[0][0].name in car_start.tools else files_start
        task = Task(
            id="task-made",
            origin="seed",
            environment="bfcl",
            split="train",
            classes=start.classes,
            turns=tuple(texts or ["Do it."] * len(reference)),
            initial_state=start.initial_state,
            setup=tuple(setup),
            tools=start.tools,
            reference=tuple(tuple(calls) for calls in reference),
        )
        trajectory = _played(environment, task, actions)
        signal = Signal(
            id=f"signal-{kind}",
            kind=kind,
            iteration=0,
            task_id=task.id,
            trajectory_id=trajectory.id,
            successful_evidence=trajectory.success,
            pattern=pattern,
        )
        return Evidence(signal=signal, task=task, trajectory=trajectory)

    return play


def _played(environment: Environment, task: TaskSpec, actions: Sequence[Sequence[Action]]) -> Trajectory:
    turns = []
    with closing(environment.open(task)) as episode:
        turn = episode.start()
        for sequence in actions:
            assert turn is not None
            steps = tuple(Step(action=action, observation=episode.step(action)) for action in sequence)
            turns.append(TrajectoryTurn(text=turn.text, steps=steps, ended=True))
            turn = episode.end_turn()
        outcome = episode.outcome()
    return Trajectory(
        id="trajectory-made",
        task_id="task-made",
        iteration=0,
        step=0,
        sample=0,
        turns=tuple(turns),
        outcome=outcome,
        reward=float(outcome.success),
    )


@pytest.fixture
def make_context() -> Callable[..., FailureContext]:
    """``make_context(start, tool, **changes)``: a context about one tool at a start state."""

    def make(start: StartState, tool: str, **changes: object) -> FailureContext:
        fields = {
            "id": f"context-{tool}-{start.id}",
            "kind": SignalKind.BOUNDARY,
            "environment": start.environment,
            "tool": tool,
            "explore": (tool,),
            "classes": start.classes,
            "initial_state": start.initial_state,
            "tools": start.tools,
        }
        return FailureContext.model_validate(fields | changes)

    return make
