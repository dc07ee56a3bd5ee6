"""The contract of environments (``environments/contract``) as tests: subclass it and say how yours is made.

    class TestMine(EnvironmentContract):
        def make(self) -> Environment:
            return open_shop()

The tasks that are played are found by exploration and verification; override ``make_tasks`` where that finds none.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from environments.base import Environment, TaskSpec
from environments.contract.checks import PROPERTIES, WITHOUT_TASKS, Contract
from graph.check_environment import explored_tasks


class EnvironmentContract:
    """A test of each property; it takes a fresh environment and verified tasks of it."""

    starts_opened: int | None = None
    """How many of the starts are opened, evenly spaced; None: all. For environments that take long to open one."""

    actions_in_a_turn = 1
    """Wrong actions in a user turn, at most its limit of steps. More for environments that take long to end one."""

    _kept: Sequence[TaskSpec]

    def make(self) -> Environment:
        """The environment under test."""
        raise NotImplementedError("say how your environment is made")

    def make_tasks(self, environment: Environment) -> Sequence[TaskSpec]:
        """Tasks that verification accepts; one of them changes the state, one has several calls."""
        return explored_tasks(environment)

    def contract(self) -> Contract:
        """The contract of the environment under test."""
        return Contract(self.make, self.starts_opened, self.actions_in_a_turn)

    @pytest.fixture
    def tasks(self) -> Sequence[TaskSpec]:
        if "_kept" not in vars(type(self)):
            type(self)._kept = self.make_tasks(self.make())
        return type(self)._kept

    @pytest.mark.parametrize("name", PROPERTIES)
    def test_property(self, name: str, request: pytest.FixtureRequest) -> None:
        given = () if name in WITHOUT_TASKS else (request.getfixturevalue("tasks"),)
        getattr(self.contract(), name)(self.make(), *given)
