"""Verify user turns in which nothing can be called yet (ours).

The reference of such a turn is empty: an agent can only ask back, or say that it cannot do it. The turn after it has
calls, and brings what the first of them needs:

- a *withheld tool*: the environment offers the tool of that call from its turn on, and not before;
- a *missing detail*: the turn says the value of a required argument of that call, and nothing that an agent has read
  before has it: no earlier turn, no answer, no documentation.

An agent must not get by without the detail, either. No read without arguments may answer it as the only value of its
kind, and the call with another value must not be made good by the calls of the next turn (``_GUESSES`` values are
tried). Otherwise an agent that guesses succeeds as one that asks back does. A call that only reads changes no outcome,
guessed or not: it is neither rewarded nor punished. And the next turn's other calls, as far as an agent can
make them at once with equal answers, must be no mistake there: the remaining ones still succeed after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice

from pydantic import JsonValue

from environments.answers import decoded
from environments.base import Environment, TaskSpec, ToolCall, ToolSpec, UserTurn, recorded
from environments.task_text import leaves, numbers
from environments.verification.canonical import texts_in
from environments.verification.provenance import HIDDEN, Source, SourcedValue, sources
from environments.verification.replay import Replay, argument_problem, replay

_GUESSES = 8
_LONGEST_GUESS = 60  # characters: a value, not a text
_ENDS = ".!?"


def asked_at_once(task: TaskSpec) -> TaskSpec:
    """Return the task with each turn without calls joined to the turn after it, and with no tool withheld."""
    turns, reference, before = [], [], ""
    for text, calls in zip(task.turns, task.reference, strict=True):
        before += text if not before else f"{'' if before.rstrip()[-1:] in _ENDS else '.'} {text}"
        if calls:
            turns.append(before)
            reference.append(calls)
            before = ""
    return task.model_copy(update={"turns": tuple(turns), "reference": tuple(reference), "withheld": {}})


def unneeded_turn(environment: Environment, task: TaskSpec) -> str | None:
    """Return a phrase for the first turn without calls that lacks nothing, None where there is none.

    Raises the errors of ``replay``.
    """
    empty = [t for t, calls in enumerate(task.reference) if not calls]
    for t in empty:
        if not any(task.reference[t + 1 : t + 2]):
            return f"turn {t + 1} has no call, and no turn with calls follows it"
    if not empty:
        return None
    played, offered = replay(environment, task), _offered(environment, task)
    environment = recorded(environment)
    for t in empty:
        first = task.reference[t + 1][0]
        withheld = first.name in offered[t + 1] and first.name not in offered[t]
        silent = task.model_copy(update={"turns": (*task.turns[: t + 1], "", *task.turns[t + 2 :])})
        unspoken = tuple(one for one in sources(environment, silent, played.turns) if one.place[0] == t + 1)
        turn = _EmptyTurn(environment, task, played, t, offered[t], unspoken)
        if not withheld and (known := turn.known_detail()):
            return f"turn {t + 1} has no call, though {first.name} is not withheld until turn {t + 2}, and {known}"
        if early := turn.spoilt_by():
            return f"turn {t + 1} has no call, though {early} can be made in it, and the task fails after that"
    return None


def _offered(environment: Environment, task: TaskSpec) -> list[tuple[str, ...]]:
    """Return the tools that the environment offers in each turn."""
    with closing(environment.open(task)) as episode:
        found = list[tuple[str, ...]]()
        turn: UserTurn | None = episode.start()
        while turn is not None:
            found.append(turn.tools)
            turn = episode.end_turn()
        return found


@dataclass(frozen=True)
class _EmptyTurn:
    """Turn ``t`` of a task, which has no call, and the task as it was ``played``.

    ``offered`` are the tools of the turn. ``unspoken`` has the values of the next turn's calls, with their sources
    where that turn says nothing.
    """

    environment: Environment
    task: TaskSpec
    played: Replay
    t: int
    offered: tuple[str, ...]
    unspoken: tuple[SourcedValue, ...]

    @property
    def next_calls(self) -> tuple[ToolCall, ...]:
        return self.task.reference[self.t + 1]

    def known_detail(self) -> str | None:
        """Return a phrase on why the next call could be made already, None where a required value is missing."""
        after = self.t + 2
        (tool,) = self.environment.tools((self.next_calls[0].name,))
        spoken = [one for one in sources(self.environment, self.task, self.played.turns) if one.place[0] == self.t + 1]
        why = f"requires no value that turn {after} says"
        for one, before in zip(spoken, self.unspoken, strict=True):
            if one.place[1]:
                break
            parameter = tool.parameter(one.parameter)
            if parameter is None or not parameter.required or one.source is not Source.WORDS or one.literal:
                continue
            if before.source not in HIDDEN:
                where = before.source.replace("_", " ")
                why = f"its {one.parameter} {one.value!r:.80} is known before turn {after} ({where})"
            elif name := self._answering(one.value):
                why = f"{name} answers its {one.parameter} {one.value!r:.80}, and no other"
            elif (other := self._made_good(tool, one.parameter)) is not None:
                why = f"a guess of its {one.parameter}, {other!r:.80}, is made good by turn {after}"
            else:
                return None
        return why

    def spoilt_by(self) -> str | None:
        """Return the names of the next turn's calls that an agent can make in this one, where the task then fails."""
        unknown = {
            one.place[1]
            for one in self.unspoken
            if one.source in HIDDEN or (one.producer is not None and one.producer[0] == self.t + 1)
        }
        calls = self.next_calls
        early = [c for c, call in enumerate(calls) if call.name in self.offered and c not in unknown]
        answers = self.played.turns[self.t + 1].observations
        tried = self._at_once(early).turns[self.t].observations
        same = [c for c, answer in zip(early, tried, strict=True) if answer == answers[c]]
        if not same or self._at_once(same).outcome.success:
            return None
        return " and ".join(dict.fromkeys(calls[c].name for c in same))

    def _at_once(self, early: Sequence[int]) -> Replay:
        """Replay the reference with these calls of the next turn in this one."""
        rest = tuple(call for c, call in enumerate(self.next_calls) if c not in early)
        return self._with_calls([self.next_calls[c] for c in early], rest)

    def _answering(self, value: JsonValue) -> str | None:
        """Return the first read without arguments whose answer has ``value`` as the only one of its kind."""
        for tool in self.environment.tools(self.offered):
            if any(parameter.required for parameter in tool.parameters):
                continue
            tried = self._with_calls([ToolCall(name=tool.name)], self.next_calls)
            (answer,) = tried.turns[self.t].observations
            if answer.failed or self._changed(tried):
                continue
            alike = {leaf for leaf in leaves(decoded(answer.text)) if _is_text(leaf) is _is_text(value)}
            if alike == {value}:
                return tool.name
        return None

    def _made_good(self, tool: ToolSpec, name: str) -> JsonValue:
        """Return a wrong value with which the next call succeeds here and the task still does, None without one."""
        first = self.next_calls[0]
        for other in islice(_others(first.arguments[name], tool, name, self.task), _GUESSES):
            guess = first.model_copy(update={"arguments": {**first.arguments, name: other}})
            if argument_problem(guess, tool) is not None:
                continue
            tried = self._with_calls([guess], self.next_calls)
            failed = tried.turns[self.t].observations[0].failed
            if self._changed(tried) and not failed and tried.outcome.success:
                return other
        return None

    def _with_calls(self, calls: Sequence[ToolCall], then: Sequence[ToolCall]) -> Replay:
        """Replay the reference with ``calls`` in this turn, and others in the next one."""
        before, after = self.task.reference[: self.t], self.task.reference[self.t + 2 :]
        return replay(self.environment, self.task, (*before, calls, then, *after))

    def _changed(self, tried: Replay) -> bool:
        """Return whether the state at the end of this turn differs from that at its begin."""
        states = (tried.initial, *tried.end_states())
        return states[self.t + 1] != states[self.t]


def _is_text(value: JsonValue) -> bool | None:
    """Return whether a value is a text; None for what is neither a text nor a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return isinstance(value, str)


def _others(value: JsonValue, tool: ToolSpec, name: str, task: TaskSpec) -> Iterator[JsonValue]:
    """Yield values that an agent may guess in place of ``value``: those that it may have read first."""
    if isinstance(value, str):
        known = {one for one in texts_in(task.initial_state) if len(one) <= _LONGEST_GUESS and one != value}
        yield f"{value} 2"
        yield from sorted(known, key=lambda one: (abs(len(one) - len(value)), one))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        parameter = tool.parameter(name)
        stated = sorted(numbers(parameter.description)) if parameter is not None else []
        own = Decimal(str(value))
        for number in (own + 1, own - 1, own * 2, *stated):
            if number != own:
                yield int(number) if isinstance(value, int) else float(number)
