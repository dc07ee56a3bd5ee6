"""Settings of the failure memory and of the task set."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from environments.sections import GIVEN, Section, requires


class MemorySettings(Section):
    """How failure contexts are compared (ours: exact signature first, cosine within it)."""

    embedder: Literal["hashed-ngrams", "sentence-transformers"] = Field(
        "hashed-ngrams",
        description="hashed character n-grams need nothing; sentence-transformers needs embedder_path",
        json_schema_extra=requires({"deduplicate": True}),
    )
    embedder_path: str | None = Field(
        None,
        description="folder of a sentence-transformers model",
        json_schema_extra=requires({"embedder": "sentence-transformers"}),
    )
    duplicate_above: float = Field(
        0.9,
        ge=0.0,
        le=1.0,
        description="cosine at which a context counts as known",
        json_schema_extra=requires({"deduplicate": True}),
    )
    recur_after: int = Field(
        3,
        ge=1,
        le=10**9,
        description="iterations after which a known weakness that recurs is explored again",
        json_schema_extra=requires({"deduplicate": True}),
    )
    deduplicate: bool = Field(
        True, description="false: every context counts as new, nothing is indexed (ours, ablation)"
    )

    @model_validator(mode="after")
    def _path_fits(self) -> Self:
        if self.embedder == "sentence-transformers" and self.embedder_path is None:
            raise ValueError("sentence-transformers needs 'embedder_path', the folder of a model")
        return self


class ExperimentalTasks(Section):
    """Drawing tasks by what earlier rounds scored on them (ours): not shown to help, off by default."""

    sampling: Literal["uniform", "learnability"] = Field(
        "uniform",
        description="uniform, or by p (1 - p) with p the success rate of a task's newest groups (ours)",
    )
    sampling_floor: float = Field(
        0.1,
        gt=0.0,
        le=1.0,
        description="smallest weight in sampling learnability; p = 0.5 and untried tasks have 1 (ours)",
        json_schema_extra=requires({"sampling": "learnability"}),
    )
    retire_above: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="success rate at which a task is retired: all its newest groups have at least this one (ours)",
    )
    retest_every: int = Field(
        3,
        ge=1,
        le=100_000,
        description="iterations after which a retired task is drawn once as a retest (ours)",
        json_schema_extra=requires({"retire_above": GIVEN}),
    )
    newest_groups: int = Field(
        3,
        ge=1,
        le=100_000,
        description="newest groups of a task that sampling learnability and retirement use (ours)",
        json_schema_extra=requires({"sampling": "learnability", "retire_above": GIVEN}),
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
    initial_count: int = Field(
        100, ge=1, le=1_000_000, description="tasks of D_0 (paper: 100)", json_schema_extra=requires({"initial": None})
    )
    initial_guided: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="share of D_0's contexts that are explored around one tool, each in turn, instead of unguided; for "
        "the initial policy's data, so that every tool occurs (ours)",
        json_schema_extra=requires({"initial": None}),
    )
    evolved_share: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="share of a step's tasks drawn from evolved tasks once there are any, the newest first; 0: none is "
        "drawn, or learnt from in an expert step; null: tasks are drawn from D_t as a whole (the paper names no share; "
        "shares are ours)",
    )
    admissions: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] | None = Field(
        None,
        description="tasks that each iteration admits, one number per iteration, drawn from those accepted; null: all "
        "(ours, to compare arms at equal numbers)",
    )
    experimental: ExperimentalTasks = ExperimentalTasks()

    @property
    def uses_evolved(self) -> bool:
        """Return whether evolved tasks are drawn, and so learnt from: with ``evolved_share`` 0 there is D_0 alone."""
        return self.evolved_share != 0.0


class EvolutionSettings(Section):
    """How the making of new tasks and training take turns."""

    concurrent: bool = Field(
        False,
        description="explore, abstract and verify the weaknesses of a round while the next one trains: each round "
        "then trains on the tasks of one iteration earlier (ours; the papers do one after the other)",
    )
