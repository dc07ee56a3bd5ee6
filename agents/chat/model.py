"""Opens the chat model that a role's settings name, on any OpenAI-compatible endpoint."""

from __future__ import annotations

import os

from agents.chat.structured import StructuredModel
from agents.settings import RoleSettings
from environments.base import InputError

KEY_VARIABLE = "OPENAI_API_KEY"


def open_model(settings: RoleSettings, role: str) -> StructuredModel:
    """The model of a chat role; ``role`` is its key in the recipe. No request is sent.

    Raises InputError when the environment variable OPENAI_API_KEY holds no key.
    """
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        raise InputError(
            f"roles.{role}.kind is chat, but the environment variable {KEY_VARIABLE} is not set: set it to the "
            "endpoint's key (any text for an endpoint without keys), or use kind: scripted"
        )
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    assert settings.model is not None, "RoleSettings demands a model of a chat role"
    model = ChatOpenAI(
        model=settings.model,
        base_url=settings.base_url,
        api_key=SecretStr(key),
        temperature=settings.temperature,
        timeout=settings.timeout,
        max_retries=0,
    )
    return StructuredModel(model, settings.timeout, settings.max_retries)
