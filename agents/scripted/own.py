"""Scripted roles of a benchmark's own, for an environment that the general ones do not suit."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from agents.settings import ExplorationSettings
from environments.base import Environment
from environments.registry import benchmark_of
from memory.records import Draft, FailureContext, Interaction


class OwnRoles(Protocol):
    """The module that ``Benchmark.scripted_roles`` names; equal arguments give equal results."""

    def explore(
        self,
        context: FailureContext,
        environment: Environment,
        settings: ExplorationSettings,
        seed: int,
        *,
        guided: bool,
    ) -> tuple[Interaction, ...]:
        """Explore ``context`` for R rounds of S steps; without ``guided`` every tool is drawn alike."""
        ...

    def draft(
        self,
        context: FailureContext,
        interactions: Sequence[Interaction],
        environment: Environment,
        settings: ExplorationSettings,
        seed: int,
    ) -> tuple[Draft, ...]:
        """Write at most ``drafts_per_context`` drafts."""
        ...


def own_roles(environment: Environment) -> OwnRoles | None:
    """Return the roles of the environment's benchmark; None where the general ones serve."""
    module = benchmark_of(environment).scripted_roles
    return None if module is None else cast(OwnRoles, importlib.import_module(module))
