"""Structured replies of a chat model: asks for a schema, and reads a tool call's arguments or JSON in the text.

A schema goes to the model in two ways: bound to the request (as JSON schema or tool) and described in the prompt.
Servers exist that ignore what is bound (``transformers serve``); the description is then all that the model sees.
Schemas are sent without ``strict``, because the roles' schemas have free-form objects (the arguments of a call), which
OpenAI's strict mode refuses. A reply may therefore violate its schema and is always validated here.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.runnables import Runnable

Method = Literal["json_schema", "tool_call"]


@cache
def function_of(schema: type[BaseModel]) -> dict[str, Any]:
    """Return name, description and parameters of a schema in OpenAI's format of a function."""
    from langchain_core.utils.function_calling import convert_to_openai_function

    return convert_to_openai_function(schema)


def bound(model: BaseChatModel, schema: type[BaseModel], method: Method) -> Runnable[Any, BaseMessage]:
    """Bind the model to reply in the schema.

    LangChain's ``with_structured_output`` sends the same, but it reads the reply with a parser that repairs broken JSON
    in quadratic time: a broken reply of a megabyte would block the event loop. Its ``response_format`` also makes the
    OpenAI client raise for a reply that was cut off, which we want to repair and must count; ``extra_body`` is sent
    unchanged.
    """
    if method == "tool_call":
        return model.bind_tools([schema], tool_choice=schema.__name__, parallel_tool_calls=False)
    function = function_of(schema)
    form = {"name": function["name"], "description": function["description"], "schema": function["parameters"]}
    response_format = {"type": "json_schema", "json_schema": form | {"strict": False}}
    return model.bind(extra_body={"response_format": response_format})


def instruction(schema: type[BaseModel], method: Method) -> str:
    """Describe the form of the reply, for the prompt."""
    if method == "tool_call":
        return f"Reply with one call of the function {schema.__name__}, and nothing else."
    parameters = json.dumps(function_of(schema)["parameters"], ensure_ascii=False)
    return f"Reply with one JSON object, {schema.__name__}, and nothing else. Its JSON schema is:\n{parameters}"


Reply = TypeVar("Reply", bound=BaseModel)

LONGEST_REPLY = 200_000
"""Characters (ours). A longer reply is malformed, because it would go into records and prompts."""
LONGEST_SHOWN = 2000
"""Characters of a reply that are sent back in the repair turn."""
LONGEST_PROBLEM = 500
_THOUGHT = "</think>"


class Malformed(ValueError):
    """A reply that does not fit the schema; the message says why. ``prose``: it has no JSON at all."""

    def __init__(self, problem: str, prose: bool = False) -> None:
        super().__init__(shortened(problem, LONGEST_PROBLEM))
        self.prose = prose


def read_reply(schema: type[Reply], message: AIMessage) -> Reply:
    """Read the reply in ``message``: from a call of the schema's name, otherwise from its text.

    Raises Malformed.
    """
    if len(str(message.text)) + sum(len(str(call.get("args"))) for call in _calls(message)) > LONGEST_REPLY:
        raise Malformed(f"malformed reply: it has more than {LONGEST_REPLY} characters")
    for call in message.tool_calls:
        if call["name"] == schema.__name__:
            return _validated(schema, call["args"])
    if _calls(message):
        broken = [call for call in message.invalid_tool_calls if call.get("name") == schema.__name__]
        if broken:
            raise Malformed(f"malformed JSON: the arguments of {schema.__name__} cannot be read")
        raise Malformed(f"wrong schema: {_calls(message)[0].get('name')!r} is no call of {schema.__name__}")
    return _validated(schema, _json(str(message.text)))


def shown(message: AIMessage) -> str:
    """Return a reply as text, cut to ``LONGEST_SHOWN``: a tool call cannot be sent back without a tool's answer."""
    calls = [f"{call.get('name')}: {shortened(str(call.get('args')), LONGEST_SHOWN)}" for call in _calls(message)]
    return shortened("\n".join([str(message.text)[: LONGEST_SHOWN + 1], *calls]).strip() or "(empty)", LONGEST_SHOWN)


def shortened(text: str, longest: int) -> str:
    """Cut the text to ``longest`` characters."""
    return text if len(text) <= longest else text[: longest - 4] + " ..."


def _calls(message: AIMessage) -> list[Any]:
    return [*message.tool_calls, *message.invalid_tool_calls]


def _json(text: str) -> object:
    """Parse the JSON value in the text: alone, in a code fence, or after a thinking block."""
    text = text.strip()
    if not text.startswith(("{", "[", "```")) and _THOUGHT in text:
        text = text.partition(_THOUGHT)[2].strip()
    if not text:
        raise Malformed("malformed reply: it is empty", prose=True)
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = error.args[0] if error.args else type(error).__name__
        raise Malformed(f"malformed JSON: {problem}", prose="{" not in text) from None


def _check_writable(value: object) -> None:
    """Raise Malformed for values that Python parses and records cannot store: NaN, infinities, lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Malformed("malformed JSON: a text holds half of a surrogate pair") from None
    except RecursionError:
        raise Malformed("malformed JSON: it is nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"malformed JSON: {error}") from None


def _validated(schema: type[Reply], value: object) -> Reply:
    _check_writable(value)
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part)[:80] for part in one['loc']) or 'reply'}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False, include_context=False)[:5]
        ]
        raise Malformed(f"wrong schema: {'; '.join(problems)}") from None
    except RecursionError:
        raise Malformed("wrong schema: it is nested too deeply") from None
