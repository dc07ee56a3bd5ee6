"""Settings of the failure memory and of the task set."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from environments.sections import Section, requires

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
    deduplicate: bool = Field(
        True, description="false: every context counts as new, nothing is indexed (ours, ablation)"
    )


OFFICIAL = "official"
"""The value of ``tasks.initial`` that is not a file."""


class TaskSettings(Section):
    """The making of D_0 and the drawing of tasks from D_t."""

    initial: str | None = Field(
        None,
        description="source of D_0 in place of unguided exploration: a JSONL file of tasks, or official, the "
        "benchmark's own tasks of the training split; null: unguided exploration",
    )
    official: Literal["tasks", "turns", "both"] = Field(
        "tasks",
        description="what D_0 of official tasks holds: whole tasks; each user turn with a reference call as a task of "
        "its own, in which the reference plays the turns before it; or both (ours)",
        json_schema_extra=requires({"initial": OFFICIAL}),
    )
    initial_count: int = Field(
        100, ge=1, le=1_000_000, description="tasks of D_0 (paper: 100)", json_schema_extra=requires({"initial": None})
    )
    evolved_share: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="share of a step's tasks drawn from evolved tasks once there are any, the newest first; 0: none is "
        "drawn, or learnt from in an expert step; null: tasks are drawn from D_t as a whole (the paper names no share; "
        "shares are ours)",
    )
    repeats: int = Field(
        1,
        ge=1,
        le=100_000,
        description="times that a round draws each of its tasks, at different steps: a round of F steps draws as many "
        "tasks as F / repeats steps hold, so that forgetting can be seen within a small round (ours)",
    )
    admissions: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] | None = Field(
        None,
        description="tasks that each iteration admits, one number per iteration, drawn from those accepted; null: all "
        "(ours, to compare arms at equal numbers)",
    )

    @property
    def uses_evolved(self) -> bool:
        """Return whether evolved tasks are drawn, and so learnt from: with ``evolved_share`` 0 there is D_0 alone."""
        return self.evolved_share != 0.0
