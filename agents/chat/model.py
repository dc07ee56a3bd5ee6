"""Opens the chat model that a role's settings name, on any OpenAI-compatible endpoint."""

from __future__ import annotations

import warnings
from pathlib import Path

from pydantic import SecretStr

from agents.chat.endpoint import resolve
from agents.chat.structured import StructuredModel
from agents.settings import RoleSettings, RolesSettings
from agents.spending import Ledger


def open_model(settings: RoleSettings, role: str, ledger: Ledger, roles: RolesSettings) -> StructuredModel:
    """Open the model of a chat role; ``role`` is its key in the recipe. No request is sent.

    ``roles`` has what all roles share: concurrency and cache. Raises InputError when no model or key is given (see
    ``agents.chat.http``) or the cache cannot be opened.
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
        max_retries=0,
        openai_proxy=None,  # proxies are those of HTTP_PROXY and its kind, which the HTTP client reads
        use_responses_api=False,
        cache=False,
        http_async_client=GuardedClient(endpoint),
        http_client=unused_client(),
    )
    cache = None
    if roles.cache is not None:
        from agents.chat.caching import ReplyCache

        cache = ReplyCache(Path(roles.cache))
    return StructuredModel(model, endpoint, settings, ledger, roles.concurrency, cache, roles.failures_in_a_row)
