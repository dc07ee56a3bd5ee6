"""The nodes that make tasks of new weaknesses: explore around one, abstract drafts, verify them; update joins all.

``explore``, ``abstract`` and ``verify`` are those of one context's branch. A function under ``@ours`` takes the paper's
step; what the decorator adds is described in ``graph.ours``, and happens only where the settings ask for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from langgraph.runtime import Runtime

from agents.roles import Validator
from agents.spending import RoleRefused
from environments.base import Environment, Record
from environments.verification.verify import Refusal, VerificationResult, can_train
from environments.verification.verify import verify as verify_draft
from graph import ours
from graph.assembly import RunServices
from graph.branches import finished, refuse_mistake
from graph.report.digest import LINE, exploration_words, of_abstract, of_branch, of_update, of_verify
from graph.state import BranchState, BranchUpdate, IterationState, IterationUpdate
from memory.failures import DeduplicationResult
from memory.jsonl import derive_seed, record_id
from memory.records import (
    AgentValidation,
    Draft,
    DraftVerification,
    FailureContext,
    Interaction,
    Task,
    Writing,
)
from memory.run import (
    BranchDirectory,
    read_existing,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)
from memory.run_files import Evolution, Failure, KnownTasks
from memory.tasks import admit, admitted_task, refuse_repeated, refused

Row = TypeVar("Row", bound=Record)


async def explore(state: BranchState, runtime: Runtime[RunServices]) -> BranchUpdate:
    """Act in the environment around one weakness, to find what can be done there.

    Reads the branch's context.json, writes its interactions.jsonl. Contexts of D_0 are explored unguided.
    """
    services = runtime.context
    branch = services.run.stage(state.stage).branch(state.context_id)
    await asyncio.to_thread(branch.failure.unlink, missing_ok=True)  # of an earlier attempt
    if finished(state, branch.interactions):
        return {}
    for stale in (branch.interactions, branch.drafts, branch.verdicts):
        await asyncio.to_thread(stale.unlink, missing_ok=True)  # of an earlier attempt, or of the run that was copied
    context = await asyncio.to_thread(read_json, branch.context, FailureContext)
    seed = derive_seed(services.settings.seed, context.iteration, "explore", context.id)
    interactions = await services.roles_for(context).explorer.explore(context, services.environment, seed)
    await asyncio.to_thread(write_jsonl, branch.interactions, interactions)
    return {"digest": {"explore": [exploration_words(interactions, LINE)]}}


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
    drafts = await _drafts(services, context, interactions)
    await asyncio.to_thread(write_jsonl, branch.drafts, drafts)
    return {"digest": {"abstract": of_abstract(drafts)}}


@ours.drafts
async def _drafts(
    services: RunServices, context: FailureContext, interactions: Sequence[Interaction]
) -> tuple[Draft, ...]:
    seed = derive_seed(services.settings.seed, context.iteration, "abstract", context.id)
    abstractor = services.roles_for(context).abstractor
    return await abstractor.abstract(context, interactions, services.environment, seed)


async def verify(state: BranchState, runtime: Runtime[RunServices]) -> BranchUpdate:
    """Accept or refuse each proposed task, with the reason: a reference that replays, and needs every call.

    Reads the branch's drafts.jsonl and interactions.jsonl and the stage's known.json, writes its verdicts.jsonl.
    ``verification.mode`` says who verifies: replays, an agent that carries out each draft, or both. A draft that equals
    one of another branch is not seen here: ``update`` resolves those, in order of id. With verification off, an
    iteration's drafts are only checked for whether an agent can be trained on them; D_0's are verified all the same.
    """
    services = runtime.context
    stage = services.run.stage(state.stage)
    branch = stage.branch(state.context_id)
    if finished(state, branch.verdicts):
        return {"finished": [state.context_id]}
    context = await asyncio.to_thread(read_json, branch.context, FailureContext)
    drafts = await asyncio.to_thread(read_jsonl, branch.drafts, Draft)
    interactions = await asyncio.to_thread(read_existing, branch.interactions, Interaction)
    observed = tuple(dict.fromkeys(one.observation.text for one in interactions))
    settings = services.settings.verification
    verifies = settings.enabled or context.iteration is None
    replays = verifies and settings.mode != "agent"
    verifications = await asyncio.to_thread(_verifications, services, stage.known, drafts, observed, replays)
    roles, iteration = services.roles_for(context), context.iteration
    if verifies and settings.mode != "deterministic":
        assert roles.validator is not None, "the settings refuse such a mode without one"
        run = (
            with_agent(roles.validator, draft, verification, services.environment, iteration, branch)
            for draft, verification in zip(drafts, verifications, strict=True)
        )
        verifications = await asyncio.gather(*run)
    await asyncio.to_thread(write_jsonl, branch.verdicts, verifications)
    services.breaker.succeeded()
    return {
        "digest": {"verify": of_verify(drafts, verifications)},
        "branches": [of_branch(state.weakness, verifications)],
        "finished": [state.context_id],
    }


def _verifications(
    services: RunServices, known_path: Path, drafts: list[Draft], observed: tuple[str, ...], replays: bool
) -> list[DraftVerification]:
    """Return the result of the checks without a model for each draft, in the order of ``drafts``.

    Without ``replays`` they only say whether an agent can be trained on it: an agent decides the rest, or nothing does.
    """
    settings = services.settings.verification
    known = _known(known_path, known_path.stat().st_mtime_ns)
    verifications = []
    for draft in drafts:
        if draft.writing is not None and not draft.writing.understood:
            result = VerificationResult(reason=Refusal.MISREAD, detail=misread(draft.writing))
        elif replays:
            result = verify_draft(draft, services.environment, known, services.held_out, settings, observed)
        else:
            result = can_train(draft, services.environment, known, services.held_out, observed)
        verifications.append(
            DraftVerification(
                draft_id=draft.id,
                context_id=draft.context_id,
                accepted=result.accepted,
                reason=result.reason,
                detail=result.detail,
            )
        )
    return verifications


def misread(writing: Writing) -> str:
    """Return the reason in a sentence."""
    read = "returns the calls" if writing.round_trip else "does not return the calls"
    gained = "" if writing.margin is None else f", and its words add {writing.margin:.2f} nats a token to them"
    other = f", but {writing.read}" if writing.read else ""
    return f"the reader {read}{other}{gained}"


@lru_cache(maxsize=1)
def _known(path: Path, _written: int) -> frozenset[str]:
    """Read known.json once for all branches of a stage; the time of writing is part of the key."""
    return frozenset(read_json(path, KnownTasks).fingerprints)


async def with_agent(
    validator: Validator,
    draft: Draft,
    verification: DraftVerification,
    environment: Environment,
    iteration: int | None,
    branch: BranchDirectory,
) -> DraftVerification:
    """Return the verification result with that of the validator's run, which may refuse the draft.

    A refused draft is not carried out. A run is kept in the branch's folder as soon as it was evaluated, so that a
    resumed node does not pay for it again. Without a run that can be evaluated (no usable reply, a spent budget) the
    draft is refused.
    """
    if not verification.accepted:
        return verification
    path = branch.validation(record_id("validation", draft.model_dump_json()))
    if path.exists():
        run = await asyncio.to_thread(read_json, path, AgentValidation)
    else:
        try:
            run = await validator.validate(draft, environment, iteration)
        except RoleRefused as refusal:
            return refused(
                verification, Refusal.NOT_VALIDATED, f"No run of the validator could be evaluated: {refusal}"
            )
        await asyncio.to_thread(write_json, path, run)
    verification = verification.model_copy(update={"agent": run})
    if run.accepted:
        return verification
    return refused(verification, Refusal.AGENT, f"The validator did not complete it: {run.detail or 'no reason given'}")


async def update(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Join the branches: accepted drafts become tasks of the next round.

    Reads every branch's folder, in order of id; writes interactions, drafts, verification results, tasks.
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
    whole = {context_id: branch for context_id, branch in branches.items() if not branch.failure.exists()}
    joined = whole.values()
    interactions = sorted(_gather((one.interactions for one in joined), Interaction), key=lambda one: one.id)
    drafts = sorted(_gather((one.drafts for one in joined), Draft), key=lambda draft: draft.id)
    verdicts = _gather((one.verdicts for one in joined), DraftVerification)
    verifications = _resolved(services, state.iteration, drafts, verdicts)
    contexts = {context_id: read_json(branch.context, FailureContext) for context_id, branch in whole.items()}
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
    evolution = _evolution(services, state.iteration, verifications, tasks, failures)
    write_json(folder.evolution, evolution)
    return evolution, tasks


@ours.quota
def _resolved(
    _services: RunServices, _iteration: int, drafts: Sequence[Draft], verdicts: Sequence[DraftVerification]
) -> list[DraftVerification]:
    return refuse_repeated(drafts, verdicts)


@ours.shortfall
def _evolution(
    services: RunServices,
    iteration: int,
    verifications: Sequence[DraftVerification],
    tasks: Sequence[Task],
    failures: Sequence[Failure],
) -> Evolution:
    folder = services.run.iteration(iteration)
    results = Counter(one.status for one in read_jsonl(folder.judgements, DeduplicationResult))
    gave_up = [*read_jsonl(folder.reflection_failures, Failure), *failures]
    return Evolution(
        iteration=iteration,
        new=results["new"],
        known=results["known"],
        drafts=len(verifications),
        admitted=tuple(task.id for task in tasks),
        refused=dict(sorted(Counter(one.reason for one in verifications if one.reason is not None).items())),
        failures=dict(sorted(Counter(failure.cause for failure in gave_up).items())),
        stopped=services.ledger.reached(),
    )


def _gather(paths: Iterable[Path], model: type[Row]) -> list[Row]:
    return [row for path in paths for row in read_jsonl(path, model)]
