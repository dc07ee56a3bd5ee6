"""The compact rendering as text: one line a user turn, action and observation, with argument references.

    U create the directory $1, then tell me where i am right now
    A @mkdir @dir_name=$1
    O None
    A @pwd
    O current_working_directory:$2
    A end

**Argument references** (a property of the embedded policy; state it wherever its figures appear): strings in double
quotes and numbers of the user's text, and values in observations, are shown as ``$1`` to ``$9`` in order of first
appearance; an action may name ``$k``, and the call carries the full value with the type of its source. Documented
constants (enum values, booleans, null) are written literally. Real models see literal text. Our choice:
without references a model of this size does not learn to copy within minutes.

**Cues** of the learning interface are one word each where the settings reserve tokens for them: guidelines before the
user's text (``U !state_mismatch create the directory $1``), a hint's kind behind what was observed (``O error:no such
directory !bad_path``). Their sentences are not shown.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Iterator, Sequence

from pydantic import Field, JsonValue

from environments.base import Action, MalformedCall, Observation, Record, ToolCall, ToolSpec, UserTurn
from environments.benchmark import AnyBenchmark
from environments.learning_interface.cues import GUIDELINES, HintKind, split_guidelines, split_hint
from training.rendering.base import EndTurn
from training.rendering.strict_json import read_json_at, tool_call

CALL = "A @"
END = "A end"
LINE = "\n"

_VALUE_IN_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w)')
_NAME = re.compile(r"\w+(?:\.\w+)*")
_ARGUMENT = re.compile(r" @(\w+)=")
_WORD = re.compile(r"[A-Za-z_]\w*")
_REFERENCE = re.compile(r"\$(\d+)")
_STATE_WORD = re.compile(r"[a-z]+(?:_[a-z]+)*")
_MESSAGE_KEYS = frozenset({"error", "message", "result", "status"})
_LITERALS: dict[str, JsonValue] = {"true": True, "false": False, "null": None}

_DEEPEST = 4

Referable = str | int | float


class CompactSettings(Record):
    """Caps of the compact rendering (our choice).

    ``references`` is how many values have a number, ``references_per_observation`` how many new ones one observation
    may take. ``observation_chars`` cuts a rendered observation: room for the errors of the two templated classes that
    name their remedy. Of an observed list the first ``list_items`` are shown. Observed integers up to
    ``small_number`` are shown as themselves. ``cues``: the learning interface's cues have tokens of their own; without,
    nothing is known of them.
    """

    references: int = 9
    references_per_observation: int = 4
    observation_chars: int = 120
    list_items: int = 4
    small_number: int = 9
    cues: bool = Field(default=False, exclude_if=operator.not_)


def compact_settings(benchmark: AnyBenchmark) -> CompactSettings:
    """Return the settings of a policy of ``benchmark``, whose caps fit the length of its answers."""
    return CompactSettings(**benchmark.exploration.compact.model_dump())


def cue_words() -> tuple[str, ...]:
    """Every cue as it is written, with the space that parts it from the rest of its line."""
    return (*(f"!{label} " for label in GUIDELINES), *(f" !{kind}" for kind in HintKind))


def constants_of(tool: ToolSpec) -> frozenset[str]:
    """Documented string constants that actions write as bare words: choices and defaults."""
    documented = [value for parameter in tool.parameters for value in (*parameter.choices, parameter.default)]
    words = (value for value in documented if isinstance(value, str) and _WORD.fullmatch(value))
    return frozenset(word for word in words if word not in _LITERALS)


class References:
    """The values that ``$1`` to ``$9`` stand for in one episode, in order of first appearance."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.values: list[Referable] = []
        self.said_by_user = 0

    def find(self, value: Referable) -> int | None:
        """The number of ``value``: of the same type if there is one, else of an equal number of another type."""
        equal = [number for number, known in enumerate(self.values, 1) if known == value]
        same = [number for number in equal if type(self.values[number - 1]) is type(value)]
        return next(iter(same or equal), None)

    def add(self, value: Referable) -> int | None:
        """The number of ``value``, a new one unless its very type and value has one; None when all are taken."""
        number = self.find(value)
        if number is not None and type(self.values[number - 1]) is type(value):
            return number
        if len(self.values) == self.limit:
            return None
        self.values.append(value)
        return len(self.values)

    def substitute(self, text: str) -> str:
        """``text`` with every known string of two or more characters, as a whole word, shown as its reference."""
        known = {v: f"${n}" for n, v in enumerate(self.values, 1) if isinstance(v, str) and len(v) > 1}
        if not known:
            return text
        pattern = "|".join(re.escape(v) for v in sorted(known, key=len, reverse=True))
        return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda match: known[match.group()], text)


class CompactText:
    """One episode as compact lines of text, both ways; holds the episode's references."""

    def __init__(self, settings: CompactSettings) -> None:
        self.settings = settings
        self.references = References(settings.references)
        self.tools: dict[str, ToolSpec] = {}
        self.constants: frozenset[str] = frozenset()

    def know(self, tools: Sequence[ToolSpec], constants: frozenset[str]) -> None:
        """These tools, and the constants that their documentation names, may be written from now on."""
        self.tools.update((tool.name, tool) for tool in tools)
        self.constants |= constants

    def user(self, turn: UserTurn) -> str:
        """The user line: quoted strings and numbers become references while there are any left."""
        labels, said = split_guidelines(turn.text) if self.settings.cues else ((), turn.text)
        text = _VALUE_IN_TEXT.sub(self._show_said, _one_line(said))
        self.references.said_by_user = len(self.references.values)
        return f"U {''.join(f'!{label} ' for label in labels)}{text}{LINE}"

    def _show_said(self, match: re.Match[str]) -> str:
        try:
            value, _ = read_json_at(match.group(), 0)
        except ValueError:
            return match.group()
        number = self.references.add(value) if isinstance(value, str | int | float) else None
        return _one_line(str(value)) if number is None else f"${number}"

    def observation(self, observation: Observation) -> str:
        """The observation line: ``key:value`` pairs of a JSON object, other text as it is, cut at the cap."""
        room = self.settings.references_per_observation
        left = self.settings.observation_chars
        pieces: list[str] = []
        told, hint = split_hint(observation.text) if self.settings.cues else (observation.text, None)
        for key, value in _pieces(told, self.settings.list_items):
            before = len(self.references.values)
            shown = str(value) if key is None else self._show_observed(key, value, room > 0)
            room -= len(self.references.values) - before
            pieces.append(shown if _REFERENCE.fullmatch(shown) else shown[:left])
            left -= len(shown)
            if left <= 0:
                break
        return f"O {''.join(pieces)}{'' if hint is None else f' !{hint}'}{LINE}"

    def _show_observed(self, key: str, value: JsonValue, may_add: bool) -> str:
        """A value under ``key`` ("" in a list): a reference, or its text for what an argument would not name.

        Shown as text are booleans, null, small integers, messages, and lone words that are no list items: states
        such as "locked", which the policy must be able to read.
        """
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return json.dumps(value)
        number = self.references.find(value)
        if number is None and may_add and not self._is_plain(key, value):
            number = self.references.add(value)
        if number is not None:
            return f"${number}"
        return _one_line(self.references.substitute(str(value)))

    def _is_plain(self, key: str, value: Referable) -> bool:
        if isinstance(value, str):
            return not value or key in _MESSAGE_KEYS or (key != "" and _STATE_WORD.fullmatch(value) is not None)
        return isinstance(value, int) and 0 <= value <= self.settings.small_number

    def action(self, call: ToolCall) -> str:
        """The line of ``call``, one of the known tools, its arguments in the order of the documentation."""
        tool = self.tools[call.name]
        order = {parameter.name: place for place, parameter in enumerate(tool.parameters)}
        names = sorted(call.arguments, key=lambda name: order.get(name, len(order)))
        return f"{CALL}{call.name}" + "".join(f" @{n}={self._write(tool, n, call.arguments[n])}" for n in names) + LINE

    def _write(self, tool: ToolSpec, name: str, value: JsonValue) -> str:
        """A constant of its parameter literally, else a reference if it has one, else JSON.

        A documented number (a default) is a reference only if the user said it: that an observation happens to show
        the same number means nothing.
        """
        if isinstance(value, list):
            return "[" + ",".join(self._write(tool, name, item) for item in value) + "]"
        if value is None or isinstance(value, bool | dict):
            return json.dumps(value, ensure_ascii=False)
        parameter = tool.parameter(name)
        documented = parameter is not None and value in (*parameter.choices, parameter.default)
        if documented and isinstance(value, str) and value in self.constants:
            return value
        number = self.references.find(value)
        if number is None or (documented and number > self.references.said_by_user):
            return json.dumps(value, ensure_ascii=False)
        return f"${number}"

    def read(self, line: str) -> Action | EndTurn:
        """What a sampled line says. A line that does not end, or says neither a call nor the end, is malformed."""
        text = line.removesuffix(LINE)
        if text == line:
            return MalformedCall(text=text, reason="cut off: the action does not end")
        if text == END:
            return EndTurn()
        if not text.startswith(CALL):
            return MalformedCall(text=text, reason=f"neither a call, {CALL}name @parameter=value, nor {END}")
        try:
            return self._read_call(text)
        except ValueError as error:
            return MalformedCall(text=text, reason=str(error))

    def _read_call(self, text: str) -> ToolCall:
        found = _NAME.match(text, len(CALL))
        if found is None or found.group() not in self.tools:
            raise ValueError(f"unknown function {found.group() if found else ''!r}")
        at = found.end()
        arguments: dict[str, JsonValue] = {}
        while at < len(text):
            named = _ARGUMENT.match(text, at)
            if named is None:
                raise ValueError(f"expected ' @parameter=' at {text[at : at + 12]!r}")
            if named.group(1) in arguments:
                raise ValueError(f"argument {named.group(1)} is given twice")
            arguments[named.group(1)], at = self._read_value(text, named.end())
        return tool_call(found.group(), arguments)

    def _read_value(self, text: str, at: int, depth: int = 0) -> tuple[JsonValue, int]:
        """The value that starts at ``at`` and where it ends. Raises ValueError saying what cannot be read."""
        first = text[at : at + 1]
        if first == "$":
            return self._read_reference(text, at)
        if first == "[":
            return self._read_list(text, at + 1, depth + 1)
        if word := _WORD.match(text, at):
            if word.group() in _LITERALS:
                return _LITERALS[word.group()], word.end()
            if word.group() in self.constants:
                return word.group(), word.end()
            raise ValueError(f"{word.group()!r} is neither a documented constant nor in quotes")
        if first and first in '"{-0123456789':
            return read_json_at(text, at)
        raise ValueError(f"no value at {text[at : at + 12]!r}")

    def _read_reference(self, text: str, at: int) -> tuple[JsonValue, int]:
        found = _REFERENCE.match(text, at)
        if found is None or not 1 <= int(found.group(1)) <= len(self.references.values):
            raise ValueError(f"{text[at : at + 3]!r} refers to nothing")
        return self.references.values[int(found.group(1)) - 1], found.end()

    def _read_list(self, text: str, at: int, depth: int) -> tuple[JsonValue, int]:
        if depth > _DEEPEST:
            raise ValueError("the value is nested too deeply")
        items: list[JsonValue] = []
        while text[at : at + 1] != "]":
            if items:
                if text[at : at + 1] != ",":
                    raise ValueError(f"expected ',' or ']' at {text[at : at + 12]!r}")
                at += 1
            item, at = self._read_value(text, at, depth)
            items.append(item)
        return items, at + 1


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _pieces(text: str, list_items: int) -> Iterable[tuple[str | None, JsonValue]]:
    """Leaves of an observation with the key that they stand under, and structure with key None, in reading order."""
    try:
        content, end = read_json_at(text, 0)
    except ValueError:
        return [("message", text)]
    if end < len(text) or not isinstance(content, dict | list):
        return [("message", text)]
    return _flatten(content, "", list_items)


def _flatten(content: JsonValue, key: str, list_items: int) -> Iterator[tuple[str | None, JsonValue]]:
    if isinstance(content, dict):
        for place, (name, value) in enumerate(content.items()):
            nested = isinstance(value, dict)
            yield None, ("," if place else "") + name + (":{" if nested else ":")
            yield from _flatten(value, name, list_items)
            if nested:
                yield None, "}"
    elif isinstance(content, list):
        yield None, "["
        for place, value in enumerate(content[:list_items]):
            if place:
                yield None, ","
            yield from _flatten(value, "", list_items)
        yield None, ",..]" if len(content) > list_items else "]"
    else:
        yield key, content
