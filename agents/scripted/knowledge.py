"""What a scripted explorer knows: its guidance and aims, what tools need first, and what a refused call lacks.

Guidance is read from a failure context: which tools in which order, how varied, how careful.

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

Items of the focus pattern are read for names of tools, in the order of the text: one tool, or a sequence of them. They
are aimed at more often, not exclusively; drafts that hold a sequence are proposed before others of their length. Other
words of an item are not read.

What a refused or empty call lacks is read from errors and documentation, never from a tool's name as a whole (ours):

signed in   the error asks to log in or to authenticate: tools of the same group whose names say so, with parameters
returned    the error names a parameter that is documented as "obtained from the ...": tools of the same group with
            those words in their names
made        the error says that something was not found, or the answer is empty: tools of the same group whose
            documentation begins with a verb of making ("Create a ticket") and shares the thing's noun
listed      the error lists the values that it would take: "Here are ...: ['a', 'b']"
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agents.evidence import about, error_message, executed, name_words, overlap
from agents.scripted.values import Experience, Sightings
from environments.base import Environment, Observation, ToolCall, ToolSpec
from environments.benchmark import KnownValue
from environments.task_text import words
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
    with probability ``share``; an empty name stands for any tool outside of them. ``focus``: tools that are drawn
    ``_FOCUS`` times as often. ``elsewhere``: weight of a tool that is not worth reaching, where the most wanted has 1.
    ``wear``: penalty of a value for each time that it was given. ``optional``: probability of an optional parameter.
    ``sequences``: patterns of several tools. ``long``: the longest drafts are wanted first. ``bold``: a tool's first
    call of a round is made without its preparation. ``looks``: a call of a tool in ``turn`` begins with a look at where
    its values come from. ``avoided``: calls, as ``agents.evidence.executed`` writes them, that are made only where
    nothing else was drawn.
    """

    path: Pattern = ()
    turn: Pattern = ()
    share: float = 0.0
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

        def within(sequence: Pattern) -> bool:
            rest = iter(names)
            return all(name in rest for name in sequence)

        return any(map(within, self.sequences))


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
    kind, cause = context.kind, context.cause
    forgets, rare = kind is SignalKind.FORGETTING, kind is SignalKind.RARE
    path: Pattern = ()
    if forgets:
        path = (longest or own) if number > 0 else own
    elif cause is Cause.STOPPED_EARLY:
        path = longest or own
    turn, share = _in_turn(cause, own, sequences)
    if not turn and kind is SignalKind.BOUNDARY:
        differing = tuple(name for name in (sequences[-1] if sequences else ()) if name not in own)
        turn, share = tuple(name for one in differing for name in (one, *own)) or own, _TURN
    if not turn and rare:
        turn, share = tuple(name for one in (longest or own) for name in (one, "")), _TURN
    varied = forgets or kind is SignalKind.BOUNDARY or cause is Cause.WRONG_ARGUMENT
    return Guidance(
        path=path,
        turn=turn,
        share=share,
        focus=frozenset(name for pattern in found for name in pattern),
        elsewhere=_ELSEWHERE / 5 if forgets else _ELSEWHERE * 5 if rare else _ELSEWHERE,
        wear=_WEAR * 3 if varied else _WEAR,
        optional=_MORE_OPTIONAL if rare or cause is Cause.MALFORMED else _OPTIONAL,
        sequences=tuple(sequences),
        long=rare or cause is Cause.STOPPED_EARLY,
        bold=kind is SignalKind.BOUNDARY,
        looks=cause is Cause.WRONG_ARGUMENT,
        avoided=frozenset(context.do_not_repeat),
    )


def _in_turn(cause: Cause | None, own: Pattern, sequences: list[Pattern]) -> tuple[Pattern, float]:
    """Return the tools that a cause repeats, and the share of aims that they get."""
    if cause in (Cause.WRONG_ARGUMENT, Cause.MALFORMED):
        return own, _TURN
    if cause in _ALTERNATING:
        pair = next((pattern for pattern in sequences if set(own) <= set(pattern)), own)
        return pair, _TURN
    return (), 0.0


_AVOIDED = 99  # as if a call had been made so often


class Aims:
    """The aims and successes so far; the caller counts each aim in ``aimed`` and each success in ``succeeded``.

    Args:
        names: every tool that can be aimed at, in the order in which ``rng`` draws.
        wanted: the tools worth reaching, most wanted first.
        patience: number of attempts at a wanted tool before others are preferred.
        rng: the random generator.
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
        self._turn = 0

    def follow(self, guidance: Guidance) -> None:
        """Aim by ``guidance`` from here on; its path comes first."""
        self._guidance = guidance
        self._due = [name for name in guidance.path if name in self._names]
        self._turn = 0

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
        if not turn or self._rng.random() >= self._guidance.share:
            return self._rng.choices(self._names, [self._weight(name) for name in self._names])[0]
        self._turn += 1
        return turn[(self._turn - 1) % len(turn)] or self._unusual(turn)

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


_PATIENCE = 3


class Knowledge:
    """Tools and their documentation, calls made, what succeeded, and what a tool needs to be called first."""

    def __init__(
        self, context: FailureContext, environment: Environment, given: Sequence[KnownValue], rng: random.Random
    ) -> None:
        self.rng = rng
        self.tools = {tool.name: tool for tool in environment.tools(context.tools)}
        self.experience = Experience()
        self._made: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        wanted = (context.tool, *context.explore) if context.tool else context.explore
        self.aims = Aims(sorted(self.tools), wanted, _PATIENCE, rng)
        self.needs: dict[str, tuple[ToolCall, ...]] = {}
        self.in_view: dict[str, tuple[ToolCall, Observation]] = {}
        self.guidance = PLAIN
        self._context = context
        self._given = given

    def follow(self, guidance: Guidance) -> None:
        """Let ``guidance`` guide the next round."""
        self.guidance = guidance
        self.aims.follow(guidance)

    def sightings(self) -> Sightings:
        """Return what is visible at the start of a round: state, training values, facts, and earlier looks."""
        seen = Sightings()
        seen.see_state(self._context.initial_state)
        for value in self._given:
            if value.tool in self.tools:
                seen.see_for(value.tool, value.parameter, value.value, value.near)
        seen.see_facts(self._context.facts)
        for call, observation in self.in_view.values():
            seen.see_observation(call, observation)
        return seen

    def record(self, call: ToolCall, succeeded: bool) -> None:
        """Count a call as made. Its failures are forgotten once it succeeds."""
        key = _key(call)
        self._made[key] += succeeded
        self._failed[key] = 0 if succeeded else self._failed[key] + 1
        self.aims.succeeded[call.name] += succeeded

    def newest(self, calls: Sequence[ToolCall]) -> ToolCall:
        """Return the call that was made least often in this context, failures counted double; the first of equals.

        Those that the guidance avoids come last.
        """
        return min(calls, key=self._times)

    def _times(self, call: ToolCall) -> int:
        avoided = bool(self.guidance.avoided) and executed(call) in self.guidance.avoided
        return self._made[_key(call)] + 2 * self._failed[_key(call)] + _AVOIDED * avoided


def _key(call: ToolCall) -> str:
    return f"{call.name}{sorted(call.arguments.items())}"


_SIGN_IN = re.compile(r"\b(authenticat\w*|log(?:ged)?[ -]?in|login|sign(?:ed)?[ -]?in)\b", re.IGNORECASE)
_OBTAINED = re.compile(r"\b(?:obtained|returned) (?:from|by) (?:the )?(.+)", re.IGNORECASE)
_MISSING = re.compile(r"\b(not found|not registered|does not exist)\b", re.IGNORECASE)
_LIST = re.compile(r"\[([^\[\]]*)\]")
_QUOTED = re.compile(r"'([^']{1,80})'")
_DESCRIPTION_MARK = "Tool description:"
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
    ranked = []
    for tool in _others(call, tools):
        shared = overlap(name_words(tool.name), wanted)
        if shared and _verb(tool.description) in _MAKING:
            ranked.append((-shared, -overlap(about(tool), wanted), tool.name, tool))
    return tuple(tool for *_, tool in sorted(ranked))


def listed_values(call: ToolCall, text: str) -> tuple[str, ...]:
    """Return the quoted values of lists in the error ``text`` that the call did not give."""
    given = {str(value) for value in call.arguments.values()}
    found = [value for part in _LIST.findall(error_message(text)) for value in _QUOTED.findall(part)]
    return tuple(value for value in dict.fromkeys(found) if value not in given)[:_MOST_LISTED]


def _others(call: ToolCall, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return the other tools of the called one's group."""
    group = next((tool.group for tool in tools if tool.name == call.name), "")
    return [tool for tool in tools if tool.group == group and tool.name != call.name]


def _signs_in(tool: ToolSpec) -> bool:
    name = re.sub(r"[^A-Za-z]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name))
    return _SIGN_IN.search(name) is not None and any(parameter.required for parameter in tool.parameters)


@lru_cache(maxsize=4096)
def _verb(description: str) -> str:
    """Return the stem of the first word of a tool's own description."""
    return next(iter(words(description.rpartition(_DESCRIPTION_MARK)[2])), "")
