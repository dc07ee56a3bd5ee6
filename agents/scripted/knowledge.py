"""What scripted rules read: guidance and aims from a failure context, needs from errors and documentation.

Guidance says which tools in which order, how varied, how careful.

CoEvolve's prompts (figure 10) ask an LLM for something else by kind of signal. Ours in rules, by the figure's points:

forgetting  practise the exact operations (a round begins with the path that was solved once), vary parameters (values
            that were given wear out sooner), related operations (then its neighbours, and hardly others), from simple
            to complex (the first round begins with the tool alone)
boundary    boundary conditions (a round calls each tool at first without its known preparation, so that errors and
            what removes them are seen), other parameters (as above), what separates success from failure (the tools in
            which the two rollouts differ, in turn, and after each of them the blamed one)
rare        variations and diverse examples (the pattern's tools, and after each of them a tool outside of it), other
            parameter combinations (optional ones are given twice as often)

The cause changes the rest (all ours): a wrong argument repeats its tool with other values after a look at where they
come from, a wrong call alternates between the confused tools, a missing call or precondition repeats the two calls in
their order, an early stop begins with the whole path and wants long drafts, a malformed call repeats its tool with more
optional parameters.

Items of the focus pattern are read for names of tools alone, in the order of the text. They are aimed at more often,
not exclusively; drafts that hold a sequence are proposed before others of their length.

Rules that pick tools or values compare words of names, documentation and messages (``task_text.words``). ``remedies``
reads an error message: whether it blames an argument or asks for another call first, and of which tool. A message with
the words of another tool's name asks for that tool ("All doors must be locked before starting the engine", in answer to
startEngine, asks for lockDoors). The thresholds on shares of words are our choice. What else a refused or empty call
lacks is read from errors and documentation, too, never from a tool's name as a whole (ours).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle

from agents.evidence import error_message
from environments.base import ToolCall, ToolSpec
from environments.task_text import stands_in, words
from memory.records import Cause, FailureContext, SignalKind

Pattern = tuple[str, ...]

_NAME = re.compile(r"[^\W\d](?:[\w.-]*\w)?")
_OPTIONAL = 0.3
_MORE_OPTIONAL = 0.6
_ELSEWHERE = 0.05
_WEAR = 0.7
_FOCUS = 3.0
_TURN = 0.6  # share of aims that a cause's tools get, in turn
_ALTERNATING = frozenset({Cause.WRONG_CALL, Cause.MISSING_CALL, Cause.UNMET_PRECONDITION})


@dataclass(frozen=True)
class Guidance:
    """What guides one round; the defaults are those of an explorer that reads tools and facts alone.

    ``path``: tools aimed at first, one after another. ``turn``: tools of which one after another is aimed at later,
    with probability ``_TURN``; an empty name stands for any tool outside of them. ``focus``: tools that are drawn
    ``_FOCUS`` times as often. ``elsewhere``: weight of a tool that is not worth reaching, where the most wanted has 1.
    ``wear``: penalty of a value for each time that it was given. ``optional``: probability of an optional parameter.
    ``sequences``: patterns of several tools. ``long``: the longest drafts are wanted first. ``bold``: a tool's first
    call of a round is made without its preparation. ``looks``: a call of a tool in ``turn`` begins with a look at where
    its values come from. ``avoided``: calls, as ``agents.evidence.executed`` writes them, that are made only where
    nothing else was drawn.
    """

    path: Pattern = ()
    turn: Pattern = ()
    focus: frozenset[str] = frozenset()
    elsewhere: float = _ELSEWHERE
    wear: float = _WEAR
    optional: float = _OPTIONAL
    sequences: tuple[Pattern, ...] = ()
    long: bool = False
    bold: bool = False
    looks: bool = False
    avoided: frozenset[str] = frozenset()

    def holds(self, names: Pattern) -> bool:
        """Return whether ``names`` have a pattern of several tools in its order, other calls between them or not."""
        pairs = ((sequence, iter(names)) for sequence in self.sequences)
        return any(all(name in rest for name in sequence) for sequence, rest in pairs)


PLAIN = Guidance()


def patterns(texts: Iterable[str], tools: Collection[str]) -> tuple[Pattern, ...]:
    """Return the tools that each text names, in its order; texts that name none are left out."""
    found = (tuple(name for name in _NAME.findall(text) if name in tools) for text in texts)
    return tuple(pattern for pattern in found if pattern)


def read_context(context: FailureContext, number: int) -> Guidance:
    """Return the guidance of ``context`` for round ``number``, from 0."""
    found = patterns(context.focus_pattern, context.tools)
    sequences = [pattern for pattern in found if len(pattern) > 1]
    longest = max(sequences, key=len, default=())
    own = (context.tool,) if context.tool in context.tools else ()
    kinds = (SignalKind.FORGETTING, SignalKind.BOUNDARY, SignalKind.RARE)
    forgets, boundary, rare = (context.kind is kind for kind in kinds)
    cause, early = context.cause, context.cause is Cause.STOPPED_EARLY
    path: Pattern = ()
    if forgets or early:
        path = own if forgets and number == 0 else longest or own
    turn: Pattern = ()
    if cause in (Cause.WRONG_ARGUMENT, Cause.MALFORMED):
        turn = own
    elif cause in _ALTERNATING:
        turn = next((pattern for pattern in sequences if set(own) <= set(pattern)), own)
    if not turn and boundary:
        differing = [name for name in (sequences[-1] if sequences else ()) if name not in own]
        turn = tuple(name for one in differing for name in (one, *own)) or own
    elif not turn and rare:
        turn = tuple(name for one in (longest or own) for name in (one, ""))
    return Guidance(
        path=path,
        turn=turn,
        focus=frozenset(name for pattern in found for name in pattern),
        elsewhere=_ELSEWHERE / 5 if forgets else _ELSEWHERE * 5 if rare else _ELSEWHERE,
        wear=_WEAR * 3 if forgets or boundary or cause is Cause.WRONG_ARGUMENT else _WEAR,
        optional=_MORE_OPTIONAL if rare or cause is Cause.MALFORMED else _OPTIONAL,
        sequences=tuple(sequences),
        long=rare or early,
        bold=boundary,
        looks=cause is Cause.WRONG_ARGUMENT,
        avoided=frozenset(context.do_not_repeat),
    )


class Aims:
    """The aims and successes so far; the caller counts each aim in ``aimed`` and each success in ``succeeded``.

    ``names`` are all tools that can be aimed at, in the order in which ``rng`` draws; ``wanted`` those worth reaching,
    most wanted first, each tried ``patience`` times before others are preferred.
    """

    def __init__(self, names: Sequence[str], wanted: Sequence[str], patience: int, rng: random.Random) -> None:
        self.aimed: Counter[str] = Counter()
        self.succeeded: Counter[str] = Counter()
        self._names = tuple(names)
        self._rank = {name: rank for rank, name in enumerate(dict.fromkeys(wanted))}
        self._patience = patience
        self._rng = rng
        self._guidance = PLAIN
        self._due: list[str] = []
        self._turn = cycle(PLAIN.turn)

    def follow(self, guidance: Guidance) -> None:
        """Aim by ``guidance`` from here on; its path comes first."""
        self._guidance = guidance
        self._due = [name for name in guidance.path if name in self._names]
        self._turn = cycle(guidance.turn)

    def next(self) -> str:
        """Return the next tool of the guidance's path, else the first wanted tool that was not reached yet or tried
        too often, else any."""
        if not self._due:
            for name in self._rank:
                if name in self._names and not self.succeeded[name] and self.aimed[name] < self._patience:
                    return name
        return self.any()

    def any(self) -> str:
        """Return the next tool of the guidance's path, else one of those that it takes in turn, else one by weight."""
        if self._due:
            return self._due.pop(0)
        turn = self._guidance.turn
        if not turn or self._rng.random() >= _TURN:
            return self._rng.choices(self._names, [self._weight(name) for name in self._names])[0]
        return next(self._turn) or self._unusual(turn)

    def _unusual(self, turn: Sequence[str]) -> str:
        """Draw a tool outside of ``turn``, of those that were aimed at least often."""
        others = [name for name in self._names if name not in turn] or self._names
        fewest = min(self.aimed[name] for name in others)
        return self._rng.choice([name for name in others if self.aimed[name] == fewest])

    def _weight(self, tool: str) -> float:
        """Return the weight of a tool: larger if it is high on the list of wanted ones and not yet reached or tried."""
        rank = self._rank.get(tool)
        base = self._guidance.elsewhere if rank is None else 1.0 / (1 + 0.5 * rank)
        focus = _FOCUS if tool in self._guidance.focus else 1.0
        return focus * base / (1 + self.succeeded[tool] + 0.5 * self.aimed[tool])


_DESCRIPTION_MARK = "Tool description:"
_ENOUGH_WORDS = 2
_ENOUGH_SHARE = 0.5
_ENUM = re.compile(r"\[Enum\].*$", re.DOTALL)

_SHORTEST_ABBREVIATION = 3


@lru_cache(maxsize=4096)
def name_words(name: str) -> frozenset[str]:
    """Stems of the words that make up a tool's or a parameter's name."""
    return frozenset(words(name))


def about(tool: ToolSpec) -> frozenset[str]:
    """Stems of a tool's name and of its own description, without the sentence that its whole group shares."""
    return _about(tool.name, tool.description)


@lru_cache(maxsize=4096)
def _about(name: str, description: str) -> frozenset[str]:
    return name_words(name) | frozenset(_own_words(description))


def _own_words(description: str) -> tuple[str, ...]:
    return words(description.rpartition(_DESCRIPTION_MARK)[2])


@lru_cache(maxsize=4096)
def parameter_words(description: str) -> frozenset[str]:
    """Stems of a parameter's description, without its list of documented values."""
    return frozenset(words(_ENUM.sub("", description)))


def overlap(left: Collection[str], right: Collection[str]) -> int:
    """Count the words of ``left`` that are in ``right``, abbreviations ("dir" of "directory") included."""
    return sum(1 for word in left if word in right or any(_abbreviates(word, other) for other in right))


def share(left: Collection[str], right: Collection[str]) -> float:
    """Return the share of ``left`` that is in ``right``, from 0 to 1; 0 for no words at all."""
    return overlap(left, right) / len(left) if left else 0.0


@lru_cache(maxsize=262144)
def _abbreviates(short: str, long: str) -> bool:
    return len(short) == _SHORTEST_ABBREVIATION and len(long) > len(short) and long.startswith(short)


def remedies(call: ToolCall, text: str, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return tools that the error ``text`` of ``call`` asks for, best match first; empty if it blames a value.

    Among tools whose names match equally, the one whose documentation has more words of the message comes first.
    """
    message = error_message(text)
    said = frozenset(words(message))
    asked = [one for one in tools if one.name != call.name and len(name_words(one.name) & said) >= _ENOUGH_WORDS]
    shares = {tool.name: share(name_words(tool.name), said) for tool in asked}
    asked.sort(key=lambda tool: (-shares[tool.name], -share(said, about(tool)), tool.name))
    if asked and shares[asked[0].name] < 1.0 and blames_argument(call, message):
        return ()
    return tuple(tool for tool in asked if shares[tool.name] >= _ENOUGH_SHARE)


def blames_argument(call: ToolCall, message: str) -> bool:
    """Return whether an error message names a parameter of the call in words, or quotes one of its text values."""
    said = frozenset(words(message))
    named = any(name_words(name) and name_words(name) <= said for name in call.arguments)
    texts = (value for value in call.arguments.values() if isinstance(value, str) and value)
    return named or any(stands_in(text, message) for text in texts)


_SIGN_IN = re.compile(r"\b(authenticat\w*|log(?:ged)?[ -]?in|login|sign(?:ed)?[ -]?in)\b", re.IGNORECASE)
_OBTAINED = re.compile(r"\b(?:obtained|returned) (?:from|by) (?:the )?(.+)", re.IGNORECASE)
_MISSING = re.compile(r"\b(not found|not registered|does not exist)\b", re.IGNORECASE)
_LIST = re.compile(r"\[([^\[\]]*)\]")
_QUOTED = re.compile(r"'([^']{1,80})'")
_MAKING = frozenset(
    words(
        "add book comment create fund make open order place post publish purchase record register schedule send write"
    )
)
_MOST_LISTED = 8


def sign_in_tools(call: ToolCall, text: str, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools that sign somebody in where the error ``text`` of ``call`` asks for it, by name."""
    if not _SIGN_IN.search(error_message(text)):
        return ()
    return tuple(sorted(filter(_signs_in, _others(call, tools)), key=lambda tool: tool.name))


def sources_of_values(call: ToolCall, text: str, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools that the documentation names as the origin of a value that the error ``text`` blames."""
    said, named = frozenset(words(error_message(text))), set[str]()
    for parameter in (each for tool in tools if tool.name == call.name for each in tool.parameters):
        origin = _OBTAINED.search(parameter.description)
        if origin is not None and name_words(parameter.name) <= said:
            named.update(words(origin.group(1)))
    found = [tool for tool in _others(call, tools) if tool.parameters and name_words(tool.name) & named]
    return tuple(sorted(found, key=lambda tool: tool.name))


def makers(call: ToolCall, text: str | None, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools that make what ``call`` did not find, best match first.

    ``text`` is its error; None for an empty answer, where the noun is in the tool's own name.
    """
    if text is None:
        wanted = name_words(call.name)
    elif _MISSING.search(error_message(text)):
        wanted = frozenset(words(error_message(text)))
    else:
        return ()
    making = [tool for tool in _others(call, tools) if next(iter(_own_words(tool.description)), "") in _MAKING]
    shared = {tool.name: overlap(name_words(tool.name), wanted) for tool in making}
    making.sort(key=lambda tool: (-shared[tool.name], -overlap(about(tool), wanted), tool.name))
    return tuple(tool for tool in making if shared[tool.name])


def listed_values(call: ToolCall, text: str) -> tuple[str, ...]:
    """Return the quoted values of lists in the error ``text`` that the call did not give."""
    given = {str(value) for value in call.arguments.values()}
    found = [value for part in _LIST.findall(error_message(text)) for value in _QUOTED.findall(part)]
    return tuple(value for value in dict.fromkeys(found) if value not in given)[:_MOST_LISTED]


def _others(call: ToolCall, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    group = next((tool.group for tool in tools if tool.name == call.name), "")
    return [tool for tool in tools if tool.group == group and tool.name != call.name]


def _signs_in(tool: ToolSpec) -> bool:
    name = re.sub(r"[^A-Za-z]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name))
    return _SIGN_IN.search(name) is not None and any(parameter.required for parameter in tool.parameters)
