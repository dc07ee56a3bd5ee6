"""Trajectories that were really acted out in the BFCL environment, for the tests of what is read from them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from environments.base import Action, Environment, MalformedCall, TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import tool_names
from memory.records import Step, Trajectory, TrajectoryTurn

CAR, FILES = "VehicleControlAPI", "GorillaFileSystem"
BFCL = BFCLEnvironment((FILES, CAR))
TOOLS = {tool.name: tool for tool in BFCL.tools(tool_names((FILES, CAR)))}
STARTS = {CAR: {"fuelLevel": 10.0}, FILES: {"root": {"home": {"type": "directory", "contents": {}}}}}


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


LOCK = call("lockDoors", unlock=False, door=["driver", "passenger", "rear_left", "rear_right"])
PRESS = call("pressBrakePedal", pedalPosition=1.0)
START = call("startEngine", ignitionMode="START")
LIGHTS, DARK = call("setHeadlights", mode="on"), call("setHeadlights", mode="off")
FUEL = call("displayCarStatus", option="fuel")
MKDIR = call("mkdir", dir_name="a")
BABBLE = MalformedCall(text="open sesame", reason="not a call")


def task_of(*reference: Sequence[ToolCall], tools: Sequence[str] = ()) -> TaskSpec:
    """A task of the class of its first call; the car's where it has none."""
    names = [one.name for calls in reference for one in calls]
    home = TOOLS[names[0]].group if names else CAR
    return TaskSpec(
        environment="bfcl",
        split="train",
        classes=(home,),
        turns=tuple(f"turn {number}" for number in range(len(reference))),
        initial_state={home: STARTS[home]},
        tools=tuple(tools) or tool_names([home]),
        reference=tuple(map(tuple, reference)),
    )


def acted(
    task: TaskSpec,
    *turns: Sequence[Action],
    environment: Environment = BFCL,
    cut_off: bool = False,
    step: int = 1,
    sample: int = 0,
) -> Trajectory:
    """What happens when ``turns`` are played; ``cut_off``: a limit ended the episode before the last one was ended."""
    played = []
    with closing(environment.open(task)) as episode:
        shown = episode.start()
        for number, actions in enumerate(turns):
            assert shown is not None
            steps = tuple(Step(action=action, observation=episode.step(action)) for action in actions)
            ended = number + 1 < len(turns) or not cut_off
            played.append(TrajectoryTurn(text=shown.text, guidelines=shown.guidelines, steps=steps, ended=ended))
            shown = episode.end_turn() if ended else None
        outcome = episode.outcome()
    return Trajectory(
        id=f"t{step}-{sample}",
        task_id="t",
        iteration=0,
        step=step,
        sample=sample,
        turns=tuple(played),
        outcome=outcome,
        reward=float(outcome.success),
    )
