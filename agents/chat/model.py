"""Opens the chat model that a role's settings name, on any OpenAI-compatible endpoint."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from agents.chat.endpoint import resolve
from agents.chat.structured import StructuredModel
from agents.settings import ChatSettings
from agents.spending import Ledger
from environments.base import InputError

if TYPE_CHECKING:
    from langchain_core.caches import BaseCache


def open_model(
    settings: ChatSettings, role: str, ledger: Ledger, concurrency: int, cache: str | None = None
) -> StructuredModel:
    """Open the model of a chat role; ``role`` is its key in the recipe. No request is sent.

    ``concurrency``: most requests in flight at its endpoint, over all roles. ``cache``: SQLite file of replies to
    requests that were asked before, each of which is then not sent. Raises InputError when no model or key is given
    (see ``agents.chat.endpoint``), and where the file cannot be opened as such a cache.
    """
    endpoint = resolve(settings, role)
    # langchain-openai warns when an endpoint rejects a JSON schema; falling back to tool calls is what it advises.
    warnings.filterwarnings("ignore", message="This model does not support OpenAI's structured output feature")
    from langchain_openai import ChatOpenAI

    from agents.chat.http import PLACEHOLDER, GuardedClient, unused_client

    kept: BaseCache | bool = False
    if cache is not None:
        if not Path(cache).parent.is_dir():
            raise InputError(f"roles.cache: {Path(cache).parent} is not a folder: make it, or name another file")
        from langchain_community.cache import SQLiteCache
        from sqlalchemy.exc import SQLAlchemyError

        # SQLiteCache loads its entries with a default that is going to change; the file is the user's own.
        warnings.filterwarnings("ignore", message="The default value of `allowed_objects`")
        try:
            kept = SQLiteCache(cache)
        except SQLAlchemyError as error:
            reason = getattr(error, "orig", None) or type(error).__name__
            raise InputError(f"roles.cache: {cache} cannot be used, {reason}: name another file") from None
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
        cache=kept,
        http_async_client=GuardedClient(endpoint),
        http_client=unused_client(),
    )
    return StructuredModel(model, endpoint, settings, ledger, concurrency)
