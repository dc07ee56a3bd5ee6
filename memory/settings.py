"""Settings of the failure memory and of the task set, and the strict base class of every settings section."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A section of a recipe: unknown keys are errors that name the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def _given(self, *keys: str) -> list[str]:
        """Return those of ``keys`` whose value is not the default; a key of a section within this one is dotted.

        A default that is written out counts as not given: a run's settings.yaml holds every key.
        """
        defaults = type(self).model_construct()
        return [key for key in keys if attrgetter(key)(self) != attrgetter(key)(defaults)]


class MemorySettings(Section):
    """How failure contexts are compared (ours: exact signature first, cosine within it)."""

    embedder: Literal["hashed-ngrams", "sentence-transformers"] = Field(
        "hashed-ngrams", description="hashed character n-grams need nothing; sentence-transformers needs embedder_path"
    )
    embedder_path: str | None = Field(None, description="folder of a sentence-transformers model")
    duplicate_above: float = Field(0.9, ge=0.0, le=1.0, description="cosine at which a context counts as known")
    recur_after: int = Field(
        3, ge=1, le=10**9, description="iterations after which a known weakness that recurs is explored again"
    )
    deduplicate: bool = Field(
        True, description="false: every context counts as new, nothing is indexed (ours, ablation)"
    )

    @model_validator(mode="after")
    def _path_fits(self) -> Self:
        if self.embedder == "hashed-ngrams" and self.embedder_path is not None:
            raise ValueError("'embedder_path' is for sentence-transformers, hashed-ngrams would ignore it: remove it")
        if self.embedder == "sentence-transformers" and self.embedder_path is None:
            raise ValueError("sentence-transformers needs 'embedder_path', the folder of a model")
        return self

    @model_validator(mode="after")
    def _something_is_deduplicated(self) -> Self:
        given = self._given("embedder", "duplicate_above", "recur_after")
        if not self.deduplicate and given:
            raise ValueError(f"'{given[0]}' says how contexts are compared, deduplicate: false ignores it: remove it")
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
    )
    newest_groups: int = Field(
        3,
        ge=1,
        le=100_000,
        description="newest groups of a task that sampling learnability and retirement use (ours)",
    )

    @model_validator(mode="after")
    def _draw_fits(self) -> Self:
        if self.sampling == "uniform" and self._given("sampling_floor"):
            raise ValueError("'sampling_floor' is for sampling learnability, uniform would ignore it: remove it")
        if self.retire_above is None and self._given("retest_every"):
            raise ValueError("'retest_every' is for retired tasks, retire_above null retires none: remove it")
        if self.sampling == "uniform" and self.retire_above is None and self._given("newest_groups"):
            raise ValueError(
                "'newest_groups' is for sampling learnability and retirement, and neither is set: remove it"
            )
        return self


OFFICIAL = "official"
"""The value of ``tasks.initial`` that is not a file."""


class TaskSettings(Section):
    """The making of D_0 and the drawing of tasks from D_t."""

    initial: str | None = Field(
        None,
        description="source of D_0 in place of unguided exploration: a JSONL file of tasks, or official, the "
        "benchmark's own tasks of the training split; null: unguided exploration",
    )
    initial_count: int = Field(100, ge=1, le=1_000_000, description="tasks of D_0 (paper: 100)")
    initial_guided: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="share of D_0's contexts that are explored around one tool, each in turn, instead of unguided; for "
        "the initial policy's data, so that every tool occurs (ours)",
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

    @model_validator(mode="after")
    def _count_fits(self) -> Self:
        if self.initial is not None and self._given("initial_count"):
            raise ValueError("'initial_count' is for D_0 by exploration, a file in 'initial' has its own: remove it")
        if self.initial is not None and self._given("initial_guided"):
            raise ValueError("'initial_guided' is for D_0 by exploration, 'initial' names its tasks: remove it")
        return self

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
