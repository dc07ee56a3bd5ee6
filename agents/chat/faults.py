"""Says what a failed request was: its cause in words, and whether another attempt may do better."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from openai import APIConnectionError, APIStatusError

from agents.chat.endpoint import Endpoint
from agents.chat.http_client import NoCompletion
from agents.chat.replies import shortened
from agents.chat.retrying import is_passing, retry_after
from agents.spending import encodable

FAILURES = (APIStatusError, APIConnectionError, ConnectionError, NoCompletion)
"""What a request that failed raises."""
LONGEST_FAULT = 300
BODY_SHOWN = 120
_USERS_MISTAKES = frozenset({401, 402, 403, 404})
_REJECTIONS = frozenset({400, 422})
_FORMAT_WORDS = ("response_format", "json_schema", "structured output")


@dataclass(frozen=True)
class Fault:
    """One failed request.

    ``kind``: ``passing``, another attempt may succeed; ``mistake``, the key, the model's name or the account is
    refused; ``format``, a JSON schema as the reply's format may be what was rejected; ``rejected``, anything else.
    ``text`` begins with the kind of cause, as in ``HTTP 429: too many requests``, and does not hold the key. ``asked``
    are the seconds of its Retry-After. The tokens are what the response says it used all the same.
    """

    kind: Literal["passing", "mistake", "format", "rejected"]
    text: str
    asked: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


def fault_text(text: str, endpoint: Endpoint) -> str:
    """The text of a fault as it may be recorded: one line, bounded, without the key."""
    return shortened(" ".join(encodable(endpoint.hide(text)).split()).removesuffix(":"), LONGEST_FAULT)


def fault_of(error: Exception, endpoint: Endpoint) -> Fault:
    """What one of ``FAILURES`` means."""
    if isinstance(error, APIStatusError):
        return _of_status(error, endpoint)
    if isinstance(error, NoCompletion):
        return Fault("passing", fault_text(str(error), endpoint), None, error.prompt_tokens, error.completion_tokens)
    cause = _first_cause(error)
    return Fault("passing", fault_text(f"connection failed: {type(cause).__name__}: {cause}", endpoint))


def _of_status(error: APIStatusError, endpoint: Endpoint) -> Fault:
    status = error.status_code
    if error.response.is_redirect:
        place = error.response.headers.get("location", "")
        return Fault(
            "mistake", fault_text(f"HTTP {status}: a redirect to {place:.200}, which is not followed", endpoint)
        )
    said = error.message.removeprefix(f"Error code: {status}").removeprefix(" - ")
    if not said and error.body:  # a page of a proxy, or JSON without a message
        said = f"the response begins with {str(error.body)[:BODY_SHOWN]!r}"
    text = fault_text(f"HTTP {status}: {said}", endpoint)
    if is_passing(status):
        return Fault("passing", text, retry_after(error.response.headers.get("retry-after"), datetime.now(UTC)))
    if status in _USERS_MISTAKES:
        return Fault("mistake", text)
    if status in _REJECTIONS and any(word in error.message.lower() for word in _FORMAT_WORDS):
        return Fault("format", text)
    return Fault("rejected", text)


def _first_cause(error: BaseException) -> BaseException:
    """What the libraries' wrappers were raised from."""
    while error.__cause__ is not None and type(error).__module__.partition(".")[0] in ("openai", "langchain_openai"):
        error = error.__cause__
    return error
