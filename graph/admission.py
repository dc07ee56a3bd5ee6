"""Turns accepted drafts into tasks, refuses drafts that branches proposed twice, and applies a quota."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Literal

from environments.base import TaskSpec
from environments.verification.fingerprints import fingerprint
from environments.verification.verify import Refusal
from memory.jsonl import record_id
from memory.records import Draft, FailureContext, Task, Verdict
from memory.settings import TaskSettings


def refuse_repeated(drafts: Sequence[Draft], verdicts: Sequence[Verdict], known: Iterable[str] = ()) -> list[Verdict]:
    """Return the verdicts, refusing every accepted draft that equals an earlier accepted one or is ``known``.

    ``verdicts[i]`` is the result of ``drafts[i]``. Branches verify concurrently: each knows the tasks that existed
    before, but not its siblings' drafts. ``known`` are fingerprints.
    """
    seen = dict.fromkeys(known, "")
    resolved = []
    for draft, verdict in zip(drafts, verdicts, strict=True):
        if verdict.accepted:
            first = seen.setdefault(fingerprint(draft), draft.id)
            if first != draft.id:
                detail = f"Draft {first} is the same task." if first else "This task exists already."
                change = {"accepted": False, "reason": Refusal.DUPLICATE, "detail": detail}
                resolved.append(verdict.model_copy(update=change))
                continue
        resolved.append(verdict)
    return resolved


def quota_of(settings: TaskSettings, iteration: int) -> int | None:
    """Return how many tasks ``iteration`` admits, None without a quota."""
    return None if settings.admissions is None else settings.admissions[iteration]


def within_quota(verdicts: Sequence[Verdict], quota: int, seed: int) -> list[Verdict]:
    """Return the verdicts, refusing accepted drafts beyond ``quota``; ``seed`` draws those that stay.

    The draw does not depend on the order of ``verdicts``.
    """
    accepted = sorted(verdict.draft_id for verdict in verdicts if verdict.accepted)
    kept = set(random.Random(seed).sample(accepted, min(quota, len(accepted))))
    detail = f"{len(accepted)} drafts were accepted, this iteration admits {quota}."
    change = {"accepted": False, "reason": Refusal.OVER_QUOTA, "detail": detail}
    return [
        verdict if not verdict.accepted or verdict.draft_id in kept else verdict.model_copy(update=change)
        for verdict in verdicts
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
