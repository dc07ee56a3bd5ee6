"""Environments that remember what equal calls did, so that they need not be executed again."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from environments.base import Environment


@runtime_checkable
class Recording(Protocol):
    """An environment that is deterministic and dear enough to remember what was done in it."""

    def recorded(self) -> Environment:
        """The same environment, whose episodes may be answered from what equal calls from equal starts did before."""
        ...


def recorded(environment: Environment) -> Environment:
    """``environment`` with its memory where it has one, else itself.

    For rollouts and for the many attempts of verification. Never for the replays that show whether an environment is
    deterministic: a memory would answer them.
    """
    return environment.recorded() if isinstance(environment, Recording) else environment
