"""Cut an explorer's run into the calls of user turns that a language model words, one draft after another.

A cut is one purpose of a run, one call of it, or a call with the earlier ones whose answers hold its values, reduced by
replays to the calls that it needs. A value that an earlier answer gives is hidden from who words them
(``environments.turn_lines.FOUND``). All of this is ours.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from agents.evidence import call_of, context_task, successful_runs
from agents.said import hidden_values, shown_calls
from agents.scripted.abstractor import Cut, with_setup
from agents.scripted.links import links
from agents.settings import ExplorationSettings
from agents.spending import RoleRefused
from environments.base import Environment, TaskSpec, ToolCall
from environments.turn_lines import FOUND
from environments.verification.replay import Replay, reduce, replay
from memory.jsonl import record_id
from memory.records import Draft, FailureContext, Interaction, Measured, Writing

_PASSED_ON = 0.7  # probability that a cut comes first in which an answer's value is used
_LONG = 0.4  # probability that a cut comes before shorter ones


class Unworded(NamedTuple):
    """A task of one user turn without words, its calls as who words them sees them, and the cut that it comes from."""

    task: TaskSpec
    shown: tuple[ToolCall, ...]
    cut: Cut

    def aims(self) -> tuple[str, ...]:
        """Return what the explorer said that the calls were for, each once."""
        return tuple(dict.fromkeys(one.aim for one in self.cut.reference if one.aim))


class Drafting:
    """The drafts of one context: calls come out one cut after another, and words go in."""

    def __init__(
        self,
        context: FailureContext,
        interactions: Sequence[Interaction],
        environment: Environment,
        settings: ExplorationSettings,
        rng: random.Random,
    ) -> None:
        self._context, self._environment, self._settings = context, environment, settings
        self._wanted = [name for name in (context.tool, *context.explore) if name]
        self._cuts = _drawn(_cuts(interactions, settings.max_reference_calls, context, environment), rng)
        self._references: list[tuple[tuple[ToolCall, ...], ...]] = []
        self._names: Counter[str] = Counter()
        self._drafts: list[Draft] = []

    @property
    def count(self) -> int:
        """The drafts so far."""
        return len(self._drafts)

    def next(self) -> Unworded | None:
        """Return what is to be worded next; None with as many drafts as are wanted, and after all cuts.

        Nobody asks for the same call twice at once, for what the same calls undo, or with one value for two things.
        """
        if self.count == self._settings.drafts_per_context:
            return None
        while self._cuts:
            cut = min(self._cuts, key=self._order)
            self._cuts.remove(cut)
            setup = (*self._context.setup, *cut.setup)
            reference = (tuple(map(call_of, cut.reference)),)
            task = context_task(self._context).model_copy(update={"setup": setup, "reference": reference})
            reduced = reduce(self._environment, task)
            if reduced is None or reduced.reference in self._references:
                continue
            (calls,) = reduced.reference
            if len(calls) < self._settings.min_reference_calls or any(calls.count(one) > 1 for one in calls):
                continue
            if any(map(_gives_one_twice, calls)):
                continue
            played = replay(self._environment, reduced)
            if _undoes(played):
                continue
            self._references.append(reduced.reference)
            self._names.update({call.name for call in calls})
            return Unworded(reduced, shown_calls(played), cut)
        return None

    def _order(self, cut: Cut) -> tuple[int, float]:
        """Return what comes first: the context's tool, then tools worth reaching; then what is new to the context."""
        names = set(cut.names())
        wanted = (place for place, name in enumerate(self._wanted) if name in names)
        return next(wanted, len(self._wanted)), sum(self._names[name] for name in names) / len(names)

    def add(self, path: Unworded, words: str, writing: Writing, measured: Measured | None = None) -> None:
        """Make a draft of ``path``, in ``words``, that cost ``measured``."""
        kept = path.task.reference[0]
        self._drafts.append(
            Draft(
                **path.task.model_copy(update={"turns": (words,)}).model_dump(),
                id=record_id("draft", self._context.id, len(self._drafts)),
                context_id=self._context.id,
                parents=tuple(one.id for one in path.cut.reference if call_of(one) in kept),
                writing=writing,
                measured=measured or Measured(),
            )
        )

    def drafts(self) -> tuple[Draft, ...]:
        """Return the drafts. Raises RoleRefused where calls were asked for and none of them could be worded."""
        if self._references and not self._drafts:
            tried = len(self._references)
            raise RoleRefused(f"no wording of {tried} paths of context {self._context.id} says what the calls take")
        return tuple(self._drafts)


def _gives_one_twice(call: ToolCall) -> bool:
    """Return whether one value is in two arguments, as in none of 167 turns of people: rules fill what they see in."""
    values = [str(one) for one in call.arguments.values() if isinstance(one, str | float) and one != ""]
    return len(set(values)) < len(values)


def _undoes(played: Replay) -> bool:
    """Return whether a state comes back that calls had left."""
    states = [
        state for state, _ in groupby((played.initial, *(state for turn in played.turns for state in turn.states)))
    ]
    return len(set(states)) < len(states)


def _cuts(
    interactions: Sequence[Interaction], longest: int, context: FailureContext, environment: Environment
) -> Iterator[Cut]:
    """Yield each purpose of a run whole, each call alone, and each call with those that it goes with.

    These are the earlier calls that answer what a user need not say, or the last one that it needs or that is about the
    same thing.
    """
    for run in successful_runs(interactions):
        linked = links(run, context, environment)
        purposes = groupby(range(len(run)), key=lambda place: run[place].purpose)
        pieces = [[*places][-longest:] for purpose, places in purposes if purpose]  # rules tell none
        for place, kin in enumerate(linked):
            pieces.append([place])
            sources = sorted(earlier for earlier, takes in kin.items() if takes)[1 - longest :]
            if sources and longest > 1 and _is_looked_up(run, [*sources, place]):
                pieces.append([*sources, place])
            if (others := [earlier for earlier, takes in kin.items() if not takes]) and longest > 1:
                pieces.append([max(others), place])
        yield from (with_setup(run, piece, context, environment) for piece in pieces)


def _is_looked_up(run: Sequence[Interaction], places: Sequence[int]) -> bool:
    """Return whether the last of the calls takes a value that the user need not say."""
    shown = hidden_values([call_of(run[place]) for place in places], [run[place].observation.text for place in places])
    return FOUND in shown[-1].arguments.values()


def _drawn(cuts: Iterator[Cut], rng: random.Random) -> list[Cut]:
    """Return the cuts in a drawn order, which often begins with those that pass an answer's value on."""

    def order(cut: Cut) -> tuple[bool, float, float]:
        first = cut.passes_on() and rng.random() < _PASSED_ON
        return not first, -len(cut.reference) * (rng.random() < _LONG), rng.random()

    distinct = {tuple(one.id for one in cut.reference): cut for cut in cuts if not cut.solved_blindly()}
    return sorted(distinct.values(), key=order)
