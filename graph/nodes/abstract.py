"""Turns one context's interactions into drafts of tasks."""

from __future__ import annotations

import asyncio

from langgraph.runtime import Runtime

from agents.composition import compose
from graph.assembly import RunServices
from graph.branches import finished
from graph.digests import of_abstract, progress
from graph.perturbation import perturb_all
from graph.state import BranchState, BranchUpdate
from memory.jsonl import derive_seed
from memory.records import FailureContext, Interaction
from memory.run import read_json, read_jsonl, write_jsonl
from memory.tasks import load_tasks, tasks_at


async def abstract(state: BranchState, runtime: Runtime[RunServices]) -> BranchUpdate:
    """Propose tasks: reduce the explorer's paths to the calls that carry them, and write their user turns.

    Reads the branch's context.json and interactions.jsonl, writes its drafts.jsonl. With
    ``verification.experimental.perturbed`` a share of an iteration's drafts is perturbed here, and perturbations.jsonl
    records the changes. D_0's drafts are never perturbed. With ``roles.exploration.compositions`` further drafts are
    composed of these and of tasks of the set; D_0's are not.
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
    exploration = services.settings.roles.exploration
    if exploration.compositions and context.iteration is not None:
        tasks = await asyncio.to_thread(load_tasks, services.run)
        present = tasks_at(tasks, context.iteration)
        seed = derive_seed(services.settings.seed, context.iteration, "compose", context.id)
        composed = await asyncio.to_thread(compose, drafts, present, exploration, services.environment, seed)
        drafts = (*drafts, *composed)
    await asyncio.to_thread(write_jsonl, branch.drafts, drafts)
    digest = of_abstract(drafts)
    done = services.tally.add(state.stage, "abstract", state.context_id)
    runtime.stream_writer(progress("abstract", done, state.of, "contexts abstracted", f"{state.weakness}: {digest[0]}"))
    return {"digest": {"abstract": digest}}
