"""Turns one context's interactions into drafts of tasks."""

from __future__ import annotations

import asyncio

from langgraph.runtime import Runtime

from graph.assembly import RunServices
from graph.branches import finished
from graph.ours import compositions, variations
from graph.report.digest import of_abstract
from graph.state import BranchState, BranchUpdate
from memory.jsonl import derive_seed
from memory.records import FailureContext, Interaction
from memory.run import read_json, read_jsonl, write_jsonl


async def abstract(state: BranchState, runtime: Runtime[RunServices]) -> BranchUpdate:
    """Propose tasks: reduce the explorer's paths to the calls that carry them, and write their user turns.

    Reads the branch's context.json and interactions.jsonl, writes its drafts.jsonl.
    """
    services = runtime.context
    branch = services.run.stage(state.stage).branch(state.context_id)
    if finished(state, branch.drafts):
        return {}
    context = await asyncio.to_thread(read_json, branch.context, FailureContext)
    interactions = await asyncio.to_thread(read_jsonl, branch.interactions, Interaction)
    seed = derive_seed(services.settings.seed, context.iteration, "abstract", context.id)
    abstractor = services.roles_for(context).abstractor
    drafts = await abstractor.abstract(context, interactions, services.environment, seed)
    if services.settings.roles.exploration.compositions:
        drafts = (*drafts, *await asyncio.to_thread(compositions, services, context, drafts))
    if services.settings.roles.exploration.variations:
        drafts = (*drafts, *await asyncio.to_thread(variations, services, context))
    await asyncio.to_thread(write_jsonl, branch.drafts, drafts)
    return {"digest": {"abstract": of_abstract(drafts)}}
