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

    Where people named branches to run ``again``, these alone are sent; where they edited records in a copy of the run,
    those that have not ended there. Without a branch the iteration goes straight to ``update``.

    A node, not a router: LangGraph calls a router while it edits a state, without a runtime.
    """
    services = runtime.context
    return Command(goto=await asyncio.to_thread(_sends, services, state) or "update")


def _sends(services: RunServices, state: IterationState) -> list[Send]:
    folder = services.run.iteration(state.iteration)
    branches = {one: folder.branch(one) for one in state.new}
    if state.again:
        chosen = [one for one in state.new if one in state.again]
    elif state.edits:
        chosen = [one for one, at in branches.items() if not at.verdicts.exists() and not at.failure.exists()]
    else:
        chosen = list(state.new)
    return sends(services, iteration_stage(state.iteration), chosen, keep=bool(state.edits) and not state.again)
