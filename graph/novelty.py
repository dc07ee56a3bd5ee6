"""Chooses among reflected contexts those whose place was explored least: novelty of tool and error class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from memory.ids import derive_seed
from memory.records import FailureContext, SignalKind
from training.settings import SignalSettings
from training.signals import places

Place = tuple[str, str]


def most_novel(
    candidates: Sequence[FailureContext], explored: Iterable[FailureContext], settings: SignalSettings, seed: int
) -> tuple[FailureContext, ...]:
    """At most ``contexts_per_iteration`` of the ``candidates``, sorted by id, a share a kind (our choice).

    One after the other, the candidate whose (tool, error class) has the fewest of ``explored`` and of those chosen
    already; among equals by ``seed``. Contexts without a kind are never chosen. The order of the arguments does not
    matter.
    """
    by_kind = {kind: [one for one in candidates if one.kind is kind] for kind in SignalKind}
    share = places(
        settings.shares(), {kind: len(of_kind) for kind, of_kind in by_kind.items()}, settings.contexts_per_iteration
    )
    seen: Counter[Place] = Counter(_place(context) for context in explored)
    chosen: list[FailureContext] = []
    for kind, of_kind in by_kind.items():
        left = sorted(of_kind, key=lambda context: derive_seed(seed, context.id))
        for _ in range(share[kind]):
            best = min(left, key=lambda context: seen[_place(context)])
            left.remove(best)
            seen[_place(best)] += 1
            chosen.append(best)
    return tuple(sorted(chosen, key=lambda context: context.id))


def _place(context: FailureContext) -> Place:
    return context.tool, context.error_class
