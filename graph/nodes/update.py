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
from graph.admission import admitted_task, quota_of, refuse_repeated, within_quota
from graph.assembly import Rooms, open_rooms
from graph.branches import refuse_mistake
from graph.forks import on_its_run
from graph.perturbation import PERTURBATIONS_FILE, Perturbation
from graph.records import FAILURE_FILE, Evolution, ExtractionRecord, Failure
from graph.state import IterationState, IterationUpdate, RunContext
from memory.explored import explored_in
from memory.failures import Judgement, use_memory
from memory.jsonl import derive_seed
from memory.records import Draft, FailureContext, Interaction, Task, Verdict
from memory.run import read_json, read_jsonl, write_json, write_jsonl
from memory.tasks import admit

Row = TypeVar("Row", bound=Record)


@on_its_run
async def update(state: IterationState, runtime: Runtime[RunContext]) -> IterationUpdate:
    """Reads every branch's folder, in order of id; writes interactions, drafts, verdicts, tasks, memory.

    evolution.json is written last: with it the graph's part of the iteration is done. Doing all of it again
    changes nothing. Raises InputError when a user's mistake ended every branch.
    """
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    await asyncio.to_thread(join, rooms, state)
    return {}


def join(rooms: Rooms, state: IterationState) -> None:
    """The work of ``update``, off the event loop."""
    folder = rooms.run.iteration(state.iteration)
    branches = [folder / "branches" / context_id for context_id in sorted(state.new)]
    finished = [branch for branch in branches if not (branch / FAILURE_FILE).exists()]
    failures = [read_json(branch / FAILURE_FILE, Failure) for branch in branches if branch not in finished]
    refuse_mistake(failures, len(branches))
    interactions = sorted(_gather(finished, "interactions.jsonl", Interaction), key=lambda one: one.id)
    drafts = sorted(_gather(finished, "drafts.jsonl", Draft), key=lambda draft: draft.id)
    ruled = {verdict.draft_id: verdict for verdict in _gather(finished, "verdicts.jsonl", Verdict)}
    verdicts = refuse_repeated(drafts, [ruled[draft.id] for draft in drafts])
    quota = quota_of(rooms.settings.tasks, state.iteration)
    if quota is not None:
        verdicts = within_quota(verdicts, quota, derive_seed(rooms.settings.seed, state.iteration, "quota"))
    contexts = {branch.name: read_json(branch / "context.json", FailureContext) for branch in finished}
    tasks = [
        admitted_task(draft, contexts[draft.context_id], "evolved", state.iteration)
        for draft, verdict in zip(drafts, verdicts, strict=True)
        if verdict.accepted
    ]
    write_jsonl(folder / "interactions.jsonl", interactions)
    write_jsonl(folder / "drafts.jsonl", drafts)
    write_jsonl(folder / "verdicts.jsonl", verdicts)
    if rooms.settings.verification.perturbed:
        perturbations = sorted(_gather(finished, PERTURBATIONS_FILE, Perturbation), key=lambda one: one.draft_id)
        write_jsonl(folder / PERTURBATIONS_FILE, perturbations)
    write_jsonl(folder / "branch_failures.jsonl", failures)
    admit(rooms.run, tasks)
    if rooms.deduplicates:
        explored = explored_in(rooms.run, state.iteration)
        with writing(rooms.run.failures_path):
            use_memory(
                rooms.run.failures_path,
                rooms.settings.memory,
                lambda memory: memory.remember(explored.contexts, explored.admitted, state.iteration),
            )
    evolution = _evolution(rooms, folder, state.iteration, tasks, verdicts, failures)
    write_json(folder / "evolution.json", evolution)


def _gather(branches: Iterable[Path], name: str, model: type[Row]) -> list[Row]:
    return [row for branch in branches for row in read_jsonl(branch / name, model)]


def _evolution(
    rooms: Rooms,
    folder: Path,
    iteration: int,
    tasks: Sequence[Task],
    verdicts: Sequence[Verdict],
    failures: Sequence[Failure],
) -> Evolution:
    quota = quota_of(rooms.settings.tasks, iteration)
    found = read_json(folder / "extraction.json", ExtractionRecord)
    judgements = Counter(one.status for one in read_jsonl(folder / "judgements.jsonl", Judgement))
    unreflected = read_jsonl(folder / "reflection_failures.jsonl", Failure)
    gave_up = [*unreflected, *failures]
    left_out = sum(found.left_out.values())
    if rooms.settings.signals.novelty:
        left_out += len(found.chosen) - len(unreflected) - judgements.total()
    return Evolution(
        iteration=iteration,
        signals=found.signals,
        new=judgements["new"],
        known=judgements["known"],
        left_out=left_out,
        drafts=len(verdicts),
        admitted=tuple(task.id for task in tasks),
        refused=dict(sorted(Counter(one.reason for one in verdicts if one.reason is not None).items())),
        failures=dict(sorted(Counter(failure.cause for failure in gave_up).items())),
        stopped=rooms.ledger.reached(),
        shortfall=None if quota is None else quota - len(tasks),
    )
