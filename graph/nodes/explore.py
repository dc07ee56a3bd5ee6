"""Acts in the environment around one context and keeps what happened."""

from __future__ import annotations

import asyncio

from langgraph.runtime import Runtime

from graph.assembly import open_rooms
from graph.forks import on_its_run
from graph.records import FAILURE_FILE
from graph.state import BranchState, BranchUpdate, RunContext
from memory.jsonl import derive_seed
from memory.records import FailureContext
from memory.run import read_json, write_jsonl


@on_its_run
async def explore(state: BranchState, runtime: Runtime[RunContext]) -> BranchUpdate:
    """Reads the branch's context.json, writes its interactions.jsonl.

    Contexts of D_0 and of the unguided baseline are explored unguided.
    """
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    folder = rooms.branch_folder(state)
    await asyncio.to_thread((folder / FAILURE_FILE).unlink, missing_ok=True)  # of an attempt before this one
    context = await asyncio.to_thread(read_json, folder / "context.json", FailureContext)
    seed = derive_seed(rooms.settings.seed, context.iteration, "explore", context.id)
    interactions = await rooms.roles_for(context).explorer.explore(context, rooms.environment, seed)
    await asyncio.to_thread(write_jsonl, folder / "interactions.jsonl", interactions)
    return {}
