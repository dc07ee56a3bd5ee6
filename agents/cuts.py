"""Cuts recorded runs into reference paths: which calls are the task, and which earlier ones become its setup.

A cut is a proposal of calls that really ran, in their order. Its setup is the context's setup and those earlier calls
of the run without which the cut would answer differently.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from agents.live import context_task
from environments.base import Environment, ObservationStatus, ToolCall
from memory.records import FailureContext, Interaction

_LENGTHS = (1, 1, 2, 2, 3)


class Cut(NamedTuple):
    """Interactions that become the reference, and calls that run before it (the context's own setup left out)."""

    setup: tuple[ToolCall, ...]
    reference: tuple[Interaction, ...]

    def names(self) -> tuple[str, ...]:
        """The tools of the reference in order."""
        return tuple(call_of(interaction).name for interaction in self.reference)

    def solved_blindly(self) -> bool:
        """Whether calling tools without arguments does it: one such call, or reads alone. Verification refuses it."""
        if any(call_of(interaction).arguments for interaction in self.reference):
            return False
        return len(self.reference) == 1 or not any(interaction.changed for interaction in self.reference)


def call_of(interaction: Interaction) -> ToolCall:
    """The call of an interaction that is known to be one."""
    assert isinstance(interaction.action, ToolCall)
    return interaction.action


def successful_runs(interactions: Sequence[Interaction]) -> tuple[tuple[Interaction, ...], ...]:
    """The successful calls of each run in order; runs without any are left out."""
    runs: dict[int, list[Interaction]] = {}
    for interaction in sorted(interactions, key=lambda i: (i.run, i.position)):
        if isinstance(interaction.action, ToolCall) and interaction.observation.status is ObservationStatus.OK:
            runs.setdefault(interaction.run, []).append(interaction)
    return tuple(tuple(run) for run in runs.values())


def partition(run: Sequence[Interaction], longest: int, rng: random.Random) -> tuple[Cut, ...]:
    """The run cut into pieces of 1 to ``longest`` calls, one after the other; earlier changes are each one's setup."""
    cuts, start = [], 0
    lengths = [length for length in _LENGTHS if length <= longest]
    while start < len(run):
        piece = tuple(run[start : start + rng.choice(lengths)])
        cuts.append(Cut(_changes(run[:start]), piece))
        start += len(piece)
    return tuple(cuts)


def around(
    run: Sequence[Interaction], place: int, longest: int, context: FailureContext, environment: Environment
) -> tuple[Cut, ...]:
    """Cuts that hold the call at ``place``: alone, with calls it needs or has values from, and with neighbours.

    What a call needs is found by leaving earlier calls out, one after the other, while its answer stays the same.
    """
    target = run[place]
    needed = _needed(run[:place], target, context, environment)
    cuts = []
    if needed is not None:
        for count in range(min(len(needed), longest - 1) + 1):
            kept = len(needed) - count
            cuts.append(Cut(_calls(needed[:kept]), (*needed[kept:], target)))
        sources = [i for i in run[:place] if i not in needed and _answers(i, call_of(target))][-(longest - 1) :]
        if sources and longest > 1:
            cuts.append(Cut(_calls(needed), (*sources, target)))
    for start in range(max(0, place - longest + 1), place + 1):
        for end in range(place + 1, min(len(run), start + longest) + 1):
            piece = tuple(run[start:end])
            cuts.append(Cut(setup_for(run[:start], piece, context, environment), piece))
    distinct: dict[tuple[str, ...], Cut] = {}
    for cut in cuts:
        distinct.setdefault(tuple(interaction.id for interaction in cut.reference), cut)
    return tuple(distinct.values())


def setup_for(
    before: Sequence[Interaction], piece: Sequence[Interaction], context: FailureContext, environment: Environment
) -> tuple[ToolCall, ...]:
    """Of the successful calls ``before`` a piece those that become its setup.

    What changed the state, or all of them where the piece answers differently without (a folder that was entered).
    """
    changes = _changes(before)
    if len(changes) == len(before) or _same_answers(changes, piece, context, environment):
        return changes
    return _calls(before)


def dependent(
    pieces: Sequence[Interaction], setup: Sequence[ToolCall], context: FailureContext, environment: Environment
) -> bool:
    """Whether a later call of a reference takes a text value from an earlier one's answer, or answers otherwise alone.

    ``setup`` is what ran before the reference, the context's own setup left out.
    """
    for place, later in enumerate(pieces):
        if any(_answers(earlier, call_of(later)) for earlier in pieces[:place]):
            return True
        if place > 0 and not _same_answers(setup, (later,), context, environment):
            return True
    return False


def _needed(
    before: Sequence[Interaction], target: Interaction, context: FailureContext, environment: Environment
) -> tuple[Interaction, ...] | None:
    """The fewest earlier calls after which ``target`` answers as it did, or None if it does not even after all."""
    kept = list(before)
    if not _same_answers(_calls(kept), (target,), context, environment):
        return None
    for candidate in before:
        rest = [interaction for interaction in kept if interaction is not candidate]
        if _same_answers(_calls(rest), (target,), context, environment):
            kept = rest
    return tuple(kept)


def _same_answers(
    setup: Sequence[ToolCall], piece: Sequence[Interaction], context: FailureContext, environment: Environment
) -> bool:
    task = context_task(context).model_copy(update={"setup": (*context.setup, *setup)})
    with closing(environment.open(task)) as episode:
        episode.start()
        return all(episode.step(call_of(i)).text == i.observation.text for i in piece)


def _answers(source: Interaction, call: ToolCall) -> bool:
    """Whether a text argument of ``call`` stands in the answer of ``source``."""
    texts = [value for value in call.arguments.values() if isinstance(value, str) and len(value) > 1]
    return any(f'"{text}"' in source.observation.text for text in texts)


def _changes(interactions: Sequence[Interaction]) -> tuple[ToolCall, ...]:
    return tuple(call_of(interaction) for interaction in interactions if interaction.changed)


def _calls(interactions: Sequence[Interaction]) -> tuple[ToolCall, ...]:
    return tuple(call_of(interaction) for interaction in interactions)
