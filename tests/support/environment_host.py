"""An environment's host in a thread of the test's own process, and settings that name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from environments.base import Environment
from environments.hosts.environment import HostedEnvironment, open_for_play
from environments.hosts.episodes import HostedEpisodes
from environments.hosts.messages import identity_of
from environments.hosts.server import HostServer, listen
from environments.registry import open_environment
from environments.settings import EnvironmentSettings

DEPOT = EnvironmentSettings(name="environments.example:depot", options={"starts": 4})


@contextmanager
def serving(
    chosen: EnvironmentSettings = DEPOT,
    *,
    environment: Environment | None = None,
    capacity: int = 64,
    idle: float = 600.0,
    token: str | None = None,
) -> Iterator[HostServer]:
    """A host of the environment that ``chosen`` names, or of ``environment`` as if it were that one."""
    opened = open_environment(chosen)
    held = HostedEpisodes(environment or opened, identity_of(opened, chosen), capacity=capacity, idle=idle)
    with HostServer(held, listen("127.0.0.1", 0), token) as server:
        yield server


def hosted(*urls: str, chosen: EnvironmentSettings = DEPOT, deadline: float = 20.0) -> HostedEnvironment:
    """The environment that ``chosen`` names, on the hosts."""
    environment = open_for_play(chosen.model_copy(update={"hosts": urls, "host_deadline": deadline}))
    assert isinstance(environment, HostedEnvironment)
    return environment
