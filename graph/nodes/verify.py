"""Verifies one context's drafts: accepts each, or refuses it with the reason."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path

from langgraph.runtime import Runtime

from agents.roles import RoleRefused, Validator
from environments.base import Environment
from environments.verification.verify import Refusal, can_train
from environments.verification.verify import verify as verify_draft
from graph.assembly import RunServices
from graph.branches import finished
from graph.records import KnownTasks
from graph.report.digest import of_branch, of_verify
from graph.state import BranchState, BranchUpdate
from memory.jsonl import record_id
from memory.records import ACCEPTED, AgentValidation, Draft, DraftVerification, FailureContext, Interaction
from memory.run import BranchDirectory, read_existing, read_json, read_jsonl, write_json, write_jsonl


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
    verifications = await asyncio.to_thread(_verifications, services, stage.known, drafts, context, observed)
    roles, iteration = services.roles_for(context), context.iteration
    if services.settings.verification.mode != "deterministic" and not _unverified(services, context):
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


def _unverified(services: RunServices, context: FailureContext) -> bool:
    return not services.settings.verification.enabled and context.iteration is not None


def _verifications(
    services: RunServices, known_path: Path, drafts: list[Draft], context: FailureContext, observed: tuple[str, ...]
) -> list[DraftVerification]:
    """Return the result of the checks without a model for each draft, in the order of ``drafts``.

    Where an agent is asked, too, a draft that it can be asked about is accepted here, and
    ``DraftVerification.deterministic`` has the result of the replays if they count.
    """
    settings = services.settings.verification
    mode = None if _unverified(services, context) else settings.mode
    known = _known(known_path, known_path.stat().st_mtime_ns)
    verifications = []
    for draft in drafts:
        deterministic = None
        if mode == "deterministic":
            result = verify_draft(draft, services.environment, known, services.held_out, settings, observed)
        else:
            result = can_train(draft, services.environment, known, services.held_out, observed)
        if mode == "both" and result.accepted:
            replayed = verify_draft(draft, services.environment, known, services.held_out, settings, observed)
            result, deterministic = replayed, replayed.reason or ACCEPTED
        verifications.append(
            DraftVerification(
                draft_id=draft.id,
                context_id=draft.context_id,
                accepted=result.accepted,
                reason=result.reason,
                detail=result.detail,
                deterministic=deterministic,
            )
        )
    return verifications


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

    A draft that the replays refuse is carried out, too, where both count, so that the two can be compared; it stays
    refused for their reason. A run is kept in the branch's folder as soon as it was evaluated, so that a resumed node
    does not pay for it again. Without a run that can be evaluated (no usable reply, a spent budget) a draft is refused.
    """
    if not verification.accepted and verification.deterministic is None:
        return verification
    path = branch.validation(record_id("validation", draft.model_dump_json()))
    if path.exists():
        run = await asyncio.to_thread(read_json, path, AgentValidation)
    else:
        try:
            run = await validator.validate(draft, environment, iteration)
        except RoleRefused as refusal:
            return _refused(
                verification, Refusal.NOT_VALIDATED, f"No run of the validator could be evaluated: {refusal}"
            )
        await asyncio.to_thread(write_json, path, run)
    verification = verification.model_copy(update={"agent": run})
    if run.accepted:
        return verification
    return _refused(
        verification, Refusal.AGENT, f"The validator did not complete it: {run.detail or 'no reason given'}"
    )


def _refused(verification: DraftVerification, reason: Refusal, detail: str) -> DraftVerification:
    """Refuse an accepted draft; the reason of one that is refused already stays."""
    if not verification.accepted:
        return verification
    return verification.model_copy(update={"accepted": False, "reason": reason.value, "detail": detail})
