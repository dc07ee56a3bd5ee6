"""Turns one context's interactions into drafts of tasks."""

from __future__ import annotations

import asyncio

from langgraph.runtime import Runtime

from graph.assembly import open_rooms
from graph.forks import on_its_run
from graph.perturbation import PERTURBATIONS_FILE, perturb_all
from graph.state import BranchState, BranchUpdate, RunContext
from memory.jsonl import derive_seed
from memory.records import FailureContext, Interaction
from memory.run import read_json, read_jsonl, write_jsonl


@on_its_run
async def abstract(state: BranchState, runtime: Runtime[RunContext]) -> BranchUpdate:
    """Reads the branch's context.json and interactions.jsonl, writes its drafts.jsonl.

    Where the settings have drafts perturbed, that happens here, and perturbations.jsonl says to which. D_0's never are.
    """
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    folder = rooms.branch_folder(state)
    context = await asyncio.to_thread(read_json, folder / "context.json", FailureContext)
    interactions = await asyncio.to_thread(read_jsonl, folder / "interactions.jsonl", Interaction)
    seed = derive_seed(rooms.settings.seed, context.iteration, "abstract", context.id)
    abstractor = rooms.roles_for(context).abstractor
    drafts = await abstractor.abstract(context, interactions, rooms.environment, seed)
    share = rooms.settings.verification.perturbed
    if share and context.iteration is not None:
        seed = derive_seed(rooms.settings.seed, context.iteration, "perturb")
        drafts, perturbations = await asyncio.to_thread(perturb_all, drafts, share, seed, rooms.environment)
        await asyncio.to_thread(write_jsonl, folder / PERTURBATIONS_FILE, perturbations)
    await asyncio.to_thread(write_jsonl, folder / "drafts.jsonl", drafts)
    return {}
