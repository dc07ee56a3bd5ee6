"""Separates new failure contexts from those that were explored before."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from langgraph.runtime import Runtime

from environments.command import writing
from graph.assembly import RunServices
from graph.state import IterationState, IterationUpdate
from memory.explored import explored_before
from memory.failures import FailureMemory, Judgement, use_memory
from memory.records import FailureContext
from memory.run import read_jsonl, write_json, write_jsonl


async def deduplicate(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Read contexts.jsonl and the failure memory, write judgements.jsonl and a folder for each new context.

    The memory is as of the iteration's start: ``update`` remembers this iteration's contexts. Without deduplication all
    are new, and so are those of unguided exploration, which have no facts to compare.
    """
    return {"new": await asyncio.to_thread(_deduplicate, runtime.context, state.iteration, frozenset(state.contexts))}


def _deduplicate(services: RunServices, iteration: int, chosen: Collection[str]) -> tuple[str, ...]:
    folder = services.run.iteration(iteration)
    written = read_jsonl(folder.contexts, FailureContext)
    contexts = {one.id: one for one in written if one.id in chosen}
    judgements = _judged(services, iteration, tuple(contexts.values()))
    write_jsonl(folder.judgements, judgements)
    new = sorted(one.context_id for one in judgements if one.status == "new")
    for context_id in new:
        write_json(folder.branch(context_id).context, contexts[context_id])
    return tuple(new)


def _judged(services: RunServices, iteration: int, contexts: Sequence[FailureContext]) -> Sequence[Judgement]:
    if not services.deduplicates:
        return [Judgement(context_id=context.id, status="new") for context in contexts]
    run, settings = services.run, services.settings.memory
    # Older contexts no longer make another one known: whether they are in the index changes no judgement.
    recent = explored_before(run, iteration, since=iteration - settings.recur_after + 1)

    def judge(memory: FailureMemory) -> Sequence[Judgement]:
        if not memory.holds([context.id for context in recent.contexts]):
            # The index was dropped or damaged, or belongs to another embedder: rebuild it from the records.
            explored = explored_before(run, iteration)
            memory.rebuild(explored.contexts, explored.admitted)
        return memory.judge(contexts, iteration)

    with writing(run.failures_path):
        return use_memory(run.failures_path, settings, judge)
