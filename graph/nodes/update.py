"""Joins the branches of an iteration: admits tasks, remembers contexts, and records what changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from langgraph.runtime import Runtime

from environments.base import Record
from environments.command import writing
from graph.assembly import RunServices
from graph.branches import refuse_mistake
from graph.records import Evolution, ExtractionRecord, Failure
from graph.report.digest import of_update
from graph.state import IterationState, IterationUpdate
from memory.failures import DeduplicationResult, explored_in, use_memory
from memory.jsonl import derive_seed
from memory.records import Draft, DraftVerification, FailureContext, Interaction, Task
from memory.run import IterationDirectory, read_json, read_jsonl, write_json, write_jsonl
from memory.tasks import admit, admitted_task, quota_of, refuse_repeated, within_quota

Row = TypeVar("Row", bound=Record)


async def update(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Join the branches: accepted drafts become tasks of the next round, and the contexts are remembered.

    Reads every branch's folder, in order of id; writes interactions, drafts, verification results, tasks, memory.
    evolution.json is written last: with it the graph's part of the iteration is done. Repeating all of it changes
    nothing. Raises InputError when a user's mistake ended every branch.
    """
    evolution, tasks = await asyncio.to_thread(join, runtime.context, state)
    return {"digest": {"update": of_update(evolution, tasks)}}


def join(services: RunServices, state: IterationState) -> tuple[Evolution, list[Task]]:
    """Do the work of ``update``, off the event loop; return what it recorded, and the new tasks."""
    folder = services.run.iteration(state.iteration)
    branches = {context_id: folder.branch(context_id) for context_id in sorted(state.new)}
    failures = [read_json(branch.failure, Failure) for branch in branches.values() if branch.failure.exists()]
    refuse_mistake(failures, len(branches))
    finished = {context_id: branch for context_id, branch in branches.items() if not branch.failure.exists()}
    joined = finished.values()
    interactions = sorted(_gather((one.interactions for one in joined), Interaction), key=lambda one: one.id)
    drafts = sorted(_gather((one.drafts for one in joined), Draft), key=lambda draft: draft.id)
    by_draft = {
        verification.draft_id: verification
        for verification in _gather((one.verdicts for one in joined), DraftVerification)
    }
    verifications = refuse_repeated(drafts, [by_draft[draft.id] for draft in drafts])
    quota = quota_of(services.settings.tasks, state.iteration)
    if quota is not None:
        verifications = within_quota(
            verifications, quota, derive_seed(services.settings.seed, state.iteration, "quota")
        )
    contexts = {context_id: read_json(branch.context, FailureContext) for context_id, branch in finished.items()}
    tasks = [
        admitted_task(draft, contexts[draft.context_id], "evolved", state.iteration)
        for draft, verification in zip(drafts, verifications, strict=True)
        if verification.accepted
    ]
    write_jsonl(folder.interactions, interactions)
    write_jsonl(folder.drafts, drafts)
    write_jsonl(folder.verdicts, verifications)
    write_jsonl(folder.branch_failures, failures)
    admit(services.run, tasks)
    if services.deduplicates:
        explored = explored_in(services.run, state.iteration)
        with writing(services.run.failures_path):
            use_memory(
                services.run.failures_path,
                services.settings.memory,
                lambda memory: memory.remember(explored.compared, explored.admitted),
            )
    evolution = _evolution(services, folder, state.iteration, tasks, verifications, failures)
    write_json(folder.evolution, evolution)
    return evolution, tasks


def _gather(paths: Iterable[Path], model: type[Row]) -> list[Row]:
    return [row for path in paths for row in read_jsonl(path, model)]


def _evolution(
    services: RunServices,
    folder: IterationDirectory,
    iteration: int,
    tasks: Sequence[Task],
    verifications: Sequence[DraftVerification],
    failures: Sequence[Failure],
) -> Evolution:
    quota = quota_of(services.settings.tasks, iteration)
    found = read_json(folder.extraction, ExtractionRecord)
    results = Counter(one.status for one in read_jsonl(folder.judgements, DeduplicationResult))
    gave_up = [*read_jsonl(folder.reflection_failures, Failure), *failures]
    return Evolution(
        iteration=iteration,
        signals=found.signals,
        signal_tasks=found.signal_tasks,
        marked=found.marked,
        new=results["new"],
        known=results["known"],
        left_out=sum(found.left_out.values()),
        drafts=len(verifications),
        admitted=tuple(task.id for task in tasks),
        refused=dict(sorted(Counter(one.reason for one in verifications if one.reason is not None).items())),
        failures=dict(sorted(Counter(failure.cause for failure in gave_up).items())),
        stopped=services.ledger.reached(),
        shortfall=None if quota is None else quota - len(tasks),
    )
