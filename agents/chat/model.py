"""Opens the chat model that a role's settings name, on any OpenAI-compatible endpoint."""

from __future__ import annotations

import warnings

from pydantic import SecretStr

from agents.chat.endpoint import resolve
from agents.chat.structured import StructuredModel
from agents.settings import ChatSettings
from agents.spending import Ledger


def open_model(settings: ChatSettings, role: str, ledger: Ledger, concurrency: int) -> StructuredModel:
    """Open the model of a chat role; ``role`` is its key in the recipe. No request is sent.

    ``concurrency``: most requests in flight at its endpoint, over all roles. Raises InputError when no model or key is
    given (see ``agents.chat.endpoint``).
    """
    endpoint = resolve(settings, role)
    # langchain-openai warns when an endpoint rejects a JSON schema; falling back to tool calls is what it advises.
    warnings.filterwarnings("ignore", message="This model does not support OpenAI's structured output feature")
    from langchain_openai import ChatOpenAI

    from agents.chat.http import PLACEHOLDER, GuardedClient, unused_client

    model = ChatOpenAI(
        model=endpoint.model,
        base_url=endpoint.base_url,
        api_key=SecretStr(PLACEHOLDER),
        temperature=settings.temperature,
        max_completion_tokens=settings.max_tokens,
        timeout=settings.timeout,
        max_retries=settings.max_retries,
        openai_proxy=None,  # proxies are those of HTTP_PROXY and its kind, which the HTTP client reads
        use_responses_api=False,
        cache=False,
        http_async_client=GuardedClient(endpoint),
        http_client=unused_client(),
    )
    return StructuredModel(model, endpoint, settings, ledger, concurrency)
