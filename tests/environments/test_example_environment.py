"""The example that docs/own-environment.md walks through keeps the contract."""

from support.contract import EnvironmentContract

from environments.base import Environment
from environments.example import depot


class TestDepot(EnvironmentContract):
    def make(self) -> Environment:
        return depot()
