"""Settings of the failure memory and of the task set."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from environments.settings import Section, requires

RECUR_AFTER = 3
"""Iterations after which a known weakness that recurs is explored again (ours)."""


class MemorySettings(Section):
    """How failure contexts are compared (ours: exact signature first, cosine within it)."""

    duplicate_above: float = Field(
        0.9,
        ge=0.0,
        le=1.0,
        description="cosine at which a context counts as known",
        json_schema_extra=requires({"deduplicate": True}),
    )
    deduplicate: bool = Field(True, description="false: every context counts as new (ours, ablation)")


OFFICIAL = "official"
"""The value of ``tasks.initial`` that is not a file."""


class TaskSettings(Section):
    """The making of D_0 and the drawing of tasks from D_t."""

    initial: str | None = Field(
        None,
        description="source of D_0: a JSONL file of tasks, or official, the benchmark's own training tasks; null: "
        "unguided exploration",
    )
    official: Literal["tasks", "turns", "both"] = Field(
        "tasks",
        description="whole tasks; each user turn as a task, behind the reference's turns before it; or both (ours)",
        json_schema_extra=requires({"initial": OFFICIAL}),
    )
    initial_count: int = Field(
        100, ge=1, le=1_000_000, description="tasks of D_0 (paper: 100)", json_schema_extra=requires({"initial": None})
    )
    evolved_share: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="share of a step's tasks that are evolved ones, the newest first; 0: none, nor in an expert "
        "step; null: tasks are drawn from D_t as a whole (shares are ours)",
    )
    repeats: int = Field(
        1,
        ge=1,
        le=100_000,
        description="times that a round draws each of its tasks, at different steps, so that a small round can "
        "show forgetting (ours)",
    )
    admissions: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] | None = Field(
        None,
        description="tasks that each iteration admits, one number per iteration, drawn from those accepted; null: "
        "all (ours)",
    )

    @property
    def uses_evolved(self) -> bool:
        """Return whether evolved tasks are drawn, and so learnt from: with ``evolved_share`` 0 there is D_0 alone."""
        return self.evolved_share != 0.0
