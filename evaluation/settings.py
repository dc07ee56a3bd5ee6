"""Settings of the evaluation that runs beside an evolution."""

from __future__ import annotations

from pydantic import Field

from memory.settings import Section


class EvaluationSettings(Section):
    """The fixed panel that is scored before and after each round."""

    panel: str | None = Field("templated-dev", description="panel to score; null scores none")
    limit: int | None = Field(None, ge=1, description="score the panel's first N tasks only (labelled as such)")
    batch: int = Field(128, ge=1, description="episodes decoded together")
