"""Settings of the evaluation that runs beside an evolution."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from memory.settings import Section


class EvaluationSettings(Section):
    """The fixed tasks that are scored before and after each round: a panel, or a file where there is none."""

    panel: str | None = Field("templated-dev", description="panel to score; null scores none")
    tasks: str | None = Field(
        None,
        description="a JSONL file of held-out tasks to score, for an environment without panels: D_0 and drafts are "
        "refused where they equal one of them (ours)",
    )
    limit: int | None = Field(None, ge=1, le=1_000_000, description="score the first N tasks only (labelled as such)")
    batch: int | None = Field(
        None, ge=1, le=65_536, description="episodes decoded together; null: as many as suit the environment, 128 or 8"
    )
    max_actions: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="actions in one user turn at most; null: what the environment allows, else 20",
    )
    max_new_tokens: int | None = Field(
        None, ge=1, le=1_048_576, description="sampled tokens of one message at most; null: training.max_new_tokens"
    )
    max_tokens: int | None = Field(
        None, ge=16, le=1_048_576, description="tokens of one episode at most; null: training.max_tokens"
    )

    @model_validator(mode="after")
    def _panel_is_there(self) -> Self:
        # A default that is written out says nothing: a run's settings.yaml holds every key.
        fields = type(self).model_fields
        keys = ("limit", "batch", "max_actions", "max_new_tokens", "max_tokens")
        given = [key for key in keys if getattr(self, key) != fields[key].default]
        if self.scored is None and given:
            raise ValueError(f"'{given[0]}' is for a panel, and none is scored: remove it or name a panel")
        if self.panel is not None and self.tasks is not None:
            raise ValueError("'tasks' is scored in place of a panel: set 'panel' to null, or remove it")
        return self

    @property
    def scored(self) -> str | None:
        """The name of what is scored, None where nothing is."""
        return self.panel if self.tasks is None else Path(self.tasks).name
