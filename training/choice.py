"""Chooses the signals that are reflected on: all of them, as in the paper, or a limited number with a share per kind.

In CoEvolve (arXiv 2604.15840, section 3.2) every marked trajectory is reflected on: ``contexts_per_iteration: null``.
A limit, with one context per task and kind, and everything about how it is shared out, are ours.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping

from environments.base import Record
from memory.jsonl import derive_seed
from memory.records import Signal, SignalKind
from training.signal_settings import SignalSettings

__all__ = ["Choice", "choose"]

SHARES = {SignalKind.FORGETTING: 0.3, SignalKind.BOUNDARY: 0.5, SignalKind.RARE: 0.2}
"""The share of the contexts of each kind, scaled to sum to 1 where not all kinds are followed (ours)."""


class Choice(Record):
    """The signals that are reflected on, sorted by id, and counts of the others by kind.

    ``repeated``: further signals of a task and kind that has one already. ``left_out``: beyond the limit. Signals of a
    kind that the settings do not list are in none of them.
    """

    chosen: tuple[Signal, ...]
    repeated: dict[SignalKind, int]
    left_out: dict[SignalKind, int]


def choose(signals: Iterable[Signal], settings: SignalSettings, seed: int) -> Choice:
    """Choose the signals to reflect on, among those of the kinds that the settings list.

    Without a limit, all of them: each marked trajectory gets a context of its own for every kind that it carries.

    With a limit (ours), one per (task, kind), at most ``contexts_per_iteration``, a share per kind. Of a task's signals
    of one kind, failed evidence goes before successful evidence and a rarer pattern before a more frequent one;
    ``seed`` draws among the rest, and among tasks. The part of its share that a kind cannot use goes to the others.
    """
    ordered = sorted((signal for signal in signals if signal.kind in settings.kinds), key=lambda signal: signal.id)
    limit = settings.contexts_per_iteration
    if limit is None:
        nothing = dict.fromkeys(SignalKind, 0)
        return Choice(chosen=tuple(ordered), repeated=nothing, left_out=nothing)
    best: dict[tuple[SignalKind, str], Signal] = {}
    for signal in sorted(ordered, key=lambda signal: _preference(signal, seed)):
        best.setdefault((signal.kind, signal.task_id), signal)
    candidates = {kind: [s for s in ordered if best.get((kind, s.task_id)) is s] for kind in SignalKind}
    repeated = {kind: sum(s.kind is kind for s in ordered) - len(of_kind) for kind, of_kind in candidates.items()}
    share = _places(_shares(settings.kinds), {kind: len(of_kind) for kind, of_kind in candidates.items()}, limit)
    chosen = [
        signal
        for kind, of_kind in candidates.items()
        for signal in random.Random(derive_seed(seed, kind)).sample(of_kind, share[kind])
    ]
    return Choice(
        chosen=tuple(sorted(chosen, key=lambda signal: signal.id)),
        repeated=repeated,
        left_out={kind: len(of_kind) - share[kind] for kind, of_kind in candidates.items()},
    )


def _shares(kinds: Collection[SignalKind]) -> Mapping[SignalKind, float]:
    """Return the share of each of ``kinds``, which sum to 1."""
    total = sum(SHARES[kind] for kind in kinds)
    return {kind: SHARES[kind] / total for kind in SignalKind if kind in kinds}


def _preference(signal: Signal, seed: int) -> tuple[bool, int, int]:
    return signal.successful_evidence, signal.count or 0, derive_seed(seed, signal.id)


def _places(
    shares: Mapping[SignalKind, float], available: Mapping[SignalKind, int], budget: int
) -> dict[SignalKind, int]:
    """Split the budget, one by one, to the kind that is furthest below its share and still has candidates."""
    taken = dict.fromkeys(available, 0)
    for _ in range(budget):
        open_kinds = [kind for kind in available if shares.get(kind, 0.0) > 0 and taken[kind] < available[kind]]
        if not open_kinds:
            break
        kind = max(open_kinds, key=lambda kind: shares[kind] * budget - taken[kind])
        taken[kind] += 1
    return taken
