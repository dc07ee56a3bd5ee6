"""A chat model that answers from a table, through LangChain's real structured output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from agents.chat.structured import StructuredModel


class TableModel(BaseChatModel):
    """Gives the next reply of a table: a message, an exception to raise, or seconds to hang. Keeps what it was sent."""

    replies: list[Any]
    sent: list[list[BaseMessage]] = []

    @property
    def _llm_type(self) -> str:
        return "table"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> TableModel:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise AssertionError("the roles ask asynchronously")

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.sent.append(messages)
        reply = self.replies.pop(0)
        while isinstance(reply, float):
            await asyncio.sleep(reply)
            reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def prompts(self) -> str:
        """Everything that was sent, as one text."""
        return "\n".join(str(message.content) for messages in self.sent for message in messages)


def reply(schema: str, **arguments: Any) -> AIMessage:
    """A call of the schema, which is how structured replies arrive; 100 tokens read and 10 written."""
    return AIMessage(
        content="",
        tool_calls=[{"name": schema, "args": arguments, "id": "1", "type": "tool_call"}],
        usage_metadata={"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
    )


@pytest.fixture
def table():
    """``table(*replies)``: the fake model and the asking side, which tries twice more at once."""

    def make(*replies: Any, timeout: float = 30.0) -> tuple[TableModel, StructuredModel]:
        model = TableModel(replies=list(replies), sent=[])
        return model, StructuredModel(model, timeout=timeout, max_retries=2, pause=0.0)

    return make


@pytest.fixture
def say():
    return reply
