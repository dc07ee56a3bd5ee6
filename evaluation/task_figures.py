"""Compute figures of a set of tasks from replays of their references: what good tasks have in common with people's.

``examine`` replays one task; everything else is a pure function of what it returns. Only the turns that the agent plays
count: those before them (``TaskSpec.played``) are what it has read. All definitions are ours.

- Provenance: the share of each ``Source`` among the values of all arguments. Verification refuses the last two.
- Verbatim and quoted: of the values that are text, the share that the user turn of the call has as a whole, and the
  share that it has in quotes.
- Dataflow: of the tasks of two calls or more, the share in which a later call takes a value that an earlier answer has
  and no user turn so far. A value that is documented, a small whole number (``task_text.is_count``), and a text of
  fewer than ``LETTERS`` characters do not count: they are equal by chance.
- Copied identifiers: the share of tasks whose words have a key of the start state that is not a plain word, such as
  ``booking_82`` or ``notes.txt``.
- Abstention turns: user turns whose reference has no call, because the next one brings what it needs. They are left out
  of the calls per turn, and what they say is an earlier turn's for the calls that follow.
- Call graphs: the functions of a task with the dataflow between them, in any order. Distinct ones by task; the entropy
  of their counts, by that of equal counts; the share of tasks that the ``TOP`` most frequent ones have.
- Novelty: the share of tasks with a function, a call graph, a start state, or a source of a parameter's value, that
  another set of tasks does not have.

Intervals of shares are robust to shared start states and functions (``statistics.shared_interval``); those of other
means resample start states (``statistics.resampled_interval``).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import JsonValue

from environments.base import Environment
from environments.task_text import Seen, is_count, leaves, normal
from environments.verification.programs import functions_of, program_parameters
from environments.verification.provenance import Source, SourcedValue, sources
from environments.verification.replay import ReplayedTurn, replay, setup_as_turns
from environments.verification.turn_text import quotes
from evaluation.similarity import Table
from evaluation.statistics import numbered, rarest_functions, resampled_interval, shared_interval
from memory.records import Task

LETTERS = 3
"""Characters of the shortest text that is not equal to another by chance."""

TOP = 10
"""How many call graphs are the most frequent ones."""

_TRIMMED = " .,;:!?"

Graph = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""The functions that a task calls, and the pairs of tools between which a value passes; both sorted."""


class Examined(NamedTuple):
    """A task with what its replay shows of the turns that the agent plays.

    ``turns`` are all turns of the replay. ``values`` are the arguments' values, ``functions`` the functions in the
    order of their calls, ``calls`` their number. ``copied`` are keys of the start state in the words.
    """

    task: Task
    turns: tuple[ReplayedTurn, ...]
    values: tuple[SourcedValue, ...]
    functions: tuple[str, ...]
    calls: int
    failed: bool
    copied: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The user turns that the agent answers."""
        return self.task.turns[self.task.played :]

    @property
    def acting(self) -> int:
        """How many of these turns have calls."""
        return sum(map(bool, self.task.reference[self.task.played :]))

    @property
    def texts(self) -> tuple[SourcedValue, ...]:
        """The values that are text."""
        return tuple(one for one in self.values if isinstance(one.value, str))

    @property
    def start(self) -> str:
        """The start state, as text."""
        return json.dumps(self.task.initial_state, sort_keys=True)

    @property
    def passed(self) -> tuple[SourcedValue, ...]:
        """The values that one call of the agent's passes to another (dataflow)."""
        return tuple(
            one
            for one in self.values
            if one.producer is not None and one.producer[0] >= self.task.played and is_distinctive(one)
        )

    @property
    def graph(self) -> Graph:
        """The task's call graph."""
        pairs = {(one.producer, one.place, one.tool) for one in self.passed if one.producer is not None}
        named = ((self.turns[t].calls[c].name, tool) for (t, c), _, tool in pairs)
        return tuple(sorted(self.functions)), tuple(sorted(named))


def examine(environment: Environment, task: Task) -> Examined:
    """Replay the reference of ``task`` and return what it shows.

    Raises InputError for a task that the environment cannot open, EnvironmentFault when the environment itself failed.
    """
    played = replay(environment, task)
    hidden = Seen([*_keys(task.initial_state), *map(str, leaves(task.initial_state)), played.initial])
    if task.setup:
        for turn in replay(environment, setup_as_turns(task)).turns[: len(task.setup)]:
            hidden.read(turn.observations[0].text)
    calls = [call for turn in task.reference[task.played :] for call in turn]
    programs = program_parameters(environment.tools(sorted({call.name for call in calls})))
    said = Seen(task.turns[task.played :])
    return Examined(
        task=task,
        turns=played.turns,
        values=tuple(one for one in sources(environment, task, played.turns, hidden) if one.place[0] >= task.played),
        functions=tuple(name for call in calls for name in functions_of(call, programs.get(call.name))),
        calls=len(calls),
        failed=any(turn >= task.played for turn, _ in played.errors()),
        copied=tuple(key for key in dict.fromkeys(_keys(task.initial_state)) if is_identifier(key) and said.has(key)),
    )


def is_distinctive(one: SourcedValue) -> bool:
    """Return whether a value is hardly equal to another one by chance."""
    if one.documented:
        return False
    if isinstance(one.value, str):
        return len(one.value.strip()) >= LETTERS
    return isinstance(one.value, int | float) and not is_count(one.value)


def is_identifier(key: str) -> bool:
    """Return whether a key is neither a word nor a small number: it has a digit, an underscore or a point in it."""
    marked = any(letter.isdigit() or letter in "_." for letter in key)
    return marked and len(key) >= LETTERS


def is_quoted(value: str, text: str) -> bool:
    """Return whether ``text`` has the value in quotes, ignoring case, white space and a mark at the end."""
    return any(normal(value) in (normal(one), normal(one).strip(_TRIMMED)) for one in quotes(text)[0])


def _keys(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(item)


class Measure(NamedTuple):
    """A figure that is a sum over tasks by another one: ``part`` and ``whole`` of one task."""

    name: str
    part: Callable[[Examined], float]
    whole: Callable[[Examined], float]
    is_share: bool = True


def _of_task(name: str, holds: Callable[[Examined], bool]) -> Measure:
    return Measure(name, holds, lambda _: 1)


def _from(source: Source) -> Measure:
    return Measure(
        f"value from {source.replace('_', ' ')}",
        lambda one: sum(value.source is source for value in one.values),
        lambda one: len(one.values),
    )


MEASURES = (
    *map(_from, Source),
    Measure(
        "text verbatim in its turn",
        lambda one: sum(value.source is Source.WORDS for value in one.texts),
        lambda one: len(one.texts),
    ),
    Measure(
        "text in quotes",
        lambda one: sum(is_quoted(str(value.value), one.task.turns[value.place[0]]) for value in one.texts),
        lambda one: len(one.texts),
    ),
    Measure(
        "dataflow, of tasks of 2 calls or more",
        lambda one: one.calls > 1 and bool(one.passed),
        lambda one: one.calls > 1,
    ),
    _of_task("task with a copied identifier", lambda one: bool(one.copied)),
    _of_task("task with a failing call", lambda one: one.failed),
    _of_task("task with an abstention turn", lambda one: one.acting < len(one.words)),
    Measure("calls per turn", lambda one: one.calls, lambda one: one.acting, is_share=False),
    Measure(
        "words per turn",
        lambda one: sum(len(text.split()) for text in one.words),
        lambda one: len(one.words),
        is_share=False,
    ),
)
"""The measures with an interval, in the order of the table."""


class Figure(NamedTuple):
    """A figure with its interval (95 %), None where it has none; a share is in [0, 1]."""

    value: float
    interval: tuple[float, float] | None = None
    is_share: bool = True

    def __str__(self) -> str:
        """Return the figure as a cell of a table."""
        if not self.is_share:
            low_high = "" if self.interval is None else f" ({self.interval[0]:.2f} to {self.interval[1]:.2f})"
            return f"{self.value:.2f}{low_high}"
        low_high = "" if self.interval is None else f" ({self.interval[0]:.0%} to {self.interval[1]:.0%})"
        return f"{self.value:.1%}{low_high}"


def measure(tasks: Sequence[Examined], of: Measure) -> Figure | None:
    """Return a measure of a set of tasks; None where nothing of it is counted."""
    parts, wholes = (np.array([[float(count(one)) for one in tasks]]) for count in (of.part, of.whole))
    if not wholes.sum():
        return None
    clusters = numbered([one.start for one in tasks])
    if of.is_share:
        functions = numbered(rarest_functions([one.functions for one in tasks]))
        interval = shared_interval(parts, wholes, clusters, functions)
    else:
        interval = resampled_interval(parts[0], wholes[0], clusters)
    return Figure(float(parts.sum() / wholes.sum()), interval, of.is_share)


class Graphs(NamedTuple):
    """How different the call graphs of a set are; ``evenness`` is None for a single one."""

    distinct: float
    evenness: float | None
    top: float


def graphs(tasks: Sequence[Examined]) -> Graphs:
    """Return the figures of the call graphs of at least one task."""
    counts = Counter(one.graph for one in tasks)
    shares = [count / len(tasks) for count in counts.values()]
    entropy = -math.fsum(share * math.log(share) for share in shares)
    return Graphs(
        distinct=len(counts) / len(tasks),
        evenness=entropy / math.log(len(counts)) if len(counts) > 1 else None,
        top=sum(count for _, count in counts.most_common(TOP)) / len(tasks),
    )


FEATURES: dict[str, Callable[[Examined], Sequence[Hashable]]] = {
    "function": lambda one: one.functions,
    "call graph": lambda one: [one.graph],
    "start state": lambda one: [one.start],
    "source of a value": lambda one: [(value.tool, value.parameter, value.source) for value in one.values],
}
"""What of a task may be new."""


def novelty(tasks: Sequence[Examined], others: Sequence[Examined]) -> dict[str, Figure]:
    """Return the share of tasks with something that none of ``others`` has, for each of ``FEATURES``."""
    return {name: _new(name, features, tasks, others) for name, features in FEATURES.items()}


def _new(
    name: str, features: Callable[[Examined], Sequence[Hashable]], tasks: Sequence[Examined], others: Sequence[Examined]
) -> Figure:
    known = {feature for one in others for feature in features(one)}
    found = measure(tasks, _of_task(name, lambda one: not known.issuperset(features(one))))
    assert found is not None, "each task counts"
    return found


def quality_table(sets: Sequence[tuple[str, Sequence[Examined]]], others: Sequence[Examined] = ()) -> Table:
    """Return all figures of sets of at least one task, a column for each; of their novelty where there are ``others``.

    A cell is empty where its figure is not defined.
    """
    columns = [tasks for _, tasks in sets]
    rows: list[tuple[str, ...]] = [
        ("tasks", *(str(len(tasks)) for tasks in columns)),
        ("start states", *(str(len({one.start for one in tasks})) for tasks in columns)),
        ("functions", *(str(len({name for one in tasks for name in one.functions})) for tasks in columns)),
    ]
    for of in MEASURES:
        figures = [measure(tasks, of) for tasks in columns]
        rows.append((of.name, *("" if one is None else str(one) for one in figures)))
    different = [graphs(tasks) for tasks in columns]
    rows.append(("distinct call graphs by task", *(f"{one.distinct:.2f}" for one in different)))
    even = ("" if one.evenness is None else f"{one.evenness:.2f}" for one in different)
    rows.append(("entropy of call graphs, 1: even", *even))
    rows.append((f"tasks of the {TOP} most frequent graphs", *(f"{one.top:.1%}" for one in different)))
    if others:
        new = [novelty(tasks, others) for tasks in columns]
        rows += [(f"task with a new {name}", *(str(one[name]) for one in new)) for name in FEATURES]
    return ("", *(name for name, _ in sets)), rows
