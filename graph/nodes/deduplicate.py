"""Separates new failure contexts from those that were explored before."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from langgraph.runtime import Runtime

from environments.command import writing
from graph.assembly import RunServices
from graph.branches import weaknesses
from graph.report.digest import of_deduplicate
from graph.state import IterationState, IterationUpdate
from memory.failures import DeduplicationResult, FailureMemory, explored_before, use_memory
from memory.records import FailureContext
from memory.run import read_jsonl, write_json, write_jsonl
from memory.settings import RECUR_AFTER


async def deduplicate(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Set aside the weaknesses that were explored before, so that effort goes into new ones.

    Reads contexts.jsonl and the failure memory, writes judgements.jsonl and a folder for each new context. The memory
    is as of the iteration's start: ``update`` remembers this iteration's contexts. Without deduplication all are new,
    and so are those of unguided exploration and of coverage, which have no facts to compare.
    """
    new, digest = await asyncio.to_thread(_deduplicate, runtime.context, state.iteration, frozenset(state.contexts))
    return {"new": new, "digest": {"deduplicate": digest}}


def _deduplicate(services: RunServices, iteration: int, chosen: Collection[str]) -> tuple[tuple[str, ...], list[str]]:
    folder = services.run.iteration(iteration)
    written = read_jsonl(folder.contexts, FailureContext)
    contexts = {one.id: one for one in written if one.id in chosen}
    results = _compared(services, iteration, tuple(contexts.values()))
    write_jsonl(folder.judgements, results)
    new = sorted(one.context_id for one in results if one.status == "new")
    for context_id in new:
        write_json(folder.branch(context_id).context, contexts[context_id])
    name = weaknesses(services.run, folder)
    return tuple(new), of_deduplicate(results, {one.id: name(one) for one in contexts.values()})


def _compared(
    services: RunServices, iteration: int, contexts: Sequence[FailureContext]
) -> Sequence[DeduplicationResult]:
    if not services.deduplicates:
        return [DeduplicationResult(context_id=context.id, status="new") for context in contexts]
    compared = [context for context in contexts if context.comparable]
    run, settings = services.run, services.settings.memory
    # Older contexts no longer make another one known: what the index says of them changes no result.
    recent = explored_before(run, iteration, since=iteration - RECUR_AFTER + 1)

    def compare(memory: FailureMemory) -> Sequence[DeduplicationResult]:
        if not memory.agrees(recent.compared, recent.admitted, iteration):
            # The index was dropped, damaged or changed: rebuild it from the records.
            memory.rebuild(recent.compared, recent.admitted)
        return memory.compare(compared, iteration)

    with writing(run.failures_path):
        results = {one.context_id: one for one in use_memory(run.failures_path, settings, compare)}
    return [results.get(context.id) or DeduplicationResult(context_id=context.id, status="new") for context in contexts]
