"""The HTTP client of the chat endpoints: caps response size, redacts the key, rejects malformed responses."""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import cache
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import httpx2
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from pydantic import BaseModel, Field, ValidationError

from agents.chat.endpoint import Endpoint
from agents.chat.sending import Fault, Usage, attempt, fault_of
from memory.jsonl import complaint

if TYPE_CHECKING:
    from httpx2 import Client, Request, Response

# The connection's log at DEBUG has the headers as they came, before the key is redacted in them.
logging.getLogger("httpcore2").setLevel(logging.INFO)

LONGEST_BODY = 8 * 2**20
"""Most bytes of a response that are read (ours)."""
MOST_TOKENS = 10**9
"""Largest plausible token count of one request (ours): a number beyond any model's context is not a count."""
PLACEHOLDER = "of-the-transport"
"""What the client libraries get as the key: they refuse to be without one, and never have the real one."""
_SENT = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "host", "transfer-encoding"}
)
"""Headers of a request that are sent. The libraries add others, some from environment variables of OpenAI's account."""
_OF_THE_ORIGINAL = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class _Function(BaseModel):
    name: str
    arguments: str


class _Call(BaseModel):
    function: _Function


class _Message(BaseModel):
    role: Literal["assistant"] = "assistant"
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


@cache
def certificates() -> ssl.SSLContext:
    """Return the certificates that endpoints are verified by, read once: each client would read them anew for 40 ms."""
    return httpx2.create_ssl_context()


@cache
def unused_client() -> Client:
    """Return what the chat library asks for beside the asynchronous client; every request here is asynchronous."""
    return DefaultHttpxClient(verify=certificates())


class GuardedClient(DefaultAsyncHttpxClient):
    """The OpenAI client's transport; each event loop gets its own connections.

    A response is read completely before it is passed on, at most ``LONGEST_BODY`` bytes, and the key is redacted
    everywhere in it, so that no caller can record it. Redirects are not followed: each would be a request that no
    budget counts, and another host would read the prompt. The key is added here, and no header beside it is sent that
    HTTP does not need.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(verify=certificates())
        self._endpoint = endpoint
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, DefaultAsyncHttpxClient] = WeakKeyDictionary()

    async def send(self, request: Request, **options: Any) -> Response:  # noqa: ANN401
        """Send once, read and check. Raises Fault for a success without a chat completion."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = DefaultAsyncHttpxClient(verify=certificates(), follow_redirects=False)
        options |= {"stream": True, "follow_redirects": False}
        async with attempt() as ended:
            response = await self._by_loop[loop].send(self._with_key(request), **options)
            try:
                body = await _read(response)
            finally:
                await response.aclose()
            headers = [
                (name, self._endpoint.hide(value))
                for name, value in response.headers.multi_items()
                if name.lower() not in _OF_THE_ORIGINAL
            ]
            body = self._endpoint.hide(body.decode("latin-1")).encode("latin-1")  # byte for byte: the key is ASCII
            answer = type(response)(response.status_code, headers=headers, content=body, request=request)
            ended(_usage_of(body) if answer.is_success else fault_of(answer))
        return answer

    def _with_key(self, request: Request) -> Request:
        headers = {name: value for name, value in request.headers.items() if name.lower() in _SENT}
        if key := self._endpoint.key.get_secret_value():
            headers["authorization"] = f"Bearer {key}"
        return httpx2.Request(
            request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
        )


async def _read(response: Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > LONGEST_BODY:
            raise Fault(f"no chat completion: a response of more than {LONGEST_BODY} bytes")
    return bytes(body)


def _usage_of(body: bytes) -> Usage | None:
    """Return the tokens that a chat completion reports. Raises Fault for anything else."""
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError as error:
        begins = body[:120].decode(errors="replace")
        problem = f"no chat completion: {complaint(error):.120}; the response begins with {begins!r}"
        raise Fault(problem) from None
    usage = None if completion.usage is None else (completion.usage.prompt_tokens, completion.usage.completion_tokens)
    if not completion.choices:
        raise Fault("empty choices", usage=usage or (0, 0))
    return usage
