"""Structured replies of a chat model: asks for a schema, and reads a tool call's arguments or a value in the text.

A schema goes to the model in two ways: bound to the request and described in the prompt. Servers exist that ignore what
is bound (``transformers serve``) or reject it; the description is then all that the model sees.
Schemas are sent without ``strict``, because the roles' schemas have free-form objects (the arguments of a call), which
OpenAI's strict mode refuses. A reply may therefore violate its schema and is always validated here.

Models write the object that they are asked for in many ways (ours; the papers do not say how replies are read): amid
prose, in fences and tags, as a call written out, in a list, under a name, as a Python literal. Each is read, in one
pass over the text and with limits. What is broken or cut off is not mended, and of two different values that fit
neither is taken, because one of them may be a quotation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, Field, JsonValue, ValidationError, model_validator

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import Runnable


@cache
def function_of(schema: type[BaseModel]) -> dict[str, Any]:
    """Return name, description and parameters of a schema in OpenAI's format of a function."""
    from langchain_core.utils.function_calling import convert_to_openai_function

    return convert_to_openai_function(schema)


def bound(model: BaseChatModel, schema: type[BaseModel]) -> Runnable[Any, AIMessage]:
    """Bind the model to reply in the JSON schema.

    LangChain's ``with_structured_output`` sends the same, but it reads the reply with a parser that repairs broken JSON
    in quadratic time: a broken reply of a megabyte would block the event loop. Its ``response_format`` also makes the
    OpenAI client raise for a reply that was cut off, which we want to repair and must count; ``extra_body`` is sent
    unchanged.
    """
    function = function_of(schema)
    form = {"name": function["name"], "description": function["description"], "schema": function["parameters"]}
    response_format = {"type": "json_schema", "json_schema": form | {"strict": False}}
    return model.bind(extra_body={"response_format": response_format})


def instruction(schema: type[BaseModel]) -> str:
    """Describe the form of the reply, for the prompt."""
    parameters = json.dumps(function_of(schema)["parameters"], ensure_ascii=False)
    return f"Reply with one JSON object, {schema.__name__}, and nothing else. Its JSON schema is:\n{parameters}"


Reply = TypeVar("Reply", bound=BaseModel)

LONGEST_REPLY = 200_000
"""Characters (ours). A longer reply is malformed, because it would go into records and prompts."""
LONGEST_SHOWN = 2000
"""Characters of a reply that are sent back in the repair turn."""
LONGEST_PROBLEM = 500
DEEPEST = 64
"""Most levels of a value (ours)."""
MOST_TRIED = 64
"""Most values of a text that are held against the schema (ours)."""


class Malformed(ValueError):
    """A reply that does not fit the schema; the message says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(shortened(problem, LONGEST_PROBLEM))


class WrittenReply(BaseModel):
    """A schema whose reply may also be a text without an object of it, as the papers' formats are."""

    @classmethod
    def from_text(cls, text: str) -> object:
        """Return the value that a text holds, None for none. Raises Malformed for a broken one."""
        raise NotImplementedError


def read_reply(schema: type[Reply], message: AIMessage) -> Reply:
    """Read the reply in ``message``: from its first call of the schema's name, otherwise from another call or its text.

    Raises Malformed.
    """
    calls = _calls(message)
    if len(str(message.text)) + sum(len(str(call.get("args"))) for call in calls) > LONGEST_REPLY:
        raise Malformed(f"malformed reply: it has more than {LONGEST_REPLY} characters")
    problems: list[Malformed] = []
    if calls:
        call = next((one for one in calls if one.get("name") == schema.__name__), calls[0])
        found = _fits(schema, {"name": call.get("name"), "arguments": call.get("args")}, problems)
    else:
        text = _without_thinking(str(message.text))
        found = [fit for value in ValueReader(text).objects() for fit in _fits(schema, value, problems)]
        if not found and issubclass(schema, WrittenReply) and not is_cut_off(message):
            written = schema.from_text(text)
            found = [] if written is None else _fits(schema, written, problems)
    if not found:
        raise problems[-1] if problems else Malformed("malformed JSON: there is no JSON object in it")
    if any(one != found[0] for one in found[1:]):
        raise Malformed("malformed reply: several different objects in it fit; give one")
    return found[0]


def is_cut_off(message: AIMessage) -> bool:
    """Return whether the endpoint says that the reply reached the limit of its tokens."""
    return bool(message.response_metadata.get("finish_reason") == "length")


def shown(message: AIMessage) -> str:
    """Return a reply as text, cut to ``LONGEST_SHOWN``: a tool call cannot be sent back without a tool's answer."""
    calls = [f"{call.get('name')}: {shortened(str(call.get('args')), LONGEST_SHOWN)}" for call in _calls(message)]
    return shortened("\n".join([str(message.text)[: LONGEST_SHOWN + 1], *calls]).strip() or "(empty)", LONGEST_SHOWN)


def shortened(text: str, longest: int) -> str:
    """Cut the text to ``longest`` characters."""
    return text if len(text) <= longest else text[: longest - 4] + " ..."


def _calls(message: AIMessage) -> list[Any]:
    return [*message.tool_calls, *message.invalid_tool_calls]


def _without_thinking(text: str) -> str:
    """Return what follows the thinking in front, whose opening tag the endpoint may have cut off.

    A marker in a string of a value is text. Raises Malformed for thinking that does not end, or with nothing behind it.
    """
    text = text.strip()
    closed = text.find(_CLOSED) if text.startswith("<think>") else _first_outside(text, _CLOSED)
    if closed < 0 and text.startswith("<think>"):
        raise Malformed("malformed reply: its thinking does not end")
    after = text[closed + len(_CLOSED) :].strip() if closed >= 0 else text
    if not after and text.startswith(("{", "[", "```")):  # a marker behind the value
        return text[:closed]
    if not after:
        raise Malformed("malformed reply: it is empty")
    return after


def _first_outside(text: str, marker: str) -> int:
    """Return where the marker first is outside of the values and the calls of a text, -1 for nowhere.

    Behind a broken value it may be anywhere: thinking breaks off, too.
    """
    reader, at, found = ValueReader(text), 0, text.find(marker)
    while found >= 0 and (begin := _VALUE.search(text, at, found)):
        try:
            at = reader.end_of(begin)
        except Malformed:
            break
        if at > found:
            found = text.find(marker, at)
    return found


def _fits(schema: type[Reply], value: object, problems: list[Malformed]) -> list[Reply]:
    """Return the replies that a value is or wraps: in a list, under a name, as a call written out.

    Appends to ``problems`` why something does not fit. Raises Malformed where too much does not.
    """
    if len(problems) >= MOST_TRIED:
        raise Malformed("malformed reply: it has too many objects that do not fit")
    call = _call_of(value)
    if call is not None and call["name"] == schema.__name__:
        return _fits(schema, call["arguments"], problems)
    try:
        return [_validated(schema, value if call is None else call)]
    except Malformed as problem:
        problems.append(problem)
    if call is not None:
        problems[-1] = Malformed(f"wrong schema: {call['name']!r} is no call of {schema.__name__}")
    elif isinstance(value, list):
        return [fit for one in value for fit in _fits(schema, one, problems)]
    elif isinstance(value, dict) and len(value) == 1 and not value.keys() & schema.model_fields.keys():
        (inner,) = value.values()
        return _fits(schema, inner, problems) if isinstance(inner, dict | list) else []
    return []


def _call_of(value: object) -> dict[str, object] | None:
    """Return name and arguments of a call written out, None for anything else.

    Raises Malformed for arguments that are a broken text.
    """
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or "name" not in value or not value.keys() & {"arguments", "parameters"}:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str) and arguments.strip():
        arguments = ValueReader(arguments).only()
    return {"name": value["name"], "arguments": arguments or {}}


_START = re.compile(r"""\{(?=\s*["'}])|\[(?=\s*\{\s*["'}])""")
_TOKEN = re.compile(
    r"""\s*+("(?>[^"\\]++|\\.)*+"|'(?>[^'\\]++|\\.)*+'|-?\d[\w.+-]*+|[^\W\d][\w.-]*+|[][{}():,=])""", re.DOTALL
)
_ESCAPED = re.compile(r"""\\(.)|\"""", re.DOTALL)
_SCALAR = json.JSONDecoder(strict=False)
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


class ValueReader:
    """Reads JSON values, Python literals and calls from a text, from left to right.

    Beside JSON: single quotes, a comma before the end, line breaks in strings, ``True``, ``False`` and ``None``.

    Each token is read once (``steps`` counts them), which makes the time linear. Nothing is read behind a broken value:
    what follows may be a part of it.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.steps = 0

    def objects(self) -> Iterator[object]:
        """Yield each outermost object, and each list of objects, wherever it is. Raises Malformed for a broken one."""
        while start := _START.search(self._text, self._at):
            yield self.value_at(start.start())

    def only(self) -> object:
        """Return the value that is the whole text. Raises Malformed."""
        value = self.value_at(0)
        if self._text[self._at :].strip():
            raise self._broken()
        return value

    def value_at(self, start: int) -> object:
        """Return the value at ``start``. Raises Malformed."""
        self._at = start
        return self._value(self._token(), 0)

    def end_of(self, begin: re.Match[str]) -> int:
        """Return where the value or the call that ``_VALUE`` found ends. Raises Malformed."""
        if self._text[begin.start()] in "{[":
            self.value_at(begin.start())
        else:
            self._at = begin.end()
            self._keyed(")", "=", 0)
        return self._at

    def calls(self, start: re.Pattern[str]) -> Iterator[dict[str, object]]:
        """Yield name and arguments of each call ``name(key=value, ...)`` behind ``start``. Raises Malformed."""
        while found := start.search(self._text, self._at):
            self._at = found.end()
            name, _ = self._token(), self._token()  # the pattern ends before a name and its bracket
            yield {"name": name, "arguments": self._keyed(")", "=", 0)}

    def _value(self, token: str, depth: int) -> object:
        if depth >= DEEPEST:
            raise Malformed(f"malformed JSON: it is nested more than {DEEPEST} levels deep")
        if token == "{":
            return self._keyed("}", ":", depth)
        if token == "[":
            return [self._value(one, depth + 1) for one in self._members("]")]
        return _CONSTANTS[token] if token in _CONSTANTS else self._scalar(token)

    def _keyed(self, close: str, sign: str, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for token in self._members(close):
            key = token if sign == "=" else str(self._scalar(token))
            if key in found:
                raise Malformed(f"malformed JSON: {key!r} is there twice")
            if (follows := self._token()) != sign:
                raise self._broken(follows)
            found[key] = self._value(self._token(), depth + 1)
        return found

    def _members(self, close: str) -> Iterator[str]:
        """Yield the first token of each member up to ``close``; the caller reads the rest of each."""
        token = self._token()
        while token != close:
            yield token
            token = self._token()
            if token == ",":
                token = self._token()
            elif token != close:
                raise self._broken(token)

    def _scalar(self, token: str) -> Any:  # noqa: ANN401 - JSON
        """Return a string or a number."""
        if token[0] in "'\"":
            token = f'"{_ESCAPED.sub(_as_json, token[1:-1])}"'
        try:
            return _SCALAR.decode(token)
        except ValueError:
            raise self._broken(token) from None

    def _token(self) -> str:
        self.steps += 1
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._broken()
        self._at = found.end()
        return found[1]

    def _broken(self, token: str = "") -> Malformed:
        rest = (token or self._text[self._at : self._at + 40].strip())[:40]
        if not rest or (not token and rest[0] in "\"'"):
            return Malformed("malformed JSON: it breaks off")
        return Malformed(f"malformed JSON: {rest!r} is wrong at character {self._at - len(token) + 1}")


def _as_json(escape: re.Match[str]) -> str:
    """Return an escape of a Python string as JSON writes it."""
    return {None: '\\"', "'": "'", "\n": "", "x": "\\u00"}.get(escape[1], escape[0])


_CALL = re.compile(r"(?<![\w.-])(?=[^\W\d][\w.-]*\()")
_CLOSED = "</think>"
_VALUE = re.compile(rf"{_START.pattern}|(?<![\w.-])[^\W\d][\w.-]*+\((?=\s*[^\W\d]\w*\s*=)")
_TAGGED = re.compile(rf"<action>\s*+(?:\[\s*+)?{_CALL.pattern}")
_LIST = re.compile(r"""(?:\s|```\w*+)*+(?=\[\s*[]"'{\d])""")


def labelled(text: str, labels: Collection[str]) -> list[tuple[str, str]]:
    """Return the parts of a text that lines ``Label: ...`` begin, in their order, with their labels in lower case.

    Around a label there may be markup and a number, no quotes: an object that does not fit is not such a text.
    """
    parts: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        before, colon, after = line.partition(":")
        label = before.strip("-*_#>` \t0123456789.)").lower().replace("_", " ")
        if colon and label in labels:
            parts.append((label, [after]))
        elif parts:
            parts[-1][1].append(line)
    return [(label, "\n".join(lines).strip(" *_\n")) for label, lines in parts]


def listed_calls(text: str) -> list[object]:
    """Return the items of the list that a text begins with, otherwise its calls ``name(key=value)``.

    Raises Malformed for a broken one.
    """
    if begins := _LIST.match(text):
        items = ValueReader(text).value_at(begins.end())
        return items if isinstance(items, list) else []
    return list(ValueReader(text).calls(_CALL))


class WrittenAction(WrittenReply):
    """A schema with ``tool`` and ``arguments`` that also reads a call, ``name(key=value)`` or with name and arguments.

    In a text the call is between action tags (CoEvolve, figure 9).
    """

    @classmethod
    def from_text(cls, text: str) -> object:
        """Read the calls between action tags: a list of them."""
        return list(ValueReader(text).calls(_TAGGED)) or None

    @model_validator(mode="before")
    @classmethod
    def _from_call(cls, value: object) -> object:
        if isinstance(value, str):
            value = next(ValueReader(value).calls(_CALL), None)
        if not isinstance(value, dict):
            return value
        call = _call_of({**value, "name": value["tool"]} if "tool" in value else value)
        return value if call is None else {**value, "tool": call["name"], "arguments": call["arguments"]}


class NextAction(WrittenAction):
    """The next tool call in this turn, or the end of the turn."""

    tool: str = Field(description="name of the tool to call; empty when the request of this turn is fulfilled")
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="arguments by parameter name")


def _validated(schema: type[Reply], value: object) -> Reply:
    """Raise Malformed also for what Python parses and records cannot store: NaN, infinities, lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        if isinstance(value, dict):  # no schema has a field that may be null: it is a field that was left out
            value = {name: one for name, one in value.items() if one is not None}
        return schema.model_validate(value)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part)[:80] for part in one['loc']) or 'reply'}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False, include_context=False)[:5]
        ]
        raise Malformed(f"wrong schema: {'; '.join(problems)}") from None
    except UnicodeEncodeError:
        raise Malformed("malformed JSON: a text holds half of a surrogate pair") from None
    except RecursionError:
        raise Malformed("malformed JSON: it is nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"malformed JSON: {error}") from None
