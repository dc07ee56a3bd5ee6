"""Controls: baselines without a model, which use the training tasks alone.

A trained policy has learnt something only where it does better. ``lookup`` answers each clause of the user's text with
the call of the training clause that shares most words. ``nearest-turn`` answers the whole text with all calls of the
training turn that does. ``bm25-lookup`` chooses a function for each clause by its documentation and the training
turns that ask for it, and takes the arguments from training.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pydantic import JsonValue

from environments.base import (
    Action,
    Environment,
    EnvironmentFault,
    InputError,
    Observation,
    TaskSpec,
    ToolCall,
    ToolSpec,
    UserTurn,
)
from environments.command import say
from environments.task_text import CONNECTIVES
from environments.turns import open_for_agent
from environments.verification.canonical import fingerprint
from evaluation.attempts import outcome_of
from evaluation.outcomes import TaskOutcome
from evaluation.sets import Item
from evaluation.settings import BM25_LOOKUP, LOOKUP, NEAREST_TURN
from memory.jsonl import read_jsonl
from memory.records import Task

NO_MODEL = "none"
"""The rendering in a report of a baseline."""

_VALUE = re.compile(r"""\"([^\"]*)\"|(?<!\w)'([^']*)'(?!\w)|(?<![\w.])(-?\d+(?:\.\d+)?)(?![\w.]*\w)""")
_JOINED = re.compile("|".join(map(re.escape, CONNECTIVES)))
_HOLE = "\0"
_WORD = re.compile(r"[a-z]+")


class Clause(NamedTuple):
    """A part of a user turn: its words, and its values (texts in double or single quotes, and numbers) in order."""

    words: frozenset[str]
    values: tuple[str, ...]


class Known(NamedTuple):
    """A training clause and its reference calls."""

    clause: Clause
    calls: tuple[ToolCall, ...]


class Lookup:
    """Makes the calls of the nearest training clause, with the values of the clause at hand in place of its own.

    With ``whole_turns`` it looks up the whole text of a user turn, which may have no call (nearest-turn).
    """

    def __init__(self, tasks: Sequence[TaskSpec], *, whole_turns: bool = False) -> None:
        known = map(known_turns if whole_turns else known_clauses, tasks)
        self._known = tuple({repr(one): one for some in known for one in some}.values())
        self._whole_turns = whole_turns

    def act(self, turn: UserTurn) -> tuple[ToolCall, ...]:
        """Return the calls of what is nearest to each part of the text, of offered tools only."""
        offered = frozenset(turn.tools)
        fitting = [known for known in self._known if all(call.name in offered for call in known.calls)]
        parts = (whole(turn.text),) if self._whole_turns else clauses(turn.text)
        made: list[ToolCall] = []
        for part in parts if fitting else ():
            nearest = max(fitting, key=lambda known: _likeness(part, known.clause))
            made += [_with_values(call, nearest.clause.values, part.values) for call in nearest.calls]
        return tuple(made)


class RankedFunction:
    """Calls for each clause of a text the function that BM25 ranks highest, as the nearest training call of it does.

    BM25 ranks the documentation of a function and the training turns that ask for it.

    A function without a training call gets the clause's values, by the types of the parameters that it requires.
    """

    def __init__(self, tasks: Sequence[TaskSpec], environment: Environment) -> None:
        self._tools = environment.tools
        self._known: defaultdict[str, list[tuple[Clause, ToolCall]]] = defaultdict(list)
        self._requests: defaultdict[str, list[str]] = defaultdict(list)
        turns = ((text, calls) for task in tasks for text, calls in zip(task.turns, task.reference, strict=True))
        for text, calls in {repr(one): one for one in turns}.values():
            for name in dict.fromkeys(call.name for call in calls):
                self._requests[name].append(text)
            parts = clauses(text)
            aligned = parts if len(parts) == len(calls) else [whole(text)] * len(calls)
            for clause, call in zip(aligned, calls, strict=True):
                self._known[call.name].append((clause, call))

    def act(self, turn: UserTurn) -> tuple[ToolCall, ...]:
        """Return one call for each clause of the text."""
        from environments.tool_lines import highest_ranked

        offered = self._tools(turn.tools)
        made = []
        for clause in clauses(turn.text) if offered else ():
            (name,) = highest_ranked(" ".join(sorted(clause.words)), offered, 1, self._requests)
            made.append(self._call(clause, next(tool for tool in offered if tool.name == name)))
        return tuple(made)

    def _call(self, clause: Clause, tool: ToolSpec) -> ToolCall:
        if tool.name in self._known:
            known, call = max(self._known[tool.name], key=lambda pair: _likeness(clause, pair[0]))
            return _with_values(call, known.values, clause.values)
        left, arguments = list(clause.values), {}
        for parameter in (one for one in tool.parameters if one.required):
            for place, text in enumerate(left):
                number = _number(text)
                if (number is not None) == (parameter.type in ("integer", "float")):
                    arguments[parameter.name] = text if number is None else number
                    del left[place]
                    break
        return ToolCall(name=tool.name, arguments=arguments)


Control: TypeAlias = Lookup | RankedFunction
"""Makes the calls of a user turn from its text and its tools' names, before the environment answers one."""


def whole(text: str) -> Clause:
    """Return a whole text as one clause."""
    return Clause(frozenset(_WORD.findall(_VALUE.sub(" ", text).lower())), _values(text))


def _values(text: str) -> tuple[str, ...]:
    return tuple(double or single or number for double, single, number in _VALUE.findall(text))


def clauses(text: str) -> tuple[Clause, ...]:
    """Split ``text`` at its connectives, not at those inside quoted values."""
    values, found = _values(text), []
    for part in _JOINED.split(_VALUE.sub(_HOLE, text)):
        here, values = values[: part.count(_HOLE)], values[part.count(_HOLE) :]
        found.append(Clause(frozenset(_WORD.findall(part.lower())), here))
    return tuple(found)


def known_turns(task: TaskSpec) -> Iterator[Known]:
    """Yield the whole user turns of a training task with their calls."""
    for text, calls in zip(task.turns, task.reference, strict=True):
        yield Known(whole(text), calls)


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


def control(
    name: str, train: Path | None, items: Sequence[Item], environment: Environment
) -> tuple[Control, tuple[str, ...]]:
    """Return the control of that name over the tasks of the file ``train``, and notes for the report.

    Raises InputError for a file that cannot be read, is empty, or holds tasks of another environment than ``items``.
    """
    if train is None or not items:
        raise InputError("nothing to evaluate: the selection holds no task, or --train names no file")
    tasks = read_jsonl(train, Task)
    strange = [task for task in tasks if task.environment != items[0].task.environment]
    if strange or not tasks:
        what = f"task {strange[0].id} is of {strange[0].environment}" if strange else "it holds no task"
        raise InputError(f"--train {train}: {what}: name a file of training tasks of {items[0].task.environment}")
    notes = [f"{name}: no model, {len(tasks)} training tasks of {train}"]
    known = {fingerprint(task) for task in tasks}
    if equal := sum(fingerprint(item.task) in known for item in items):
        notes.append(f"{equal} of the {len(items)} tasks are among the training tasks")
    if name == BM25_LOOKUP:
        return RankedFunction(tasks, environment), tuple(notes)
    return Lookup(tasks, whole_turns=name == NEAREST_TURN), tuple(notes)


def play(
    items: Sequence[Item], environment: Environment, driver: Control, max_actions: int, name: str = LOOKUP
) -> tuple[TaskOutcome, ...]:
    """Attempt every item once on the environment, at most ``max_actions`` calls per user turn, in the given order.

    ``name`` is the control's in the outcomes.
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
                outcomes.append(outcome_of(item, steps, episode.outcome(), 0, None))
        except EnvironmentFault as fault:
            outcomes.append(outcome_of(item, steps, None, 0, f"{type(fault).__name__}: {fault}"))
    say(f"evaluated {len(outcomes)} of {len(items)}")
    return tuple(one.model_copy(update={"baseline": name}) for one in outcomes)


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
