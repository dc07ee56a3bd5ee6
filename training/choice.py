"""Chooses the signals that are reflected on: all of them, as in the paper, or a limited number with a share per kind.

In CoEvolve (arXiv 2604.15840, section 3.2) every marked trajectory is reflected on, with ``contexts_per_iteration:
null`` and ``context_per: trajectory``. One context per task, a limit, and everything about how it is shared out, are
ours.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from environments.base import Record
from memory.jsonl import derive_seed
from memory.records import Signal, SignalKind
from training.signal_settings import SignalSettings

__all__ = ["Choice", "choose", "places"]

NOVELTY_CANDIDATES = 3
"""Signals that are reflected on for each context that is explored, with ``novelty`` (ours)."""


class Choice(Record):
    """The signals that are reflected on, sorted by id, and counts of the others by kind.

    ``repeated``: further signals of a task and kind that has one already. ``left_out``: beyond the limit. Signals of a
    kind that the settings do not list are in none of them. Both count the kinds that a round is read for.
    """

    chosen: tuple[Signal, ...]
    repeated: dict[SignalKind, int]
    left_out: dict[SignalKind, int]


def choose(signals: Iterable[Signal], settings: SignalSettings, seed: int) -> Choice:
    """Choose the signals to reflect on, among those of the kinds that the settings list.

    Without a limit, all of them: each marked trajectory gets a context of its own for every kind that it carries. With
    ``context_per: task`` (ours), one per (task, kind), chosen as below.

    With a limit (ours), one per (task, kind), at most ``contexts_per_iteration`` less those for coverage
    (``uncovered``), a share per kind. Of a task's signals of one kind, failed evidence goes before successful evidence
    and a rarer pattern before a more frequent one; ``seed`` draws among the rest, and among tasks. The part of its
    share that a kind cannot use goes to the others; a kind with share 0 gets nothing. Of unsolved, every pattern is
    drawn once before one is drawn twice, and functions without a success go before mere sequences without one. With
    ``experimental.novelty`` there are ``NOVELTY_CANDIDATES`` times as many: candidates, among which their contexts
    decide.
    """
    ordered = sorted((signal for signal in signals if signal.kind in settings.kinds), key=lambda signal: signal.id)
    limit = settings.for_signals
    nothing = dict.fromkeys(settings.found, 0)
    if limit is None and settings.context_per == "trajectory":
        return Choice(chosen=tuple(ordered), repeated=nothing, left_out=nothing)
    best: dict[tuple[SignalKind, str], Signal] = {}
    for signal in sorted(ordered, key=lambda signal: _preference(signal, seed)):
        best.setdefault((signal.kind, signal.task_id), signal)
    candidates = {kind: [s for s in ordered if best.get((kind, s.task_id)) is s] for kind in settings.found}
    repeated = {kind: sum(s.kind is kind for s in ordered) - len(of_kind) for kind, of_kind in candidates.items()}
    if limit is None:
        every = sorted(best.values(), key=lambda signal: signal.id)
        return Choice(chosen=tuple(every), repeated=repeated, left_out=nothing)
    budget = limit * (NOVELTY_CANDIDATES if settings.experimental.novelty else 1)
    share = places(settings.shares(), {kind: len(of_kind) for kind, of_kind in candidates.items()}, budget)
    chosen = [
        signal
        for kind, of_kind in candidates.items()
        for signal in _drawn(of_kind, share[kind], random.Random(derive_seed(seed, kind)))
    ]
    return Choice(
        chosen=tuple(sorted(chosen, key=lambda signal: signal.id)),
        repeated=repeated,
        left_out={kind: len(of_kind) - share[kind] for kind, of_kind in candidates.items()},
    )


def _drawn(candidates: Sequence[Signal], count: int, rng: random.Random) -> Sequence[Signal]:
    """Draw ``count`` of the candidates, all of one kind; of unsolved as many different patterns as there are."""
    if not candidates or candidates[0].kind is not SignalKind.UNSOLVED:
        return rng.sample(candidates, count)
    before: Counter[tuple[str, ...]] = Counter()
    turns: dict[str, tuple[int, bool]] = {}
    shuffled = rng.sample(candidates, len(candidates))
    for signal in shuffled:
        turns[signal.id] = (before[signal.pattern], not signal.count)
        before[signal.pattern] += 1
    return sorted(shuffled, key=lambda signal: turns[signal.id])[:count]


def _preference(signal: Signal, seed: int) -> tuple[bool, int, int]:
    return signal.successful_evidence, signal.count or 0, derive_seed(seed, signal.id)


def places(
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
