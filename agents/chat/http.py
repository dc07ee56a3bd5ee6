"""The endpoint of a chat role, and its HTTP client: caps response size, redacts the key, rejects malformed responses.

Model, endpoint and key come from the recipe, otherwise from environment variables:

- ``COEVOLVE_<ROLE>_MODEL``: the model of one role, for example ``COEVOLVE_REFLECTOR_MODEL``
- ``COEVOLVE_CHAT_MODEL``: the model of every chat role without one of its own
- ``COEVOLVE_<ROLE>_BASE_URL``: the endpoint of one role
- ``OPENAI_BASE_URL``: the endpoint of every chat role without one of its own; OpenAI's if it is not set
- ``OPENAI_API_KEY``: the key, unless the role's ``key_variable`` names another variable
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from openai import DefaultAsyncHttpxClient
from pydantic import BaseModel, Field, SecretStr, ValidationError

from agents.settings import RoleSettings
from environments.base import InputError
from memory.jsonl import complaint

if TYPE_CHECKING:
    from httpx2 import Request, Response

OPENAI_URL = "https://api.openai.com/v1"
HIDDEN = "[key]"
SHORTEST_SECRET = 8
"""Keys with fewer characters are placeholders for endpoints without keys: not secret, and redacting them would mangle
replies that contain the same word."""


@dataclass(frozen=True)
class Endpoint:
    """Where a chat role's requests go. ``repr`` does not show the key."""

    role: str
    model: str
    base_url: str
    key_variable: str
    key: SecretStr

    def hide(self, text: str) -> str:
        """Redact the key in ``text``: an endpoint may echo it in its response."""
        key = self.key.get_secret_value()
        return text.replace(key, HIDDEN) if len(key) >= SHORTEST_SECRET else text


def resolve(settings: RoleSettings, role: str) -> Endpoint:
    """Resolve the endpoint of a chat role; ``role`` is its key in the recipe.

    Raises InputError when no model or no key is given, or the key or the URL cannot be sent.
    """
    return Endpoint(
        role=role,
        model=model_of(settings, role),
        base_url=_base_url(settings, role),
        key_variable=settings.key_variable,
        key=_key(settings.key_variable, role),
    )


def model_of(settings: RoleSettings, role: str) -> str:
    """Return the name of the role's model. Raises InputError when none is given."""
    own = _variable(role, "MODEL")
    model = settings.model or os.environ.get(own) or os.environ.get("COEVOLVE_CHAT_MODEL")
    if not model:
        raise InputError(
            f"roles.{role}.kind is chat, but no model is given: set roles.{role}.model in the recipe, or the "
            f"environment variable {own} or COEVOLVE_CHAT_MODEL"
        )
    return model


def _base_url(settings: RoleSettings, role: str) -> str:
    own = _variable(role, "BASE_URL")
    sources = {
        f"roles.{role}.base_url": settings.base_url,
        f"the environment variable {own}": os.environ.get(own),
        "the environment variable OPENAI_BASE_URL": os.environ.get("OPENAI_BASE_URL"),
    }
    name, url = next(((name, url) for name, url in sources.items() if url), ("", OPENAI_URL))
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        valid = valid and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise InputError(f"{name} is no URL of an endpoint: write http:// or https://, a host, and no user or password")
    return url


def _key(variable: str, role: str) -> SecretStr:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(
            f"roles.{role}.kind is chat, but the environment variable {variable} is not set: set it to the "
            "endpoint's key (any text for an endpoint without keys), or use kind: scripted"
        )
    if not all("!" <= character <= "~" for character in key):
        # The HTTP library would name the whole header in its error.
        raise InputError(f"the environment variable {variable} holds no key: it has spaces or characters beyond ASCII")
    return SecretStr(key)


def _variable(role: str, what: str) -> str:
    return f"COEVOLVE_{role.upper()}_{what}"


LONGEST_BODY = 8 * 2**20
"""Most bytes of a response that are read (ours)."""
MOST_TOKENS = 10**9
"""Largest plausible token count of one request (ours): a number beyond any model's context is not a count."""
_OF_THE_ORIGINAL = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class NoCompletion(Exception):
    """A response with status 200 without a chat completion. The tokens are those that it reports as used."""

    def __init__(self, problem: str, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        super().__init__(problem)
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens


class _Function(BaseModel):
    name: str
    arguments: str


class _Call(BaseModel):
    function: _Function


class _Message(BaseModel):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Message


class _Usage(BaseModel):
    prompt_tokens: int = Field(0, ge=0, le=MOST_TOKENS)
    completion_tokens: int = Field(0, ge=0, le=MOST_TOKENS)


class _Completion(BaseModel):
    """The part of a chat completion that the client libraries assume to be there."""

    choices: list[_Choice]
    usage: _Usage | None = None


class GuardedClient(DefaultAsyncHttpxClient):
    """The OpenAI client's transport; each event loop gets its own connections.

    A response is read completely before it is passed on, at most ``LONGEST_BODY`` bytes, and the key is redacted
    everywhere in it, so that no caller can record it. Redirects are not followed: each would be a request that no
    budget counts, and another host would read the prompt.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._secret = endpoint.key.get_secret_value()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, DefaultAsyncHttpxClient] = WeakKeyDictionary()

    async def send(self, request: Request, **options: Any) -> Response:  # noqa: ANN401
        """Send, read and check. Raises NoCompletion for a success without a chat completion."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = DefaultAsyncHttpxClient(follow_redirects=False)
        options |= {"stream": True, "follow_redirects": False}
        response = await self._by_loop[loop].send(request, **options)
        try:
            body = await _read(response)
        finally:
            await response.aclose()
        headers = [
            (name, self._hidden(value))
            for name, value in response.headers.multi_items()
            if name.lower() not in _OF_THE_ORIGINAL
        ]
        body = body.replace(self._secret.encode(), HIDDEN.encode()) if self._is_secret else body
        if response.is_success:
            _check(body)
        return type(response)(response.status_code, headers=headers, content=body, request=request)

    @property
    def _is_secret(self) -> bool:
        return len(self._secret) >= SHORTEST_SECRET

    def _hidden(self, text: str) -> str:
        return text.replace(self._secret, HIDDEN) if self._is_secret else text


async def _read(response: Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > LONGEST_BODY:
            raise NoCompletion(f"no chat completion: a response of more than {LONGEST_BODY} bytes")
    return bytes(body)


def _check(body: bytes) -> None:
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError as error:
        begins = body[:120].decode(errors="replace")
        problem = f"no chat completion: {complaint(error):.120}; the response begins with {begins!r}"
        raise NoCompletion(problem) from None
    if not completion.choices:
        usage = completion.usage or _Usage()
        raise NoCompletion("empty choices", usage.prompt_tokens, usage.completion_tokens)
