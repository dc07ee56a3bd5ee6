"""Caches replies to identical requests in a SQLite file, through langchain-community's cache."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from langchain_community.cache import SQLiteCache
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration
from sqlalchemy.exc import SQLAlchemyError

from environments.base import InputError

# SQLiteCache loads its entries with a default that is going to change; the file is the user's own.
warnings.filterwarnings("ignore", message="The default value of `allowed_objects`")

P = ParamSpec("P")
T = TypeVar("T")
Messages = Sequence[tuple[str, str]]


class ReplyCache:
    """Replies keyed by everything that shapes them: endpoint, model, sampling, schema, method, messages.

    LangChain's own caching would keep every reply, also malformed ones, and would look up inside a request that a
    budget may refuse. Here the caller decides what is kept, and looks up before it sends. Several processes may share
    the file.

    Args:
        path: the file; it and its folder are created if missing.

    Raises InputError when the file cannot be opened as such a cache.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._cache = SQLiteCache(str(path))
        except (OSError, SQLAlchemyError) as error:
            raise self._unusable(error) from None

    async def get(self, messages: Messages, request: dict[str, Any]) -> AIMessage | None:
        """Return the cached reply to the request, or None."""
        found = await self._run(self._cache.lookup, json.dumps(messages), _text(request))
        message = getattr(found[0], "message", None) if found else None
        return message if isinstance(message, AIMessage) else None

    async def keep(self, messages: Messages, request: dict[str, Any], reply: AIMessage) -> None:
        """Keep the reply for the next identical request."""
        await self._run(self._cache.update, json.dumps(messages), _text(request), [ChatGeneration(message=reply)])

    async def _run(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(work, *arguments, **options)
        except SQLAlchemyError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> InputError:
        reason = str(getattr(error, "orig", None) or getattr(error, "strerror", None) or type(error).__name__)
        return InputError(
            f"roles.cache: {self._path} cannot be used, {reason}: name another file or remove the setting"
        )


def _text(request: dict[str, Any]) -> str:
    return json.dumps(request, sort_keys=True)
