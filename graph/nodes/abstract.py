"""Turns one context's interactions into drafts of tasks."""

from __future__ import annotations

import asyncio

from langgraph.runtime import Runtime

from graph.assembly import RunServices
from graph.branches import finished
from graph.perturbation import perturb_all
from graph.state import BranchState, BranchUpdate
from memory.jsonl import derive_seed
from memory.records import FailureContext, Interaction
from memory.run import read_json, read_jsonl, write_jsonl


async def abstract(state: BranchState, runtime: Runtime[RunServices]) -> BranchUpdate:
    """Read the branch's context.json and interactions.jsonl, write its drafts.jsonl.

    With ``verification.experimental.perturbed`` a share of an iteration's drafts is perturbed here, and
    perturbations.jsonl records the changes. D_0's drafts are never perturbed.
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
    share = services.settings.verification.experimental.perturbed
    if share and context.iteration is not None:
        seed = derive_seed(services.settings.seed, context.iteration, "perturb")
        drafts, perturbations = await asyncio.to_thread(perturb_all, drafts, share, seed, services.environment)
        await asyncio.to_thread(write_jsonl, branch.perturbations, perturbations)
    await asyncio.to_thread(write_jsonl, branch.drafts, drafts)
    return {}
