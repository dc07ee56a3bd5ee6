"""Small tasks of the vehicle that the tests of episodes, outcomes and environments share."""

from environments.base import TaskSpec, ToolCall, UserTurn
from environments.bfcl.benchmark import BFCLEnvironment, BFCLEpisode
from environments.bfcl.official import tool_names

VEHICLE = "VehicleControlAPI"
PRESS = ToolCall(name="pressBrakePedal", arguments={"pedalPosition": 1.0})
LOCK = ToolCall(
    name="lockDoors", arguments={"unlock": False, "door": ["driver", "passenger", "rear_left", "rear_right"]}
)
START = ToolCall(name="startEngine", arguments={"ignitionMode": "START"})
LIGHTS = ToolCall(name="setHeadlights", arguments={"mode": "on"})
FUEL = ToolCall(name="displayCarStatus", arguments={"option": "fuel"})


def vehicle_task(*reference, setup=(), withheld=None, tools=None) -> TaskSpec:
    return TaskSpec(
        environment="bfcl",
        split="train",
        classes=(VEHICLE,),
        turns=tuple(f"turn {index}" for index in range(len(reference))),
        initial_state={VEHICLE: {"fuelLevel": 10.0}},
        setup=setup,
        tools=tools or tool_names([VEHICLE]),
        reference=reference,
        withheld=withheld or {},
    )


def started(task: TaskSpec, max_steps: int = 20) -> tuple[BFCLEpisode, UserTurn]:
    episode = BFCLEnvironment(max_steps=max_steps).open(task)
    return episode, episode.start()
