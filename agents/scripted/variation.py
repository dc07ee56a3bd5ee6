"""Vary a task: other names, texts and numbers in its start state, user turns and reference, and the same words (ours).

A task that is written from a path says each value as it is. People name what the state or an earlier answer resolves,
give optional arguments where they matter, and refer back. A variation of a task keeps all of that: it renames values
that the user turns state, everywhere at once.

- A value is renamed where the reference gives it, a user turn states it and no documentation does: texts, and numbers
  above three. Identifiers and tokens stay.
- A name (a key of the start state, a file's name, a word with an underscore) becomes a name made of words that names of
  other tasks have, in its own form. Any other text becomes what another task gives the same parameter, a number one of
  as many digits. No new value is in the task already.
- A value that only an earlier answer gives ("the order that I just placed") is read where the new answer has it.
- Each call has to end as the original's does: where one fails that did not, values are left as they are, one at a time.

Nothing is written from nothing: of a task without such values there is no variation.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing

from pydantic import JsonValue

from environments.base import Environment, InputError, TaskSpec, ToolCall, ToolSpec
from environments.verification.grounding import Seen, documented, leaves
from environments.verification.replay import Replay, replay

_TRIES = 4  # draws of new values (our choice)
_KEPT = 0.15  # probability that a value which may be renamed is not (our choice)
_SHORTEST = 3  # characters of a text that is renamed
_LONGEST = 400
_SMALL = 3  # numbers up to it are counts of a sentence more often than values
_FILE = re.compile(r"(.+?)(\.[A-Za-z0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z]\w*(?:[.-]\w+)*")
_WORDS = re.compile(r"[A-Z]?[a-z]{3,}")
_PLAIN = re.compile(r"[a-z]+")
_FIXED = ("_id", "_token", "id", "token")

Scalar = str | int | float
Path = tuple[str | int, ...]
Place = tuple[int, int, str]
"""Turn, call and parameter."""


class Values:
    """The values that tasks give to each parameter, and the words of their names."""

    def __init__(self, tasks: Iterable[TaskSpec], environment: Environment) -> None:
        self._given: defaultdict[tuple[str, str], dict[Scalar, None]] = defaultdict(dict)
        words: dict[str, None] = {}
        for task in tasks:
            tools = _tools(task, environment)
            names = _names(task.initial_state)
            for _, call, name, value in _stated(task, tools):
                if isinstance(value, str):
                    self._given[call.name, name].setdefault(value)
                    if _is_name(value, names):
                        names.add(value)
            words |= dict.fromkeys(word.lower() for name in sorted(names) for word in _WORDS.findall(_stem(name)))
        self._words = tuple(sorted(words))

    def other(self, tool: str, parameter: str, rng: random.Random) -> str | None:
        """Draw a text that some task gives to the parameter; None without one."""
        known = [value for value in self._given.get((tool, parameter), ()) if isinstance(value, str)]
        return rng.choice(known) if known else None

    def name(self, like: str, rng: random.Random) -> str | None:
        """Draw a name in the form of ``like``: its number of words, capitals, separator and ending."""
        stem = _stem(like)
        count = min(3, max(1, len(re.findall(r"[A-Z]?[a-z]+|[A-Z]+", stem))))
        if len(self._words) < count:
            return None
        parts = rng.sample(self._words, count)
        joint = next((sign for sign in "_-" if sign in stem), "")
        if stem[:1].isupper() or (not joint and count > 1):
            parts = [part.capitalize() for part in parts]
            parts[0] = parts[0] if stem[:1].isupper() else parts[0].lower()
        return joint.join(parts) + like.removeprefix(stem)


def vary(task: TaskSpec, environment: Environment, values: Values, rng: random.Random) -> TaskSpec | None:
    """Return a variation of ``task``, None where none is found; equal arguments give equal variations.

    Raises InputError for a task that the environment cannot open, EnvironmentFault when the environment itself failed.
    """
    original = replay(environment, task)
    tools = _tools(task, environment)
    answers = _answered(task, original, tools)
    for _ in range(_TRIES):
        pairs = _drawn(task, tools, values, rng)
        fewer = ({old: new for old, new in pairs.items() if old != kept} for kept in pairs)
        for some in (pairs, *fewer):
            if some and (varied := _varied(task, some, answers, original, environment)) is not None:
                return varied
    return None


def _drawn(task: TaskSpec, tools: Mapping[str, ToolSpec], values: Values, rng: random.Random) -> dict[Scalar, Scalar]:
    """Draw a new value for most of those that may be renamed."""
    everything = json.dumps(task.model_dump(mode="json"), ensure_ascii=False).casefold()
    names = _names(task.initial_state)
    text = "\n".join(task.turns)
    pairs: dict[Scalar, Scalar] = {}
    for _, call, name, value in _stated(task, tools):
        if value in pairs or rng.random() < _KEPT:
            continue
        new: Scalar | None
        if not isinstance(value, str):
            new = _number(value, rng)
        elif _is_name(value, names):
            new = values.name(value, rng)
        elif _PLAIN.fullmatch(value) and not re.search(rf"[\"'`]{value}[\"'`]", text):
            continue  # a word of the sentence
        else:
            new = values.other(call.name, name, rng)
        if new is None or str(new).casefold() in everything or new in pairs.values():
            continue
        pairs[value] = new
    return pairs


def _varied(
    task: TaskSpec,
    pairs: Mapping[Scalar, Scalar],
    answers: Mapping[Place, tuple[int, int, Path]],
    original: Replay,
    environment: Environment,
) -> TaskSpec | None:
    """Rename values and play the result, call by call; None where a call ends otherwise than before."""
    renaming = _Renaming(pairs)
    renamed = task.model_copy(
        update={
            "turns": tuple(map(renaming.text, task.turns)),
            "initial_state": renaming.state(task.initial_state),
            "setup": tuple(map(renaming.call, task.setup)),
            "reference": tuple(tuple(map(renaming.call, calls)) for calls in task.reference),
        }
    )
    if len(set(_keys(renamed.initial_state))) < len(set(_keys(task.initial_state))):
        return None
    reference = []
    seen: dict[tuple[int, int], dict[Path, Scalar]] = {}
    try:
        with closing(environment.open(renamed)) as episode:
            episode.start()
            for t, calls in enumerate(renamed.reference):
                made = []
                for c, call in enumerate(calls):
                    arguments = dict(call.arguments)
                    for name, old in call.arguments.items():
                        if (place := answers.get((t, c, name))) is not None:
                            turn, position, path = place
                            if path not in seen.get((turn, position), {}):
                                return None
                            read = seen[turn, position][path]
                            arguments[name] = str(read) if isinstance(old, str) else read
                    made.append(call.model_copy(update={"arguments": arguments}))
                    observation = episode.step(made[-1])
                    if observation.status is not original.turns[t].observations[c].status:
                        return None
                    seen[t, c] = dict(_read(observation.text))
                episode.end_turn()
                reference.append(tuple(made))
        varied = renamed.model_copy(update={"reference": tuple(reference)})
        return varied if replay(environment, varied).outcome.success else None
    except (InputError, RecursionError):
        return None


def _answered(task: TaskSpec, original: Replay, tools: Mapping[str, ToolSpec]) -> dict[Place, tuple[int, int, Path]]:
    """Return where the arguments that no user turn states come from: the latest answer that has the value."""
    found: dict[Place, tuple[int, int, Path]] = {}
    said = Seen()
    answers: list[tuple[int, int, dict[Path, Scalar]]] = []
    for t, (text, turn) in enumerate(zip(task.turns, original.turns, strict=True)):
        said.read(text)
        for c, (call, observation) in enumerate(zip(turn.calls, turn.observations, strict=True)):
            for name, value in call.arguments.items():
                if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
                    continue
                if said.has(value) or _is_documented(value, call.name, name, tools):
                    continue
                for turn_before, call_before, leaves_of in reversed(answers):
                    path = next((path for path, leaf in leaves_of.items() if str(leaf) == str(value)), None)
                    if path is not None:
                        found[t, c, name] = (turn_before, call_before, path)
                        break
            if not observation.failed:
                answers.append((t, c, dict(_read(observation.text))))
    return found


class _Renaming:
    """Replaces values by others in texts, states and calls: all at once, so that none is renamed twice.

    A name is also renamed without its ending ("the final report" for final_report.pdf), and with blanks for
    underscores. Numbers are renamed in texts and calls, not in the state.
    """

    def __init__(self, pairs: Mapping[Scalar, Scalar]) -> None:
        self._numbers = {old: new for old, new in pairs.items() if not isinstance(old, str)}
        self._texts: dict[str, str] = {}
        for old, new in pairs.items():
            if isinstance(old, str) and isinstance(new, str):
                for form, other in _forms(old, new):
                    self._texts.setdefault(form.casefold(), other)
        longest_first = sorted(map(re.escape, self._texts), key=len, reverse=True)
        self._stands = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", re.IGNORECASE) if pairs else None

    def text(self, text: str) -> str:
        """Rename in a user turn or in a text argument."""
        text = self._named(text)
        for old, new in self._numbers.items():
            for form, other in {f"{old:,}": f"{new:,}", str(old): str(new), f"{old:g}": f"{new:g}"}.items():
                text = re.sub(rf"(?<![\w.,]){re.escape(form)}(?!\w|[.,]\d)", other, text)
        return text

    def call(self, call: ToolCall) -> ToolCall:
        """Rename in the arguments of a call."""
        return call.model_copy(update={"arguments": {name: self._value(one) for name, one in call.arguments.items()}})

    def state(self, state: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Rename in the keys and the texts of a start state."""
        return {key: _mapped(value, self._named) for key, value in state.items()}

    def _named(self, text: str) -> str:
        return self._stands.sub(self._in_its_case, text) if self._texts and self._stands else text

    def _in_its_case(self, match: re.Match[str]) -> str:
        found, new = match.group(), self._texts[match.group().casefold()]
        if found.islower() and " " in found:
            return new.lower()
        return new[:1].upper() + new[1:] if found[:1].isupper() and " " in found else new

    def _value(self, value: JsonValue) -> JsonValue:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int | float):
            new = self._numbers.get(value, value)
            return float(new) if isinstance(value, float) else new
        return _mapped(value, self.text)


def _mapped(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    return value


def _forms(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield how texts write a value, and what they write for the new one."""
    yield old, new
    if _FILE.fullmatch(old):
        old, new = _stem(old), _stem(new)
        if len(old) <= _SHORTEST:
            return
        yield old, new
    if "_" in old:
        yield old.replace("_", " "), new.replace("_", " ")


def _stem(name: str) -> str:
    """Return a name without a file's ending."""
    file = _FILE.fullmatch(name)
    return file[1] if file else name


def _number(value: float, rng: random.Random) -> int | float | None:
    """Draw a number of as many digits; None for a small one. A price changes by at most half."""
    if value <= _SMALL:
        return None
    if isinstance(value, float) and not value.is_integer():
        return round(value * rng.uniform(0.5, 1.5), 2)
    digits = str(int(value))
    leading = len(digits.rstrip("0"))
    new = rng.randrange(10 ** (leading - 1), 10**leading) * 10 ** (len(digits) - leading)
    return float(new) if isinstance(value, float) else new


def _stated(task: TaskSpec, tools: Mapping[str, ToolSpec]) -> Iterator[tuple[int, ToolCall, str, Scalar]]:
    """Yield the values of the reference that a user turn up to their own states: turn, call, parameter, value."""
    said = Seen()
    for t, (text, calls) in enumerate(zip(task.turns, task.reference, strict=True)):
        said.read(text)
        for call in calls:
            for name, argument in call.arguments.items():
                parameter = tools[call.name].parameter(name)
                if name.endswith(_FIXED) or parameter is None or parameter.type == "code":
                    continue
                for value in leaves(argument):
                    if isinstance(value, bool) or not isinstance(value, str | int | float):
                        continue
                    if isinstance(value, str) and not _SHORTEST <= len(value) <= _LONGEST:
                        continue
                    if isinstance(value, str) and (value.isdecimal() or "\n" in value):
                        continue
                    stem = _FILE.fullmatch(value) if isinstance(value, str) else None
                    if (said.has(value) or stem) and not _is_documented(value, call.name, name, tools):
                        yield t, call, name, value


def _is_documented(value: JsonValue, tool: str, name: str, tools: Mapping[str, ToolSpec]) -> bool:
    parameter = tools[tool].parameter(name)
    return parameter is not None and documented(value, tools[tool], parameter)


def _is_name(value: str, names: set[str]) -> bool:
    """Return whether a text names a thing: it does in the state, it has a file's ending, or it is no plain word."""
    if value in names or _FILE.fullmatch(value):
        return _NAME.fullmatch(value) is not None
    return "_" in value and _NAME.fullmatch(value) is not None


def _names(state: JsonValue) -> set[str]:
    """Return the keys of a start state that name a thing which the state declares a type of, and files' names."""
    return {
        key
        for key, child in _children(state)
        if _FILE.fullmatch(key) or (isinstance(child, dict) and isinstance(child.get("type"), str))
    }


def _keys(state: JsonValue) -> list[str]:
    return [key for key, _ in _children(state)]


def _children(state: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(state, dict):
        for key, child in state.items():
            yield key, child
            yield from _children(child)
    elif isinstance(state, list):
        for child in state:
            yield from _children(child)


def _read(answer: str) -> Iterator[tuple[Path, Scalar]]:
    """Yield the values of an answer by their paths; none of one that is not JSON."""
    try:
        node: JsonValue = json.loads(answer)
    except (ValueError, RecursionError):
        return
    yield from _values_in(node, ())


def _values_in(node: JsonValue, path: Path) -> Iterator[tuple[Path, Scalar]]:
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _values_in(child, (*path, key))
    elif isinstance(node, list):
        for place, child in enumerate(node):
            yield from _values_in(child, (*path, place))
    elif isinstance(node, str | int | float) and not isinstance(node, bool):
        yield path, node


def _tools(task: TaskSpec, environment: Environment) -> dict[str, ToolSpec]:
    names = sorted({call.name for calls in task.reference for call in calls})
    return {tool.name: tool for tool in environment.tools(names)}
