"""Settings of the environment and of verification."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator

BFCL = "bfcl"
APPWORLD = "appworld"
BFCL_DEFAULTS: dict[str, Any] = {"classes": ("GorillaFileSystem", "VehicleControlAPI"), "max_steps": 20}
"""BFCL's own options where a recipe leaves them out; for any other environment they are null."""

SERVER_URL = re.compile(r"https?://[^/?#\s]+")

APPWORLD_STEPS = 30
"""AppWorld's ``max_steps`` where a recipe leaves it out (official)."""

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_import_path(name: str) -> bool:
    """Whether ``name`` is written as ``module:callable``, as an environment of the user's is."""
    return _IMPORT_PATH.fullmatch(name) is not None


class EnvironmentSettings(BaseModel):
    """Which environment, and its options: BFCL has two keys of its own, AppWorld three, a user's ``options``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    name: str = Field(
        BFCL, description="bfcl, appworld, or an environment of your own as module:callable (my_shop:open_shop)"
    )
    classes: tuple[str, ...] | None = Field(
        None, description="bfcl: official classes that exploration and templated tasks use (ours: two of eight)"
    )
    max_steps: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="bfcl, appworld: actions in one user turn before it is cut off (official: 20 and 30)",
    )
    servers: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="appworld: base URLs of `appworld serve environment` servers to play on, one episode a server, "
        "instead of the project's own worker; they must serve the world that is installed here",
    )
    trust_agent_code: bool | None = Field(
        None,
        description="appworld: true says that agents' code may run where the kernel does not wall it in: on a machine "
        "without bubblewrap, or on servers, where neither the tasks' solutions nor their user's files are out of its "
        "reach",
    )
    options: dict[str, JsonValue] = Field({}, description="module:callable: the arguments that the callable is given")

    @field_validator("name")
    @classmethod
    def _openable(cls, name: str) -> str:
        if name not in (BFCL, APPWORLD) and not is_import_path(name):
            raise ValueError(
                f"{name!r} is no environment: write {BFCL}, {APPWORLD}, or module:callable of your own, "
                "for example environments.example:depot"
            )
        return name

    @field_validator("classes", "max_steps")
    @classmethod
    def _of_benchmarks(cls, value: object, info: ValidationInfo) -> object:
        name, key = info.data.get("name"), info.field_name or ""
        if name == BFCL:
            return BFCL_DEFAULTS[key] if value is None else value
        if name == APPWORLD and key == "max_steps":
            return APPWORLD_STEPS if value is None else value
        if name is not None and value is not None:
            instead = "" if name == APPWORLD else ", or use environment.options"
            raise ValueError(f"this is for {BFCL}, {name} would ignore it: remove it{instead}")
        return value

    @field_validator("servers")
    @classmethod
    def _reachable(cls, value: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if value is None:
            return None
        name = info.data.get("name")
        if name is not None and name != APPWORLD:
            raise ValueError(f"this is for {APPWORLD}, {name} would ignore it: remove it")
        urls = tuple(url.rstrip("/") for url in value)
        for url in urls:
            if not SERVER_URL.fullmatch(url):
                raise ValueError(f"{url!r} is no base URL of a server: write it as http://localhost:8000")
            if urls.count(url) > 1:
                raise ValueError(f"{url} is named twice: a server plays one episode at a time, name it once")
        return urls

    @field_validator("trust_agent_code")
    @classmethod
    def _said_of_servers(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if "servers" not in info.data:  # they are wrong themselves, which is told
            return value
        if info.data.get("name", APPWORLD) != APPWORLD and value is not None:
            raise ValueError(f"this is for {APPWORLD}, {info.data['name']} would ignore it: remove it")
        if info.data["servers"] is not None and value is not True:
            raise ValueError(
                "servers run agents' code where it can read the tasks' solutions and their user's files: write true if "
                "you trust that code, or remove environment.servers"
            )
        return value

    @field_validator("options")
    @classmethod
    def _of_others(cls, value: dict[str, JsonValue], info: ValidationInfo) -> dict[str, JsonValue]:
        name = info.data.get("name")
        if name in (BFCL, APPWORLD) and value:
            raise ValueError(f"this is for an environment of your own, {name} would ignore it: remove it")
        return value

    @property
    def is_own(self) -> bool:
        """Whether it is an environment of the user's."""
        return self.name not in (BFCL, APPWORLD)


class VerificationSettings(BaseModel):
    """What a draft must pass beside the checks that are never off: held-out panels, duplicates, whether it opens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replays: int = Field(2, ge=2, le=100, description="fresh replays that must agree")
    max_calls: int = Field(6, ge=1, le=1000, description="longest reference of a draft, all turns together")
    enabled: bool = Field(
        True,
        description="false: every draft of an iteration that can be opened becomes a task, unless it is a panel's or a "
        "duplicate; D_0 is verified all the same (ours, ablation)",
    )
    perturbed: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="share of an iteration's drafts whose reference gets one argument or call changed before they are "
        "verified; never D_0's (ours, stress test)",
    )
