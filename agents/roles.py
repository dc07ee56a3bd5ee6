"""The protocols of the roles: reflector, explorer, abstractor, validator.

Methods are coroutines because chat roles wait on a network; scripted roles run their environment calls in a thread.
A role never writes to disk and never decides what is admitted: verification does, by its settings.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from agents.settings import ExplorationSettings
from environments.base import Environment
from environments.registry import benchmark_of
from memory.records import AgentValidation, Draft, Evidence, FailureContext, Interaction


class RoleRefused(RuntimeError):
    """A role could not produce usable output (a malformed or refused reply after one repair); its branch ends."""


class Reflector(Protocol):
    """Reads the evidence of a signal and reports where, how and why it failed, and what to explore."""

    async def reflect(self, evidence: Evidence, environment: Environment) -> FailureContext:
        """Return the failure context. Raises RoleRefused when the evidence gives none."""
        ...


class Explorer(Protocol):
    """Acts in the environment around a failure context and records the interactions."""

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Return the interactions; equal arguments give equal ones (scripted roles)."""
        ...


class Abstractor(Protocol):
    """Turns the interactions of one context into drafts: reduced reference paths with user turns."""

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """Return at most as many drafts as the settings allow; verification decides about each."""
        ...


class Validator(Protocol):
    """Carries out a draft whose text and reference it reads, in the task's environment (CoEvolve, section 3.3)."""

    async def validate(self, draft: Draft, environment: Environment, iteration: int | None) -> AgentValidation:
        """Return the result of one run. Raises RoleRefused when the run cannot be judged."""
        ...


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
