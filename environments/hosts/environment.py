"""An environment whose episodes are played on hosts; everything else of it is read here.

The environment is installed on this machine too: tools' documentation, start states, the benchmark with its held-out
sets, and canonical forms come from it, so that no decision about tasks depends on a host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from environments.base import (
    Action,
    Environment,
    EnvironmentFault,
    MalformedCall,
    Observation,
    Outcome,
    StartState,
    TaskSpec,
    ToolSpec,
    UserTurn,
)
from environments.hosts.messages import MAX_DEPTH, TOKEN, Act, identity_of, too_deep
from environments.hosts.pool import Host, HostLost, HostPool
from environments.registry import benchmark_of, open_environment
from environments.settings import EnvironmentSettings
from environments.verification.canonical import Canonical, canonical

__all__ = ["HostedEnvironment", "HostedEpisode", "on_hosts", "open_for_play"]

RELEASE = 5.0  # seconds for a host to release an episode; it does so by itself later
IN_FLIGHT = 64  # requests at a time, of all hosts

Read = TypeVar("Read", bound=BaseModel)


def open_for_play(settings: EnvironmentSettings) -> Environment:
    """Open the environment where a run plays: on this machine, or on ``settings.hosts``.

    No host is asked before the first episode. Raises InputError like ``open_environment``.
    """
    return on_hosts(open_environment(settings), settings)


def on_hosts(inside: Environment, settings: EnvironmentSettings) -> Environment:
    """Return ``inside``, which was opened with the options of ``settings``, on the hosts that these name, if any."""
    if not settings.hosts:
        return inside
    token = os.environ.get(TOKEN) or None
    pool = HostPool(settings.hosts, lambda: identity_of(inside, settings), token, settings.host_deadline)
    return HostedEnvironment(inside, pool)


class HostedEnvironment:
    """Implements ``environments.base.Environment`` on the hosts of ``pool``; for many threads, one for each episode.

    ``inside`` is the same environment on this machine. ``recorded`` lets hosts answer calls from their caches.
    """

    def __init__(self, inside: Environment, pool: HostPool, *, recorded: bool = False) -> None:
        self.name = inside.name
        self.benchmark = benchmark_of(inside)
        self._inside = inside
        self._pool = pool
        self._recorded = recorded

    @property
    def at_once(self) -> int:
        """Episodes that the hosts which answer can have open. Raises EnvironmentFault when none answers."""
        return self._pool.capacity

    @property
    def in_flight(self) -> int:
        """Calls that are worth making at a time: each waits for a host."""
        return min(self.at_once, IN_FLIGHT)

    def check(self) -> None:
        """Raise InputError naming the first host that does not answer, or serves something else."""
        self._pool.check()

    def recorded(self) -> HostedEnvironment:
        """Return the same environment with the hosts' caches, where their environment has one."""
        return HostedEnvironment(self._inside, self._pool, recorded=True)

    def open(self, task: TaskSpec) -> HostedEpisode:
        """Open a fresh episode on the least loaded host that answers.

        Raises InputError like the environment inside, EnvironmentFault when no host can open it.
        """
        host, name = self._pool.open(task, recorded=self._recorded)
        return HostedEpisode(self._pool, host, name)

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the documentation of the named tools. Raises InputError for an unknown name."""
        return self._inside.tools(names)

    def starts(self) -> tuple[StartState, ...]:
        """Return the start states."""
        return self._inside.starts()

    def canonical(self, task: TaskSpec) -> Canonical:
        """Return the canonical form of ``task``, computed on this machine. Raises InputError."""
        return canonical(self._inside, task)


class HostedEpisode:
    """Implements ``environments.base.Episode`` on the host that it was opened on; single use, one thread at a time.

    Every method raises EnvironmentFault once the host is gone, hangs, or has released the episode. Arguments that are
    nested deeper than ``MAX_DEPTH`` are not sent: the action becomes a malformed one.
    """

    def __init__(self, pool: HostPool, host: Host, name: str) -> None:
        self._pool = pool
        self._host = host
        self._path = f"/episodes/{name}"
        self._number = 0
        self._lost: EnvironmentFault | None = None
        self._closed = False

    def start(self) -> UserTurn:
        """Run the setup and return the first user turn."""
        return self._read(UserTurn, self._act("start"))

    def step(self, action: Action) -> Observation:
        """Execute one action in the current turn."""
        if too_deep(action):
            why = f"the arguments are nested more than {MAX_DEPTH} deep"
            action = MalformedCall(text=getattr(action, "name", ""), reason=why)
        return self._read(Observation, self._act("step", action))

    def end_turn(self) -> UserTurn | None:
        """End the current turn; return the next one, or None when the episode is over."""
        turn = self._act("end_turn")
        return None if turn is None else self._read(UserTurn, turn)

    def state(self) -> str:
        """Return the canonical text of the state."""
        return str(self._ask("GET", "/state"))

    def outcome(self) -> Outcome:
        """Return the official result of the actions so far."""
        return self._read(Outcome, self._ask("GET", "/outcome"))

    def close(self) -> None:
        """Release the episode on its host. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if not isinstance(self._lost, HostLost):
                self._host.ask("DELETE", self._path, None, RELEASE)
        except EnvironmentFault as fault:  # the host releases it when it was idle for long enough
            self._noticed(fault)
        finally:
            self._pool.give_back(self._host)

    def _act(self, does: Literal["start", "step", "end_turn"], action: Action | None = None) -> Any:  # noqa: ANN401
        number = self._number
        self._number += 1  # also where it fails: the host has executed it, or the episode is lost
        return self._ask("POST", "", Act(number=number, does=does, action=action))

    def _ask(self, method: str, below: str, message: BaseModel | None = None) -> Any:  # noqa: ANN401 - JSON
        if self._closed:
            raise RuntimeError("the episode is closed: open another one")
        if self._lost is not None:
            raise self._lost
        try:
            return self._host.ask(method, self._path + below, message, self._pool.seconds)
        except EnvironmentFault as fault:
            self._noticed(fault)
            raise

    def _noticed(self, fault: EnvironmentFault) -> None:
        self._lost = fault
        if isinstance(fault, HostLost):
            self._pool.avoid(self._host, fault)

    def _read(self, kind: type[Read], answer: Any) -> Read:  # noqa: ANN401 - JSON
        try:
            return kind.model_validate(answer)
        except ValidationError as error:
            fault = self._host.lost(f"its {kind.__name__} cannot be read: {error.errors()[0]['msg']}")
            self._noticed(fault)
            raise fault from error
