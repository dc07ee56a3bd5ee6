"""Asks a chat model for a structured reply: deadline, bounded retries, one repair turn, token counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from agents.roles import RoleRefused
from environments.base import InputError
from memory.records import Measured

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

Reply = TypeVar("Reply", bound=BaseModel)

_MAX_PAUSE = 8.0
_MAX_SHOWN = 2000


class StructuredModel:
    """A chat model that answers in pydantic schemas.

    Args:
        model: any LangChain chat model that can call tools; its own retries should be off, because they count here.
        timeout: seconds for one request, its deadline.
        max_retries: further attempts after a request that failed for a passing reason (deadline, connection, load).
        pause: seconds before the first further attempt; doubled for each one after it, 8 at most.
    """

    def __init__(self, model: BaseChatModel, timeout: float, max_retries: int, pause: float = 0.5) -> None:
        self._model = model
        self._timeout = timeout
        self._max_retries = max_retries
        self._pause = pause

    async def ask(
        self,
        schema: type[Reply],
        system: str,
        prompt: str,
        check: Callable[[Reply, bool], str | None] = lambda reply, final: None,
    ) -> tuple[Reply, Measured]:
        """A valid reply and what it cost.

        ``check(reply, final)`` says in a sentence why a well-formed reply cannot be used, or None; ``final`` is True
        for the reply to the repair turn. Raises RoleRefused when the reply cannot be used after one repair, the model
        refuses, or the endpoint does not answer; InputError when the endpoint refuses the key or the model's name.
        """
        messages: list[Any] = [("system", system), ("human", prompt)]
        spent, problem = Measured(), ""
        for final in (False, True):
            result, cost = await self._request(schema, messages)
            spent = added(spent, cost)
            refusal = result["raw"].additional_kwargs.get("refusal")
            if refusal:
                raise RoleRefused(f"the model refused: {str(refusal)[:_MAX_SHOWN]}")
            reply = result["parsed"]
            problem = self._problem(result) or check(reply, final) or ""
            if not problem and isinstance(reply, schema):
                return reply, spent
            messages += [("ai", _shown(result["raw"])), ("human", _repair(schema, problem))]
        raise RoleRefused(f"the model's reply cannot be used, after one repair: {problem}")

    @staticmethod
    def _problem(result: dict[str, Any]) -> str:
        error = result["parsing_error"]
        if isinstance(error, ValidationError):
            return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'reply'}: {e['msg']}" for e in error.errors())
        if error is not None:
            return str(error)
        return "it is no call of the given function" if result["parsed"] is None else ""

    async def _request(self, schema: type[Reply], messages: list[Any]) -> tuple[dict[str, Any], Measured]:
        from openai import AuthenticationError, BadRequestError, NotFoundError, PermissionDeniedError

        runnable = self._model.with_structured_output(schema, method="function_calling", include_raw=True)
        started, last = time.monotonic(), ""
        for attempt in range(self._max_retries + 1):
            if attempt:
                await asyncio.sleep(min(self._pause * 2 ** (attempt - 1), _MAX_PAUSE))
            try:
                async with asyncio.timeout(self._timeout):
                    result = await runnable.ainvoke(messages)
            except TimeoutError:
                last = f"no answer in {self._timeout:g} s"
            except (AuthenticationError, PermissionDeniedError, NotFoundError) as error:
                raise InputError(
                    f"the chat endpoint refused the request ({error}): check OPENAI_API_KEY, the role's model and "
                    "base_url"
                ) from error
            except BadRequestError as error:
                raise RoleRefused(f"the endpoint rejected the request: {error}") from error
            except _passing() as error:
                last = f"{type(error).__name__}: {error}"
            else:
                assert isinstance(result, dict)
                return result, _cost(result["raw"], attempt + 1, time.monotonic() - started)
        raise RoleRefused(f"the endpoint gave no answer in {self._max_retries + 1} attempts; the last: {last}")


def added(one: Measured, other: Measured) -> Measured:
    """The sum of two costs."""
    return Measured(
        seconds=one.seconds + other.seconds,
        calls=one.calls + other.calls,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
    )


def _cost(raw: AIMessage, attempts: int, seconds: float) -> Measured:
    usage = raw.usage_metadata
    return Measured(
        seconds=seconds,
        calls=attempts,
        prompt_tokens=usage["input_tokens"] if usage else 0,
        completion_tokens=usage["output_tokens"] if usage else 0,
    )


def _passing() -> tuple[type[Exception], ...]:
    """Failures that another attempt may not have."""
    import httpx
    from openai import APIConnectionError, InternalServerError, RateLimitError

    return (ConnectionError, httpx.TransportError, APIConnectionError, InternalServerError, RateLimitError)


def _shown(raw: AIMessage) -> str:
    """A reply as text: a tool call cannot be sent back without a tool's answer."""
    calls = [f"{call.get('name')}: {call.get('args')}" for call in (*raw.tool_calls, *raw.invalid_tool_calls)]
    return ("\n".join([str(raw.text), *calls]).strip() or "(empty)")[:_MAX_SHOWN]


def _repair(schema: type[BaseModel], problem: str) -> str:
    return f"This reply cannot be used: {problem}. Answer again with one call of {schema.__name__} that avoids this."
