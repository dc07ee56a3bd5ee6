"""Environments by name."""

from environments.base import Environment
from environments.registry import open_environment
from environments.settings import EnvironmentSettings


def test_the_settings_reach_the_environment():
    environment = open_environment(EnvironmentSettings(classes=("VehicleControlAPI",), max_steps=3))
    assert isinstance(environment, Environment)
    assert environment.name == "bfcl"
    assert {start.classes for start in environment.starts()} == {("VehicleControlAPI",)}
