"""Small tasks written by hand over one file system and one car."""

from __future__ import annotations

from environments.base import TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import tool_names

FILES = "GorillaFileSystem"
CAR = "VehicleControlAPI"
STATES = {
    FILES: {
        "root": {
            "workspace": {
                "type": "directory",
                "contents": {
                    "notes.txt": {"type": "file", "content": "alpha\nbeta"},
                    "void.txt": {"type": "file", "content": ""},
                    "drafts": {"type": "directory", "contents": {"old.txt": {"type": "file", "content": "x"}}},
                },
            }
        }
    },
    CAR: {
        "fuelLevel": 10.5,
        "batteryVoltage": 12.6,
        "engineState": "stopped",
        "doorStatus": dict.fromkeys(("driver", "passenger", "rear_left", "rear_right"), "locked"),
        "acTemperature": 22.0,
        "fanSpeed": 70,
        "acMode": "auto",
        "humidityLevel": 45.0,
        "headLightStatus": "off",
        "parkingBrakeStatus": "released",
        "parkingBrakeForce": 0.0,
        "slopeAngle": 0.0,
        "distanceToNextVehicle": 30.0,
        "cruiseStatus": "inactive",
        "destination": "None",
        "frontLeftTirePressure": 32.0,
        "frontRightTirePressure": 32.0,
        "rearLeftTirePressure": 30.0,
        "rearRightTirePressure": 30.0,
    },
}
ENVIRONMENT = BFCLEnvironment((FILES, CAR))

Written = tuple[str, dict]


def draft(cls: str, *turns: tuple[str, list[Written]], setup: tuple[Written, ...] = (), **changes) -> TaskSpec:
    fields = {
        "environment": "bfcl",
        "split": "train",
        "classes": (cls,),
        "initial_state": {cls: STATES[cls]},
        "tools": tool_names((cls,)),
        "turns": tuple(text for text, _ in turns),
        "reference": tuple(tuple(ToolCall(name=n, arguments=a) for n, a in calls) for _, calls in turns),
        "setup": tuple(ToolCall(name=n, arguments=a) for n, a in setup),
    }
    return TaskSpec(**{**fields, **changes})
