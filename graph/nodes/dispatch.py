"""Sends each new failure context into a branch of its own."""

from __future__ import annotations

import asyncio
from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command, Send

from graph.assembly import RunServices
from graph.branches import sends
from graph.state import IterationState
from memory.run import iteration_stage


async def dispatch(state: IterationState, runtime: Runtime[RunServices]) -> Command[Literal["branch", "update"]]:
    """Send each new weakness into a branch of its own, named by it; the branches work at the same time.

    In a copy of the run, which Studio makes, these are the ones without a verification result: branches that failed or
    whose records were edited. Without a branch the iteration goes straight to ``update``.

    A node, not a router: LangGraph calls a router while it edits a state, without a runtime.
    """
    services = runtime.context
    return Command(goto=await asyncio.to_thread(_sends, services, state) or "update")


def _sends(services: RunServices, state: IterationState) -> list[Send]:
    folder = services.run.iteration(state.iteration)
    chosen = [one for one in state.new if not (services.copy and folder.branch(one).verdicts.exists())]
    return sends(services, iteration_stage(state.iteration), chosen, keep=services.copy != "")
