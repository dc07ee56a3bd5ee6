"""Compare and write texts by the tools' documentation alone: stems of words, grounding, and user turns of a reference.

``words`` splits and stems, so that rules can compare names, documentation and texts without knowing any tool. The
splitting and the crude stemming are our choice; they only have to be consistent, because both sides of a comparison go
through them.

Grounding: every argument of a call appears in text that the agent has seen before the call. An agent sees the user
turns so far, the observations of its earlier calls and the documentation of its tools; it never sees the setup, and the
environment's text before the first turn (``UserTurn.preface``) does not count. The rule (our choice):

- a string is found when it appears in a user turn or an observation as a whole, ignoring case and the amount of white
  space, and not as a part of a longer word; or when it is a choice or the default of the parameter, or appears in
  quotes in the description of the parameter or of the call's tool;
- a number is found by value (30 is 30.0, and "1,500" is 1500) in a user turn or an observation; or when it is a choice
  or the default of the parameter, or appears in its description; the parts of an ISO date do not count, or
  birthdays would ground the small ids that apps count with;
- booleans and null are always documented; items of lists and values of objects are looked up one by one;
- of a program (a parameter of type code) the literals are looked up one by one (``verification.programs`` has the
  rule); an argument of a tool is also found where that tool's documentation states it for the parameter, and a string
  where it is the group of a tool that the reference's programs call.

A user turn leaves out a call that a precondition forces (the doors to lock before the engine starts): an error or the
documentation shows that the call is needed. The text asks for every other call, as a goal with its values.

``render_documented`` writes user turns from the documentation of the tools, in any environment without wordings of its
own. A clause is the first sentence of the tool's description that its whole group does not share, with each value after
the beginning of its parameter's description: ``put one parcel from the depot into a van (label of the parcel "lamp",
the van north)``. Names of tools and parameters are left out. Documented choices that are plain words are written bare,
other strings as JSON literals in double quotes and numbers as JSON numbers, so that values can be read back (the
conventions of BFCL's wordings).
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import takewhile
from typing import TypeVar

from pydantic import JsonValue

from environments.base import Environment, InputError, Parameter, TaskSpec, ToolCall, ToolSpec

_BEHIND_SENTENCE = re.compile(r"(?<=[.;!?:]\s)")
_PIECES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

# Function words, and words that say nothing about a tool because most documentation has them.
_STOP_TEXT = (
    "a an the of to in on at by for with from is are be been was were it its this that these those and or not no any"
    " all as if will can cannot could must should may do does up out than then else when here there which who whose you"
    " your user provided based specified given return returns true false optional default defaults none other otherwise"
    " using use used"
)
_STOP = frozenset(_STOP_TEXT.split())


@lru_cache(maxsize=65536)
def words(text: str) -> tuple[str, ...]:
    """Stems of the content words of ``text`` in order; camelCase and snake_case names are split first."""
    return tuple(_stem(piece) for piece in (p.lower() for p in _PIECES.findall(text)) if piece not in _STOP)


def _stem(word: str) -> str:
    for suffix, replacement in (("ies", "y"), ("ing", ""), ("ed", ""), ("s", "")):
        if word.endswith(suffix) and not word.endswith("ss") and len(word) - len(suffix) >= 2:
            word = word[: -len(suffix)] + replacement
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def with_own_descriptions(tools: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools without the sentences that begin the descriptions of their whole group.

    "This tool belongs to the file system. Tool description: Copy a file." becomes "Copy a file.", where every other of
    the given tools of its group begins like that. A tool without another of its group is returned as it is.
    """
    given = tuple(tools)
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for tool in given:
        groups[tool.group].add(tool.description.strip())
    shared = {group: _shared_sentences(texts) for group, texts in groups.items()}
    return tuple(
        tool.model_copy(update={"description": "".join(_sentences(tool.description.strip())[shared[tool.group] :])})
        for tool in given
    )


def tools_of(environment: Environment, task: TaskSpec) -> dict[str, ToolSpec]:
    """Return the tools that a task offers or calls, by name, with their own descriptions."""
    names = dict.fromkeys((*task.tools, *(call.name for turn in task.reference for call in turn)))
    return {tool.name: tool for tool in with_own_descriptions(environment.tools(tuple(names)))}


def first_sentence(text: str) -> str:
    """Return the first sentence of ``text``, with its full stop."""
    return _sentences(text.strip())[0].strip()


def _shared_sentences(texts: Collection[str]) -> int:
    """Return how many sentences all of the different ``texts`` begin with; none for a single text."""
    parallel = zip(*map(_sentences, texts), strict=False)
    return sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, parallel)) if len(texts) > 1 else 0


def _sentences(text: str) -> list[str]:
    """Split ``text`` after each sentence; a colon ends one, too."""
    return _BEHIND_SENTENCE.split(text)


NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")
DATE = re.compile(r"(?<!\d)\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?(?!\d)")
_LITERAL = re.compile(r'"(?:[^"\\]|\\[\s\S])*+(?:"|\\?\Z)')  # an open one ends the text: it is read once
_QUOTED = re.compile(r"(?<!\w)(?:\"([^\"]+)\"|'([^']+)'|`([^`]+)`)(?!\w)")


class Seen:
    """The texts that an agent has read, ready for look-ups."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: list[str] = []
        self._numbers: set[Decimal] = set()
        for text in texts:
            self.read(text)

    def read(self, text: str) -> None:
        """Add a user turn or an observation; for JSON text or literals also the strings without escapes."""
        for version in (text, *_unescaped(text)):
            self._texts.append(normal(version))
            self._numbers.update(numbers(version))

    def has(self, value: JsonValue) -> bool:
        """Return whether the string or number appears in a text that was read; False for any other value."""
        if isinstance(value, str):
            wanted = normal(value)
            return bool(wanted) and any(stands_in(wanted, text) for text in self._texts)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.has_number(Decimal(str(value)))

    def has_number(self, number: Decimal) -> bool:
        """Return whether the number appears in a text that was read."""
        return number in self._numbers


def documented(value: JsonValue, tool: ToolSpec, parameter: Parameter) -> bool:
    """Return whether the documentation of ``tool`` states ``value`` (not a list or an object) for ``parameter``.

    What is documented within an object or an array counts for the whole parameter.
    """
    if value is None or isinstance(value, bool):
        return True
    return any(_states(value, tool, one) for one in parameter.nested())


def _states(value: JsonValue, tool: ToolSpec, parameter: Parameter) -> bool:
    stated = [*parameter.choices, *leaves(parameter.default)]
    if any(value == known and not isinstance(known, bool) for known in stated):
        return True
    if isinstance(value, str):
        found = (groups for text in (tool.description, parameter.description) for groups in _QUOTED.findall(text))
        return any(normal(value) == normal(text) for groups in found for text in groups if text)
    return isinstance(value, int | float) and Decimal(str(value)) in numbers(parameter.description)


def leaves(value: JsonValue) -> Iterator[JsonValue]:
    """Yield the items of lists and the values of objects, however deep; any other value itself."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, list | dict):
            left.extend(reversed(value if isinstance(value, list) else value.values()))
        else:
            yield value


COUNTS = 100
"""Whole numbers below it count things, so that two of them are equal by chance (ours)."""


def is_count(number: int | float) -> bool:
    """Return whether a number is whole and small, or a truth value: it is found in many places by chance."""
    return number % 1 == 0 and abs(number) < COUNTS


def written(value: JsonValue, levels: int, characters: int) -> str:
    """Return ``value`` as JSON. Raises ValueError for what no JSON can say and for what is beyond the limits."""
    try:
        if not is_within(value, levels):
            raise ValueError("too deep")
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # a half of a surrogate pair is no character
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"no JSON of at most {levels} levels") from error
    if len(text) > characters:
        raise ValueError(f"longer than {characters} characters")
    return text


def is_within(value: JsonValue, levels: int) -> bool:
    """Return whether lists and objects are nested in one another at most ``levels`` deep in a value."""
    # Depth first: a value that holds itself is left after so many steps.
    stack = [(value, 0)]
    while stack:
        one, level = stack.pop()
        if level > levels:
            return False
        if isinstance(one, dict | list):
            stack += [(inner, level + 1) for inner in (one.values() if isinstance(one, dict) else one)]
    return True


def _unescaped(text: str) -> Iterator[str]:
    """Yield the strings of a JSON text, or else the JSON string literals in it, without escapes; none without any."""
    if "\\" not in text:
        return
    try:
        yield from [leaf for leaf in leaves(json.loads(text)) if isinstance(leaf, str)]
    except (ValueError, RecursionError):
        for literal in _LITERAL.findall(text):
            with suppress(ValueError):
                yield json.loads(literal)


def normal(text: str) -> str:
    """Return ``text`` in lower case with single blanks."""
    return " ".join(text.casefold().split())


def numbers(text: str) -> set[Decimal]:
    """Return the numbers in ``text``; the parts of an ISO date do not count."""
    return {number for match in NUMBER.findall(DATE.sub(" ", text)) if (number := number_of(match)) is not None}


def number_of(match: str) -> Decimal | None:
    """Return the number that ``NUMBER`` found: "1,500" is 1500. None for an exponent that no number here has."""
    try:
        return Decimal(match.replace(",", ""))
    except InvalidOperation:
        return None


def stands_in(wanted: str, text: str) -> bool:
    """Return whether ``wanted`` occurs in ``text`` with no letter, digit or underscore right before or after it."""
    return wanted in text and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text) is not None


SENTENCE_END = re.compile(r"(?<=\w\w)[.;!?](?=\s|$)")
DETAIL = re.compile(r"\s*[,;:.(\[]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_OPENINGS = ("", "please ", "i want you to ")


def render_documented(environment: Environment, spec: Spec, rng: random.Random) -> Spec:
    """Return ``spec`` with its user turns written, drawn with ``rng``; equal arguments give equal text.

    Raises InputError for a task that the environment cannot open, a tool that it does not have and a turn without
    calls.
    """
    tools = tools_of(environment, spec)
    return render_turns(spec, forced_calls(environment, spec), lambda call, drawn: clause(call, tools, drawn), rng)


def clause(
    call: ToolCall, tools: Mapping[str, ToolSpec], rng: random.Random, words: Mapping[str, str | None] | None = None
) -> str:
    """Return the call as one clause with all of its values. An argument that equals its documented default is left out.

    ``words`` replaces the text of some arguments, by name; None leaves an argument out.
    """
    tool = tools[call.name]
    words = words or {}
    said = []
    for name, value in call.arguments.items():
        parameter = tool.parameter(name)
        if parameter is None or (value == parameter.default and not parameter.required):
            continue
        if name not in words:
            said.append(f"{_start(DETAIL, parameter.description)} {_words(value, parameter)}")
        elif words[name] is not None:
            said.append(str(words[name]))
    values = f" ({', '.join(said)})" if said else ""
    return f"{rng.choice(_OPENINGS)}{_start(SENTENCE_END, tool.description)}{values}"


def _start(end: re.Pattern[str], text: str) -> str:
    """Return the text up to the first ``end``, with a lower-case first letter unless it begins with an abbreviation."""
    start = end.split(text.strip(), maxsplit=1)[0]
    return start[:1].lower() + start[1:] if not start[1:2].isupper() else start


def _words(value: JsonValue, parameter: Parameter) -> str:
    if isinstance(value, list):
        return " and ".join(_words(item, parameter.item or parameter) for item in value) or "nothing"
    if isinstance(value, dict) and parameter.fields:
        known = {field.name: field for field in parameter.fields if field.name in value}
        if len(known) == len(value):
            said = (f"{_start(DETAIL, one.description)} {_words(value[name], one)}" for name, one in known.items())
            return f"({', '.join(said)})"
    if isinstance(value, str) and value in parameter.choices and _WORD.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


CONNECTIVES = (", then ", ", after that ", " and ")
"""Texts that join the clauses of a user turn."""

Spec = TypeVar("Spec", bound=TaskSpec)

Say = Callable[[ToolCall, random.Random], str]
"""Write one call as a clause; raise InputError for a call that it has no words for."""


def forced_calls(
    environment: Environment, spec: TaskSpec, tells_values: re.Pattern[str] | None = None
) -> tuple[tuple[bool, ...], ...]:
    """Return, for each turn and call of the reference, whether a precondition forces the call (our rule).

    A call is forced when a later call of the same turn fails without it, and all of its arguments are documented
    (choices, booleans, numbers in the description) or appear in that error, where ``tells_values`` matches it: such an
    error names the missing values. The last call of a turn is therefore never forced. The text of ``spec`` is not read.

    Raises InputError for a task that the environment cannot open or a tool that it does not have.
    """
    names = sorted({call.name for turn in spec.reference for call in turn})
    tools = {tool.name: tool for tool in environment.tools(names)}

    def forced(turn: int, position: int, call: ToolCall) -> bool:
        errors = caused_errors(environment, spec, turn, position)
        if not errors:
            return False
        named = errors[0] if tells_values is not None and tells_values.search(errors[0]) else ""
        return _can_be_had(call, tools[call.name], Seen([named]))

    return tuple(tuple(forced(t, c, call) for c, call in enumerate(turn)) for t, turn in enumerate(spec.reference))


def caused_errors(environment: Environment, spec: TaskSpec, turn: int, position: int) -> tuple[str, ...]:
    """Return the errors of later calls of ``turn`` that appear when the call at ``position`` is left out, in order.

    Calls that fail in the complete reference as well do not count. Raises InputError like ``Environment.open``.
    """
    if position == len(spec.reference[turn]) - 1:
        return ()
    without = _errors(environment, spec, turn, position)
    if not without:
        return ()
    anyway = _errors(environment, spec, turn, None)
    return tuple(text for c, text in without.items() if c > position and c not in anyway)


def render_turns(spec: Spec, forced: Sequence[Sequence[bool]], say: Say, rng: random.Random) -> Spec:
    """Return ``spec`` with its user turns written: each call that is not ``forced`` as a clause of its turn.

    Raises InputError for a call that ``say`` has no words for and for a turn without a clause.
    """
    turns = []
    for t, (calls, flags) in enumerate(zip(spec.reference, forced, strict=True), start=1):
        said = [call for call, unsaid in zip(calls, flags, strict=True) if not unsaid]
        if not said:
            raise InputError(f"turn {t} of the task has no call to say: give every turn of its reference a call")
        text = say(said[0], rng)
        for call in said[1:]:
            text += rng.choice(CONNECTIVES) + say(call, rng)
        turns.append(text)
    return spec.model_copy(update={"turns": tuple(turns)})


def _can_be_had(call: ToolCall, tool: ToolSpec, named: Seen) -> bool:
    for name, argument in call.arguments.items():
        parameter = tool.parameter(name)
        for value in argument if isinstance(argument, list) else [argument]:
            if not (parameter is not None and documented(value, tool, parameter)) and not named.has(value):
                return False
    return True


def _errors(environment: Environment, spec: TaskSpec, turn: int, left_out: int | None) -> dict[int, str]:
    errors = {}
    with closing(environment.open(spec)) as episode:
        episode.start()
        for calls in spec.reference[:turn]:
            for call in calls:
                episode.step(call)
            episode.end_turn()
        for c, call in enumerate(spec.reference[turn]):
            if c != left_out:
                observation = episode.step(call)
                if observation.failed:
                    errors[c] = observation.text
    return errors
