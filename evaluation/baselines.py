"""A baseline without a model, which uses the training tasks alone.

A trained policy has learnt something only where it does better. ``lookup`` answers each clause of the user's text with
the call of the training clause that shares most words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from environments.base import (
    Action,
    Environment,
    EnvironmentFault,
    InputError,
    Observation,
    Outcome,
    TaskSpec,
    ToolCall,
    UserTurn,
)
from environments.history import open_for_agent
from environments.task_text import CONNECTIVES
from environments.terminal import say
from environments.verification.fingerprints import fingerprint
from evaluation.attempts import outcome_of
from evaluation.outcomes import TaskOutcome
from evaluation.sets import Item
from evaluation.settings import LOOKUP
from memory.jsonl import read_jsonl
from memory.records import Task

NO_MODEL = "none"
"""The rendering in a report of a baseline."""

_VALUE = re.compile(r'"([^"]*)"|(?<![\w.])(-?\d+(?:\.\d+)?)(?![\w.]*\w)')
_JOINED = re.compile("|".join(map(re.escape, CONNECTIVES)))
_HOLE = "\0"
_WORD = re.compile(r"[a-z]+")


class Clause(NamedTuple):
    """A part of a user turn: its words, and its values (quoted texts and numbers) in order."""

    words: frozenset[str]
    values: tuple[str, ...]


class Known(NamedTuple):
    """A training clause and its reference calls."""

    clause: Clause
    calls: tuple[ToolCall, ...]


class Lookup:
    """Makes the calls of the nearest training clause, with the values of the clause at hand in place of its own."""

    def __init__(self, tasks: Sequence[TaskSpec]) -> None:
        self._known = tuple({repr(known): known for task in tasks for known in known_clauses(task)}.values())

    def act(self, turn: UserTurn) -> tuple[ToolCall, ...]:
        """Return the calls of the nearest clause for each clause of the text, of offered tools only."""
        offered = frozenset(turn.tools)
        fitting = [known for known in self._known if all(call.name in offered for call in known.calls)]
        made: list[ToolCall] = []
        for clause in clauses(turn.text) if fitting else ():
            nearest = max(fitting, key=lambda known: _likeness(clause, known.clause))
            made += [_with_values(call, nearest.clause.values, clause.values) for call in nearest.calls]
        return tuple(made)


def clauses(text: str) -> tuple[Clause, ...]:
    """Split ``text`` at its connectives, not at those inside quoted values."""
    values = [quoted or number for quoted, number in _VALUE.findall(text)]
    found = []
    for part in _JOINED.split(_VALUE.sub(_HOLE, text)):
        here, values = values[: part.count(_HOLE)], values[part.count(_HOLE) :]
        found.append(Clause(frozenset(_WORD.findall(part.lower())), tuple(here)))
    return tuple(found)


def known_clauses(task: TaskSpec) -> Iterator[Known]:
    """Yield the clauses of a training task: with one call each, or with all calls of a turn of one clause.

    A turn of several clauses and another number of calls is left out: which call belongs to which is unknown.
    """
    for text, calls in zip(task.turns, task.reference, strict=True):
        parts = clauses(text)
        if len(parts) == len(calls):
            yield from (Known(part, (call,)) for part, call in zip(parts, calls, strict=True))
        elif len(parts) == 1:
            yield Known(parts[0], calls)


def lookup(train: Path | None, items: Sequence[Item]) -> tuple[Lookup, tuple[str, ...]]:
    """Return the lookup over the tasks of the file ``train``, and notes for the report.

    Raises InputError for a file that cannot be read, is empty, or holds tasks of another environment than ``items``.
    """
    if train is None or not items:
        raise InputError("nothing to evaluate: the selection holds no task, or --train names no file")
    tasks = read_jsonl(train, Task)
    environment = items[0].task.environment
    strange = [task for task in tasks if task.environment != environment]
    if strange or not tasks:
        what = f"task {strange[0].id} is of {strange[0].environment}" if strange else "it holds no task"
        raise InputError(f"--train {train}: {what}: name a file of training tasks of {environment}")
    notes = [f"{LOOKUP}: no model, {len(tasks)} training tasks of {train}"]
    known = {fingerprint(task) for task in tasks}
    if equal := sum(fingerprint(item.task) in known for item in items):
        notes.append(f"{equal} of the {len(items)} tasks are among the training tasks")
    return Lookup(tasks), tuple(notes)


def play(items: Sequence[Item], environment: Environment, driver: Lookup, max_actions: int) -> tuple[TaskOutcome, ...]:
    """Attempt every item once on the environment, at most ``max_actions`` calls per user turn, in the given order.

    Raises InputError for a task that the environment cannot open.
    """
    outcomes = []
    for item in items:
        steps: list[tuple[Action, Observation]] = []
        try:
            with closing(environment.open(item.task)) as episode:
                _, first = open_for_agent(episode, item.task)
                turn: UserTurn | None = first
                while turn is not None:
                    steps += [(call, episode.step(call)) for call in driver.act(turn)[:max_actions]]
                    turn = episode.end_turn()
                outcomes.append(_outcome(item, steps, episode.outcome(), None))
        except EnvironmentFault as fault:
            outcomes.append(_outcome(item, steps, None, f"{type(fault).__name__}: {fault}"))
    say(f"evaluated {len(outcomes)} of {len(items)}")
    return tuple(outcomes)


def _outcome(
    item: Item, steps: Sequence[tuple[Action, Observation]], outcome: Outcome | None, fault: str | None
) -> TaskOutcome:
    return outcome_of(item, steps, outcome, 0, fault).model_copy(update={"baseline": LOOKUP})


def _likeness(clause: Clause, known: Clause) -> tuple[float, ...]:
    """Order by the number of shared words, then by how few others there are, then by an equal number of values."""
    shared, others = len(clause.words & known.words), len(clause.words ^ known.words)
    return float(shared), -float(others), float(len(clause.values) == len(known.values))


def _with_values(call: ToolCall, before: Sequence[str], after: Sequence[str]) -> ToolCall:
    """Return ``call`` with the values of its own clause (``before``) replaced by those of another one, by position."""

    def put(value: JsonValue) -> JsonValue:
        if isinstance(value, list):
            return [put(item) for item in value]
        if isinstance(value, dict):
            return {name: put(item) for name, item in value.items()}
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        place = next((n for n, text in enumerate(before[: len(after)]) if _equal(text, value)), None)
        return value if place is None else _typed(after[place], value)

    return ToolCall(name=call.name, arguments={name: put(value) for name, value in call.arguments.items()})


def _equal(text: str, value: str | float) -> bool:
    return text == value if isinstance(value, str) else _number(text) == value


def _typed(text: str, like: str | float) -> JsonValue:
    """Return ``text`` as a number where ``like`` is one and ``text`` can be."""
    number = None if isinstance(like, str) else _number(text)
    return text if number is None else number


def _number(text: str) -> float | None:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return None
