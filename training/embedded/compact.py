"""The pointer-copy rendering, as text and in tokens: one line per user turn, action and observation, values by pointer.

    U create the directory $1, then tell me where i am right now
    A @mkdir @dir_name=$1
    O None
    A @pwd
    O current_working_directory:$2
    A end

**Pointers** (a property of the embedded policy; state it wherever its figures appear): strings in double quotes and
numbers of the user's text, and values in observations, are shown as ``$1``, ``$2`` and so on in order of first
appearance (up to ``CompactSettings.references``). An action may name ``$k``; the call then carries the full value with
the type of its source. Documented constants (enum values, booleans, null) are written literally. Our choice: without
pointers a model of this size does not learn to copy values within minutes.

**Cues** of the learning interface are one word each if the settings reserve tokens for them, without their sentences:
guidelines before the user's text (``U !state_mismatch create``), a hint's kind behind an observation (``!bad_path``).
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import Field, JsonValue

from environments.base import Action, InputError, MalformedCall, Observation, ToolCall, ToolSpec, UserTurn
from environments.benchmark import CompactCaps
from environments.learning_interface import HintKind
from training.rendering.base import EndTurn
from training.rendering.tool_calls import read_json, read_json_at, tool_call
from training.seal.seal import GUIDELINES, InterfaceSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


class CompactSettings(CompactCaps):
    """Limits of the pointer-copy rendering (our choice).

    ``references`` values get a pointer, ``references_per_observation`` new ones in one observation, which is cut after
    ``observation_chars``; of its lists the first ``list_items`` are shown. Observed integers up to ``small_number`` are
    written literally. ``cues``: the learning interface's cues have tokens of their own; without, they are text.
    """

    small_number: int = 9
    cues: bool = Field(default=False, exclude_if=operator.not_)


def cue_words() -> tuple[str, ...]:
    """Return every cue as it is written, with the space that separates it from the rest of its line."""
    return (*(f"!{label} " for label in GUIDELINES), *(f" !{kind}" for kind in HintKind))


def constants_of(tool: ToolSpec) -> frozenset[str]:
    """Return the documented string constants that actions write as bare words: choices and defaults."""
    documented = [value for parameter in tool.parameters for value in (*parameter.choices, parameter.default)]
    words = (value for value in documented if isinstance(value, str) and _WORD.fullmatch(value))
    return frozenset(word for word in words if word not in _LITERALS)


class Pointers:
    """The values of the pointers ``$1``, ``$2`` and so on in one episode, in order of first appearance."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.values: list[Referable] = []
        self.said_by_user = 0

    def find(self, value: Referable) -> int | None:
        """Return the number of ``value``: one of the same type, else of an equal number of another type, else None."""
        equal = [number for number, known in enumerate(self.values, 1) if known == value]
        same = [number for number in equal if type(self.values[number - 1]) is type(value)]
        return next(iter(same or equal), None)

    def add(self, value: Referable) -> int | None:
        """Return the number of ``value``, a new one unless this type and value has one; None when all are taken."""
        number = self.find(value)
        if number is not None and type(self.values[number - 1]) is type(value):
            return number
        if len(self.values) == self.limit:
            return None
        self.values.append(value)
        return len(self.values)

    def substitute(self, text: str) -> str:
        """Replace every known string of two or more characters by its pointer, whole words only."""
        known = {v: f"${n}" for n, v in enumerate(self.values, 1) if isinstance(v, str) and len(v) > 1}
        if not known:
            return text
        pattern = "|".join(re.escape(v) for v in sorted(known, key=len, reverse=True))
        return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda match: known[match.group()], text)


class CompactText:
    """Writes and reads the lines of one episode; holds the episode's pointers."""

    def __init__(self, settings: CompactSettings) -> None:
        self.settings = settings
        self.references = Pointers(settings.references)
        self.tools: dict[str, ToolSpec] = {}
        self.constants: set[str] = set()

    def know(self, tools: Sequence[ToolSpec]) -> None:
        """Allow these tools, and the constants of their documentation, from now on."""
        for tool in tools:
            if tool.name not in self.tools:
                self.tools[tool.name] = tool
                self.constants |= constants_of(tool)

    def user(self, turn: UserTurn) -> str:
        """Return the user line: quoted strings and numbers become pointers while there are any left."""
        cues = "".join(f"!{cue.kind} " for cue in turn.guidelines) if self.settings.cues else ""
        said = turn.text if self.settings.cues else turn.full_text
        text = _VALUE_IN_TEXT.sub(self._show_said, _one_line(said))
        self.references.said_by_user = len(self.references.values)
        return f"U {cues}{text}{LINE}"

    def _show_said(self, match: re.Match[str]) -> str:
        try:
            value, _ = read_json_at(match.group(), 0)
        except ValueError:
            return match.group()
        number = self.references.add(value) if isinstance(value, str | int | float) else None
        return _one_line(str(value)) if number is None else f"${number}"

    def observation(self, observation: Observation) -> str:
        """Return the observation line: ``key:value`` pairs of a JSON object, other text as it is, cut at the limit."""
        room = self.settings.references_per_observation
        left = self.settings.observation_chars
        pieces: list[str] = []
        answer = observation.text if self.settings.cues else observation.full_text
        for key, value in _pieces(answer, self.settings.list_items):
            before = len(self.references.values)
            shown = str(value) if key is None else self._show_observed(key, value, room > 0)
            room -= len(self.references.values) - before
            pieces.append(shown if _REFERENCE.fullmatch(shown) else shown[:left])
            left -= len(shown)
            if left <= 0:
                break
        cue = f" !{observation.hint.kind}" if self.settings.cues and observation.hint is not None else ""
        return f"O {''.join(pieces)}{cue}{LINE}"

    def _show_observed(self, key: str, value: JsonValue, may_add: bool) -> str:
        """Return a value under ``key`` ("" in a list) as a pointer, or as text where no argument would name it.

        Text are booleans, null, small integers, messages, and single words outside lists: states such as "locked",
        which the policy must be able to read.
        """
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return json.dumps(value)
        number = self.references.find(value)
        if number is None and may_add and not self._is_plain(key, value):
            number = self.references.add(value)
        return _one_line(self.references.substitute(str(value))) if number is None else f"${number}"

    def _is_plain(self, key: str, value: Referable) -> bool:
        if isinstance(value, str):
            return not value or key in _MESSAGE_KEYS or (key != "" and _STATE_WORD.fullmatch(value) is not None)
        return isinstance(value, int) and 0 <= value <= self.settings.small_number

    def action(self, call: Action | EndTurn) -> str:
        """Return the line of ``call``, with arguments in the order of the documentation.

        Raises InputError for a call of a tool that is not known.
        """
        if not isinstance(call, ToolCall):
            return (END if isinstance(call, EndTurn) else call.text) + LINE
        if (tool := self.tools.get(call.name)) is None:
            raise InputError(f"a reference calls {call.name}, which its task does not offer: leave that task out")
        order = {parameter.name: place for place, parameter in enumerate(tool.parameters)}
        names = sorted(call.arguments, key=lambda name: order.get(name, len(order)))
        return f"{CALL}{call.name}" + "".join(f" @{n}={self._write(tool, n, call.arguments[n])}" for n in names) + LINE

    def _write(self, tool: ToolSpec, name: str, value: JsonValue) -> str:
        """Write a constant of its parameter literally, else a pointer if there is one, else JSON.

        A documented number (a default) becomes a pointer only if the user said it: an observation may show the same
        number by chance.
        """
        if isinstance(value, list):
            return "[" + ",".join(self._write(tool, name, item) for item in value) + "]"
        if isinstance(value, dict) and value and all(map(_WORD.fullmatch, value)):
            return "{" + ",".join(f"{key}:{self._write(tool, name, item)}" for key, item in value.items()) + "}"
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
        """Parse a sampled line. One without an end, or with neither a call nor the end of the turn, is malformed."""
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
        """Return the value at ``at`` and the index after it. Raises ValueError naming what cannot be read."""
        first = text[at : at + 1]
        if first == "$":
            found = _REFERENCE.match(text, at)
            if found is None or not 1 <= int(found.group(1)) <= len(self.references.values):
                raise ValueError(f"{text[at : at + 3]!r} refers to nothing")
            return self.references.values[int(found.group(1)) - 1], found.end()
        if first == "[" or (first == "{" and _WORD.match(text, at + 1)):
            return self._read_items(text, at, depth + 1)
        if word := _WORD.match(text, at):
            if word.group() in _LITERALS:
                return _LITERALS[word.group()], word.end()
            if word.group() in self.constants:
                return word.group(), word.end()
            raise ValueError(f"{word.group()!r} is neither a documented constant nor in quotes")
        if first and first in '"{-0123456789':
            return read_json_at(text, at)
        raise ValueError(f"no value at {text[at : at + 12]!r}")

    def _read_items(self, text: str, at: int, depth: int) -> tuple[JsonValue, int]:
        """Read a list, or an object whose keys are bare words; one in JSON is read as JSON."""
        if depth > _DEEPEST:
            raise ValueError("the value is nested too deeply")
        named = text[at] == "{"
        end = "}" if named else "]"
        at += 1
        keys: list[str] = []
        items: list[JsonValue] = []
        while text[at : at + 1] != end:
            if items:
                if text[at : at + 1] != ",":
                    raise ValueError(f"expected ',' or '{end}' at {text[at : at + 12]!r}")
                at += 1
            if named:
                key = _WORD.match(text, at)
                if key is None or text[key.end() : key.end() + 1] != ":" or key.group() in keys:
                    raise ValueError(f"expected a new key and ':' at {text[at : at + 12]!r}")
                keys.append(key.group())
                at = key.end() + 1
            item, at = self._read_value(text, at, depth)
            items.append(item)
        return dict(zip(keys, items, strict=True)) if named else items, at + 1


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _pieces(text: str, list_items: int) -> Iterable[tuple[str | None, JsonValue]]:
    """Yield the leaves of an observation with their keys, and its structure with key None, in reading order."""
    try:
        content = read_json(text)
    except ValueError:
        content = None
    return _flatten(content, "", list_items) if isinstance(content, dict | list) else [("message", text)]


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


class CompactRendering:
    """Opens pointer-copy dialogues for a policy whose tokenizer ``training.embedded.new_policy`` made."""

    name = "compact"

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: CompactSettings) -> None:
        """Raise InputError for a tokenizer that was not made for this rendering."""
        self.tokenizer = tokenizer
        self.settings = settings
        self.vocabulary: dict[str, int] = tokenizer.get_vocab()
        if LINE not in self.vocabulary:
            raise InputError(
                "the tokenizer was not made for the compact rendering: use python -m training.warm_start "
                "--model embedded"
            )

    def begin(self) -> CompactDialogue:
        """Open a dialogue for one episode."""
        return CompactDialogue(self)

    def check_interface(self, interface: InterfaceSettings) -> None:
        """Raise InputError for cues that this policy could not read."""
        key = "training.seal.interface"
        if interface.schema_cues:
            raise InputError(f"{key}.schema_cues: the compact rendering shows no documentation: set it to false")
        if not self.settings.cues:
            raise InputError(
                f"{key}: the policy has no tokens for cues: take recipes/starter-seal, or a language model, or "
                f"set {key} to null"
            )

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


class CompactDialogue:
    """One episode in tokens of the pointer-copy rendering (see ``training.rendering.base.Dialogue``)."""

    def __init__(self, rendering: CompactRendering) -> None:
        self.text = CompactText(rendering.settings)
        self.stop_ids = frozenset({rendering.vocabulary[LINE]})
        self._rendering = rendering
        self._ended = True

    def first(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Return ids of a user line. Raises InputError for tools outside the vocabulary."""
        unknown = [tool.name for tool in tools if f"{CALL}{tool.name}" not in self._rendering.vocabulary]
        if unknown:
            raise InputError(
                f"the policy's vocabulary has no token for {', '.join(unknown[:3])}: use the classes that it was "
                "made for, or make an initial policy for these with python -m training.warm_start --model embedded"
            )
        self.text.know(tools)
        return self._encode(self.text.user(turn))

    next_turn = first

    def parse(self, ids: Sequence[int]) -> tuple[Action, ...] | EndTurn:
        """Parse the sampled line: one action, or the end of the turn."""
        self._ended = bool(ids) and ids[-1] in self.stop_ids
        complete = ids[:-1] if self._ended else ids
        tokenizer = self._rendering.tokenizer
        said = str(tokenizer.decode(list(complete), skip_special_tokens=False, clean_up_tokenization_spaces=False))
        # A line feed that is not the stop id comes from a byte token: it does not end the line.
        read = self.text.read(said.replace(LINE, " ") + (LINE if self._ended else ""))
        return read if isinstance(read, EndTurn) else (read,)

    def observe(self, observations: Sequence[Observation]) -> list[int]:
        """Return ids of the observation line: exactly one, because a line holds one action."""
        (observation,) = observations
        return self._encode(self.text.observation(observation))

    def demonstrate(self, action: Action | EndTurn) -> list[int]:
        """Return ids of an action as demonstrations write it."""
        return self._rendering.encode(self.text.action(action))

    def _encode(self, line: str) -> list[int]:
        """Return the ids of a line; before it ends the last one where that was cut off while it was sampled."""
        ended, self._ended = self._ended, True
        return self._rendering.encode(line if ended else LINE + line)
