"""How a chat template's prompts are written: chosen in a recipe, kept in the policy's card, equal wherever it plays."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from environments.base import InputError
from environments.settings import Section


class RenderingOptions(Section):
    """The choices of a chat template's rendering; null: as the policy's card says, without a card the default."""

    thinking: bool | None = Field(
        None, description="enable_thinking of the chat template; null: as trained, else the template's default"
    )
    documentation: Literal["schemas", "lines"] | None = Field(
        None,
        description="how a chat template documents a function: by schemas, or by lines (ours); null: as trained, "
        "else schemas",
    )
    tools_shown: Literal["all"] | Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None,
        description="functions that a chat template documents for a user turn: all, or the K that BM25 ranks "
        "highest for its text (ours); null: as trained, else all",
    )

    @field_validator("tools_shown", mode="before")
    @classmethod
    def _all_or_a_number(cls, value: object) -> object:
        return None if value is None else cls.checked_count(value)

    @staticmethod
    def checked_count(value: object) -> str | int:
        """Return ``value`` if it is ``all`` or an integer from 1 on. Raises ValueError for any other."""
        if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            return value
        raise ValueError("give all, or the number of functions, 1 or more")

    def else_of(self, card: RenderingOptions | None) -> RenderingOptions:
        """Return the options with what they leave open taken from ``card``."""
        kept = {} if card is None else card.given_options
        return RenderingOptions.model_validate(kept | self.given_options)

    @property
    def given_options(self) -> dict[str, bool | str | int]:
        """The options that are not null."""
        values = {name: getattr(self, name) for name in RenderingOptions.model_fields}
        return {name: value for name, value in values.items() if value is not None}

    def check_compact(self, path: str) -> None:
        """Raise InputError for an option of a chat template: the policy at ``path`` has none."""
        for name in self.given_options:
            raise InputError(f"policy.{name}: {path} has no chat template, its rendering is compact: leave it null")
