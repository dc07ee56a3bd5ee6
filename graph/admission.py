"""Turns accepted drafts into tasks, refuses drafts that branches proposed twice, and applies a quota."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Literal

from environments.base import TaskSpec
from environments.verification.fingerprints import fingerprint
from environments.verification.verify import Refusal
from memory.jsonl import record_id
from memory.records import Draft, DraftVerification, FailureContext, Task
from memory.settings import TaskSettings


def refuse_repeated(
    drafts: Sequence[Draft], verifications: Sequence[DraftVerification], known: Iterable[str] = ()
) -> list[DraftVerification]:
    """Return the results, refusing every accepted draft that equals an earlier accepted one or is ``known``.

    ``verifications[i]`` is the result of ``drafts[i]``. Branches verify concurrently: each knows the tasks that existed
    before, but not its siblings' drafts. ``known`` are fingerprints.
    """
    seen = dict.fromkeys(known, "")
    resolved = []
    for draft, verification in zip(drafts, verifications, strict=True):
        if verification.accepted:
            first = seen.setdefault(fingerprint(draft), draft.id)
            if first != draft.id:
                detail = f"Draft {first} is the same task." if first else "This task exists already."
                change = {"accepted": False, "reason": Refusal.DUPLICATE, "detail": detail}
                resolved.append(verification.model_copy(update=change))
                continue
        resolved.append(verification)
    return resolved


def quota_of(settings: TaskSettings, iteration: int) -> int | None:
    """Return how many tasks ``iteration`` admits, None without a quota."""
    return None if settings.admissions is None else settings.admissions[iteration]


def within_quota(verifications: Sequence[DraftVerification], quota: int, seed: int) -> list[DraftVerification]:
    """Return the results, refusing accepted drafts beyond ``quota``; ``seed`` draws those that stay.

    The draw does not depend on the order of ``verifications``.
    """
    accepted = sorted(verification.draft_id for verification in verifications if verification.accepted)
    kept = set(random.Random(seed).sample(accepted, min(quota, len(accepted))))
    detail = f"{len(accepted)} drafts were accepted, this iteration admits {quota}."
    change = {"accepted": False, "reason": Refusal.OVER_QUOTA, "detail": detail}
    return [
        verification
        if not verification.accepted or verification.draft_id in kept
        else verification.model_copy(update=change)
        for verification in verifications
    ]


def admitted_task(
    draft: Draft, context: FailureContext, origin: Literal["seed", "evolved"], iteration: int | None
) -> Task:
    """Return the task that an accepted draft becomes.

    Its parents are draft, context, signal, trajectory and task; the last three only where the context comes from a
    signal.
    """
    lineage = (draft.id, context.id, context.signal_id, context.trajectory_id, context.task_id)
    return Task(
        **{name: getattr(draft, name) for name in TaskSpec.model_fields},
        id=record_id("task", draft.id),
        origin=origin,
        parents=tuple(parent for parent in lineage if parent),
        admitted_at=iteration,
    )
