"""Environments on hosts keep the contract of every environment, with the same tasks as in the process."""

from collections.abc import Iterator, Sequence

import pytest
from support.contract import EnvironmentContract
from support.environment_host import DEPOT, hosted, serving

from environments.base import Environment, TaskSpec
from environments.registry import open_environment
from graph.check_environment import explored_tasks


class TestHostedDepot(EnvironmentContract):
    urls: tuple[str, ...] = ()

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def hosts(cls) -> Iterator[None]:
        with serving() as one, serving() as other:
            cls.urls = (one.url, other.url)
            yield

    def make(self) -> Environment:
        return hosted(*self.urls)

    def make_tasks(self, environment: Environment) -> Sequence[TaskSpec]:
        return explored_tasks(open_environment(DEPOT))
