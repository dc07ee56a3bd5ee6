"""The two ways in which a reply gets its shape, JSON schema and tool call: bound to a model, and told in words.

A schema is sent without ``strict``: the roles' schemas hold free-form objects (the arguments of a call), which OpenAI's
strict mode refuses. A reply may therefore leave the schema, so it is always validated here. The words repeat what is
bound, because servers exist that ignore it (``transformers serve``), and then they are all that the model sees.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.runnables import Runnable

Method = Literal["json_schema", "tool_call"]


@cache
def function_of(schema: type[BaseModel]) -> dict[str, Any]:
    """Name, description and parameters of a schema, as OpenAI writes a function."""
    from langchain_core.utils.function_calling import convert_to_openai_function

    return convert_to_openai_function(schema)


def bound(model: BaseChatModel, schema: type[BaseModel], method: Method) -> Runnable[Any, BaseMessage]:
    """The model, bound to reply in the schema.

    LangChain's ``with_structured_output`` sends the same. It then reads the reply with a parser that mends broken JSON,
    in quadratic time: a broken reply of a megabyte would stop the event loop. And what it binds as ``response_format``
    makes the OpenAI client raise for a reply that was cut off, where there is something to repair and to pay;
    ``extra_body`` is sent as it stands.
    """
    if method == "tool_call":
        return model.bind_tools([schema], tool_choice=schema.__name__, parallel_tool_calls=False)
    function = function_of(schema)
    form = {"name": function["name"], "description": function["description"], "schema": function["parameters"]}
    response_format = {"type": "json_schema", "json_schema": form | {"strict": False}}
    return model.bind(extra_body={"response_format": response_format})


def instruction(schema: type[BaseModel], method: Method) -> str:
    """What a model is told about the form of its reply."""
    if method == "tool_call":
        return f"Reply with one call of the function {schema.__name__}, and nothing else."
    parameters = json.dumps(function_of(schema)["parameters"], ensure_ascii=False)
    return f"Reply with one JSON object, {schema.__name__}, and nothing else. Its JSON schema is:\n{parameters}"
