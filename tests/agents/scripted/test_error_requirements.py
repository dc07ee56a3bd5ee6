"""Which tools an error message asks for, on messages of the real simulators."""

from __future__ import annotations

import pytest

from agents.scripted.knowledge import blames_argument, remedies
from environments.base import ToolCall


@pytest.mark.parametrize(
    ("name", "arguments", "message", "first"),
    [
        (
            "setCruiseControl",
            {"activate": True},
            "Start the engine before activating the cruise control.",
            "startEngine",
        ),
        ("startEngine", {"ignitionMode": "START"}, "All doors must be locked before starting the engine.", "lockDoors"),
        (
            "startEngine",
            {"ignitionMode": "START"},
            "Brake pedal needs to be pressed when starting the engine.",
            "pressBrakePedal",
        ),
        (
            "startEngine",
            {"ignitionMode": "START"},
            "Must press the brake fully before starting the engine.",
            "pressBrakePedal",
        ),
        ("pressBrakePedal", {"pedalPosition": 7.0}, "Pedal position must be between 0 and 1.", None),
        ("adjustClimateControl", {"temperature": 20.0, "fanSpeed": 300}, "Fan speed must be between 0 and 100.", None),
        ("fillFuelTank", {"fuelAmount": 90.0}, "Cannot fill gas above the tank capacity.", None),
        ("cat", {"file_name": "x.txt"}, "cat: 'x.txt': No such file or directory", None),
        ("estimate_distance", {"cityA": "1", "cityB": "2"}, "distance not found in database.", None),
    ],
)
def test_what_an_error_asks_for(environment, name: str, arguments: dict, message: str, first: str | None) -> None:
    tools = environment.tools(_names(environment))
    asked = remedies(ToolCall(name=name, arguments=arguments), f'{{"error": "{message}"}}', tools)
    assert (asked[0].name if asked else None) == first
    assert name not in [tool.name for tool in asked]


def _names(environment) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for start in environment.starts() for name in start.tools))


@pytest.mark.parametrize(
    ("arguments", "message", "blamed"),
    [
        ({"file_name": "x.txt"}, "cat: 'x.txt': No such file", True),
        ({"file_name": "x"}, "cat: 'xyz': No such file", False),
        ({"fanSpeed": 300}, "Fan speed must be between 0 and 100.", True),
        ({"mode": "START"}, "All doors must be locked.", False),
        ({}, "Something else.", False),
    ],
)
def test_blamed_arguments(arguments: dict, message: str, blamed: bool) -> None:
    assert blames_argument(ToolCall(name="f", arguments=arguments), message) is blamed
