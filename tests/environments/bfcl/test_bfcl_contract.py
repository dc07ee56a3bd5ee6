"""BFCL, on the real simulators, keeps the contract of every environment."""

from support.contract import EnvironmentContract

from environments.base import Environment
from environments.bfcl.benchmark import BFCLEnvironment


class TestBFCL(EnvironmentContract):
    def make(self) -> Environment:
        return BFCLEnvironment()
