"""Tells new failure contexts from those that were explored before."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from langgraph.runtime import Runtime

from environments.command import writing
from graph.assembly import Rooms, open_rooms
from graph.forks import on_its_run
from graph.state import IterationState, IterationUpdate, RunContext
from memory.explored import explored_before
from memory.failures import FailureMemory, Judgement, use_memory
from memory.records import FailureContext
from memory.run import read_jsonl, write_json, write_jsonl


@on_its_run
async def deduplicate(state: IterationState, runtime: Runtime[RunContext]) -> IterationUpdate:
    """Reads contexts.jsonl and the failure memory, writes judgements.jsonl and a folder for each new context.

    The memory is as of the iteration's start: nothing of this iteration is remembered before ``update``. Without
    deduplication, and for unguided exploration, whose contexts have nothing that could be compared, all are new.
    """
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    return {"new": await asyncio.to_thread(_deduplicate, rooms, state.iteration, frozenset(state.contexts))}


def _deduplicate(rooms: Rooms, iteration: int, chosen: Collection[str]) -> tuple[str, ...]:
    folder = rooms.run.iteration(iteration)
    written = read_jsonl(folder / "contexts.jsonl", FailureContext)
    contexts = {one.id: one for one in written if one.id in chosen}
    judgements = _judged(rooms, iteration, tuple(contexts.values()))
    write_jsonl(folder / "judgements.jsonl", judgements)
    new = sorted(one.context_id for one in judgements if one.status == "new")
    for context_id in new:
        write_json(folder / "branches" / context_id / "context.json", contexts[context_id])
    return tuple(new)


def _judged(rooms: Rooms, iteration: int, contexts: Sequence[FailureContext]) -> Sequence[Judgement]:
    if not rooms.deduplicates:
        return [Judgement(context_id=context.id, status="new") for context in contexts]
    # Older contexts make no other known any more: whether they are in the index changes no judgement.
    recent = explored_before(rooms.run, iteration, since=iteration - rooms.settings.memory.recur_after + 1)

    def judge(memory: FailureMemory) -> Sequence[Judgement]:
        if not memory.holds([context.id for context in recent.contexts]):
            # The index was dropped or damaged, or belongs to another embedder: the records are what counts.
            explored = explored_before(rooms.run, iteration)
            memory.rebuild(explored.contexts, explored.admitted)
        return memory.judge(contexts, iteration)

    with writing(rooms.run.failures_path):
        return use_memory(rooms.run.failures_path, rooms.settings.memory, judge)
