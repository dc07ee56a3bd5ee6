"""Settings of the three roles: which implementation, and how much it may do."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from memory.settings import Section

CHAT_ONLY = ("model", "base_url", "temperature", "timeout", "max_retries")


class RoleSettings(Section):
    """One role. Options of a chat model are errors where the role is scripted."""

    kind: Literal["scripted", "chat"] = "scripted"
    model: str | None = Field(None, description="chat: name of the model at the endpoint")
    base_url: str | None = Field(None, description="chat: an OpenAI-compatible endpoint")
    temperature: float | None = Field(None, ge=0.0, description="chat: sampling temperature")
    timeout: float = Field(120.0, gt=0, description="chat: seconds for one request, its deadline")
    max_retries: int = Field(3, ge=0, description="chat: further attempts after a failed request")

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        # A default that is written out says nothing: a run's settings.yaml holds every key.
        given = [key for key in CHAT_ONLY if getattr(self, key) != type(self).model_fields[key].default]
        if self.kind == "scripted" and given:
            raise ValueError(f"'{given[0]}' is for kind: chat, a scripted role would ignore it: remove it")
        if self.kind == "chat" and not self.model:
            raise ValueError("kind: chat needs 'model', the name of a model at the endpoint")
        return self


class ExplorationSettings(Section):
    """How long an explorer acts, and how many drafts come of it. All are counts, so that a resumed run agrees."""

    rounds: int = Field(4, ge=1, description="R: episodes opened for one context")
    steps: int = Field(8, ge=1, description="S: actions in one episode")
    drafts_per_context: int = Field(3, ge=1, description="drafts proposed for one context at most")
    max_reference_calls: int = Field(3, ge=1, description="calls of a draft's reference at most")


class RolesSettings(Section):
    """The three roles."""

    reflector: RoleSettings = RoleSettings()
    explorer: RoleSettings = RoleSettings()
    abstractor: RoleSettings = RoleSettings()
    exploration: ExplorationSettings = ExplorationSettings()
    branch_timeout: float = Field(600.0, gt=0, description="deadline in seconds of one context's branch")
