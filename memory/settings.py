"""Settings of the failure memory and of the evolving task set, and the strict base of every settings section."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A section of a recipe: unknown keys are errors that name the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MemorySettings(Section):
    """How failure contexts are told apart (our choice: exact signature first, cosine inside it)."""

    embedder: Literal["hashed-ngrams", "sentence-transformers"] = Field(
        "hashed-ngrams", description="hashed character n-grams need nothing; sentence-transformers needs embedder_path"
    )
    embedder_path: str | None = Field(None, description="folder of a sentence-transformers model")
    duplicate_above: float = Field(0.9, ge=0.0, le=1.0, description="cosine at which a context counts as known")
    recur_after: int = Field(3, ge=1, description="iterations after which a known weakness is explored again")

    @model_validator(mode="after")
    def _path_fits(self) -> Self:
        if self.embedder == "hashed-ngrams" and self.embedder_path is not None:
            raise ValueError("'embedder_path' is for sentence-transformers, hashed-ngrams would ignore it: remove it")
        if self.embedder == "sentence-transformers" and self.embedder_path is None:
            raise ValueError("sentence-transformers needs 'embedder_path', the folder of a model")
        return self


class TaskSettings(Section):
    """D_0 and how tasks of D_t are drawn."""

    initial: str | None = Field(None, description="JSONL file of tasks to start from instead of unguided exploration")
    initial_count: int = Field(100, ge=1, description="tasks of D_0 (paper: 100)")
    evolved_share: float = Field(
        0.5, ge=0.0, le=1.0, description="share of a step's tasks drawn from evolved tasks once there are any (ours)"
    )

    @model_validator(mode="after")
    def _count_fits(self) -> Self:
        # A default that is written out says nothing: a run's settings.yaml holds every key.
        if self.initial is not None and self.initial_count != type(self).model_fields["initial_count"].default:
            raise ValueError("'initial_count' is for D_0 by exploration, a file in 'initial' has its own: remove it")
        return self
