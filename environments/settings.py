"""Settings of the environment and of verification."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EnvironmentSettings(BaseModel):
    """Which environment, and what it opens for exploration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["bfcl"] = Field("bfcl", description="the environment that agents act in")
    classes: tuple[str, ...] = Field(
        ("GorillaFileSystem", "VehicleControlAPI"),
        description="official classes that exploration and templated tasks use",
    )
    max_steps: int = Field(20, ge=1, description="actions in one user turn before it is cut off (official: 20)")


class VerificationSettings(BaseModel):
    """What a draft must pass beside the checks that are never off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replays: int = Field(2, ge=2, description="fresh replays that must agree")
    max_calls: int = Field(6, ge=1, description="longest reference of a draft, all turns together")
