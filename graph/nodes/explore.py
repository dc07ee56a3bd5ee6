"""Acts in the environment around one context and records the interactions."""

from __future__ import annotations

import asyncio

from langgraph.runtime import Runtime

from graph.assembly import RunServices
from graph.branches import finished
from graph.report.digest import LINE, exploration_words
from graph.state import BranchState, BranchUpdate
from memory.jsonl import derive_seed
from memory.records import FailureContext
from memory.run import read_json, write_jsonl


async def explore(state: BranchState, runtime: Runtime[RunServices]) -> BranchUpdate:
    """Act in the environment around one weakness, to find what can be done there.

    Reads the branch's context.json, writes its interactions.jsonl. Contexts of D_0 and of the unguided baseline are
    explored unguided.
    """
    services = runtime.context
    branch = services.run.stage(state.stage).branch(state.context_id)
    await asyncio.to_thread(branch.failure.unlink, missing_ok=True)  # of an earlier attempt
    if finished(state, branch.interactions):
        return {}
    for stale in (branch.interactions, branch.drafts, branch.verdicts):
        await asyncio.to_thread(stale.unlink, missing_ok=True)  # of an earlier attempt, or of the run that was copied
    context = await asyncio.to_thread(read_json, branch.context, FailureContext)
    seed = derive_seed(services.settings.seed, context.iteration, "explore", context.id)
    interactions = await services.roles_for(context).explorer.explore(context, services.environment, seed)
    await asyncio.to_thread(write_jsonl, branch.interactions, interactions)
    return {"digest": {"explore": [exploration_words(interactions, LINE)]}}
