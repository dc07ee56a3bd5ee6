"""Reads a failure context as guidance for the scripted explorer: which tools in which order, how varied, how careful.

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
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

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

    def weight(self, tool: str) -> float:
        """Return the factor of a tool's weight."""
        return _FOCUS if tool in self.focus else 1.0

    def holds(self, names: Pattern) -> bool:
        """Return whether ``names`` have a pattern of several tools in its order, other calls between them or not."""
        return any(_within(sequence, names) for sequence in self.sequences)


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


def _within(sequence: Pattern, names: Pattern) -> bool:
    rest = iter(names)
    return all(name in rest for name in sequence)


def _in_turn(cause: Cause | None, own: Pattern, sequences: list[Pattern]) -> tuple[Pattern, float]:
    """Return the tools that a cause repeats, and the share of aims that they get."""
    if cause in (Cause.WRONG_ARGUMENT, Cause.MALFORMED):
        return own, _TURN
    if cause in _ALTERNATING:
        pair = next((pattern for pattern in sequences if set(own) <= set(pattern)), own)
        return pair, _TURN
    return (), 0.0
