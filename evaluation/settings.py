"""Settings of the evaluation that runs beside an evolution."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from memory.settings import Section


class EvaluationSettings(Section):
    """The fixed panel that is scored before and after each round."""

    panel: str | None = Field("templated-dev", description="panel to score; null scores none")
    limit: int | None = Field(None, ge=1, description="score the panel's first N tasks only (labelled as such)")
    batch: int = Field(128, ge=1, description="episodes decoded together")

    @model_validator(mode="after")
    def _panel_is_there(self) -> Self:
        # A default that is written out says nothing: a run's settings.yaml holds every key.
        fields = type(self).model_fields
        given = [key for key in ("limit", "batch") if getattr(self, key) != fields[key].default]
        if self.panel is None and given:
            raise ValueError(f"'{given[0]}' is for a panel, and none is scored: remove it or name a panel")
        return self
