"""The roles that think, as protocols: whoever reflects, explores, abstracts or solves is written against these.

Methods are coroutines because chat roles wait on a network; scripted roles run their simulator work in a thread.
A role never writes to disk and never decides what is admitted: verification does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from environments.base import Environment, Record
from memory.records import Draft, Evidence, FailureContext, Interaction


class RoleRefused(RuntimeError):
    """A role could not produce usable output (a malformed or refused reply after one repair); one branch ends."""


class Reflector(Protocol):
    """Reads the evidence of a signal and says where, how and why it went wrong, and what to explore."""

    async def reflect(self, evidence: Evidence, environment: Environment) -> FailureContext:
        """Raises RoleRefused when no context can be made of the evidence."""
        ...


class Explorer(Protocol):
    """Acts in the environment around a failure context and keeps what happened."""

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Equal arguments give equal interactions (scripted roles)."""
        ...


class Abstractor(Protocol):
    """Turns the interactions of one context into drafts: reduced reference paths with user turns."""

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """At most as many drafts as its settings allow; a draft is a proposal, verification decides."""
        ...


class Solved(Record):
    """How often a draft was solved: ``rate`` in [0, 1] over ``attempts`` episodes that were judged, at least one."""

    rate: float
    attempts: int


class Solver(Protocol):
    """Tries to solve a draft from its text alone; the environment judges, never a model."""

    async def solve(self, draft: Draft, environment: Environment, iteration: int | None) -> Solved:
        """Raises RoleRefused when no attempt can be judged."""
        ...
