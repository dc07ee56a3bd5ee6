"""Small tasks of BFCL's car and file system, and trajectories that are really acted out in an environment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing

from pydantic import JsonValue

from environments.base import Action, Environment, StartState, TaskSpec, ToolCall, UserTurn
from environments.bfcl.benchmark import BFCLEnvironment, BFCLEpisode
from environments.bfcl.official import tool_names
from environments.bfcl.templated.wordings import render_task
from environments.verification.replay import bare_task
from memory.jsonl import record_id
from memory.records import Draft, Step, Task, Trajectory, TrajectoryTurn

CAR, FILES = "VehicleControlAPI", "GorillaFileSystem"
ENVIRONMENT = BFCLEnvironment((FILES, CAR))
TOOLS = {tool.name: tool for tool in ENVIRONMENT.tools(tool_names((FILES, CAR)))}
STARTS: dict[str, dict[str, JsonValue]] = {
    CAR: {"fuelLevel": 10.0},
    FILES: {"root": {"home": {"type": "directory", "contents": {}}}},
}


def call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall.model_validate({"name": name, "arguments": arguments})


LOCK = call("lockDoors", unlock=False, door=["driver", "passenger", "rear_left", "rear_right"])
PRESS = call("pressBrakePedal", pedalPosition=1.0)
START = call("startEngine", ignitionMode="START")
LIGHTS, DARK = call("setHeadlights", mode="on"), call("setHeadlights", mode="off")
FUEL = call("displayCarStatus", option="fuel")
MKDIR = call("mkdir", dir_name="a")


def task_of(*reference: Sequence[ToolCall], **changes: object) -> TaskSpec:
    """A task of the class of its first known call, the car's where it has none, with ``changes`` of its fields."""
    homes = [TOOLS[one.name].group for calls in reference for one in calls if one.name in TOOLS]
    home = homes[0] if homes else CAR
    fields = {
        "environment": "bfcl",
        "split": "train",
        "classes": (home,),
        "turns": tuple(f"turn {number}" for number in range(len(reference))),
        "initial_state": {home: STARTS[home]},
        "tools": tool_names([home]),
        "reference": tuple(map(tuple, reference)),
    }
    return TaskSpec.model_validate(fields | changes)


def rendered(cls: str, *reference: Sequence[ToolCall], seed: int = 0) -> TaskSpec:
    """A task from the first training start of the class, whose turns are written with draws of ``seed``."""
    start = next(start for start in ENVIRONMENT.starts() if start.classes == (cls,))
    turns = {"turns": ("",) * len(reference), "reference": tuple(map(tuple, reference))}
    return render_task(ENVIRONMENT, bare_task(start).model_copy(update=turns), random.Random(seed))


def seed_task(spec: TaskSpec, name: str) -> Task:
    """The task as a member of D_0."""
    return Task(**dict(spec), id=name, origin="seed")


def two_turns(start: StartState, setup: tuple[ToolCall, ...] = ()) -> Draft:
    """A draft on a start of the car: 5 gallons, then the doors."""
    fields = {
        "turns": ("Add 5 gallons.", "Lock all the doors."),
        "setup": setup,
        "reference": ((call("fillFuelTank", fuelAmount=5.0),), (LOCK,)),
    }
    return Draft(**(dict(bare_task(start)) | fields), id="draft-made", context_id="context-made")


def started(task: TaskSpec, max_steps: int = 20) -> tuple[BFCLEpisode, UserTurn]:
    episode = BFCLEnvironment(max_steps=max_steps).open(task)
    return episode, episode.start()


def acted_out(
    task: TaskSpec,
    *turns: Sequence[Action],
    environment: Environment = ENVIRONMENT,
    iteration: int = 0,
    step: int = 1,
    sample: int = 0,
    cut_off: bool = False,
) -> Trajectory:
    """Return what happens when ``turns``, the actions of each user turn, are played in a fresh episode.

    A rollout without a policy, of ten tokens an action. ``cut_off``: a limit ended it before its last turn was ended.
    """
    name = task.id if isinstance(task, Task) else "t"
    played = []
    with closing(environment.open(task)) as episode:
        shown = episode.start()
        for number, actions in enumerate(turns):
            steps = tuple(Step(action=action, observation=episode.step(action)) for action in actions)
            ended = number + 1 < len(turns) or not cut_off
            played.append(TrajectoryTurn(text=shown.text, guidelines=shown.guidelines, steps=steps, ended=ended))
            shown = (episode.end_turn() if ended else None) or shown
        outcome = episode.outcome()
    return Trajectory(
        id=record_id("trajectory", name, step, sample),
        task_id=name,
        iteration=iteration,
        step=step,
        sample=sample,
        turns=tuple(played),
        outcome=outcome,
        reward=float(outcome.success),
        sampled_tokens=10 * sum(map(len, turns)),
    )
