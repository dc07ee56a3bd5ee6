"""Settings of the failure memory and of the evolving task set, and the strict base of every settings section."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


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


class TaskSettings(Section):
    """D_0 and how tasks of D_t are drawn."""

    initial: str | None = Field(None, description="JSONL file of tasks to start from instead of unguided exploration")
    initial_count: int = Field(100, ge=1, description="tasks of D_0 (paper: 100)")
    evolved_share: float = Field(
        0.5, ge=0.0, le=1.0, description="share of a step's tasks drawn from evolved tasks once there are any (ours)"
    )
