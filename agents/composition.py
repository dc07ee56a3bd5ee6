"""Composes longer drafts from verified tasks: the references of two, one after the other, from one start.

An explorer seldom finds long paths that make sense, and a policy that has learnt two calls apart still fails at both in
one task. Here a draft of a context is joined with a task of the set, in either order, in one user turn or in two. The
join is a draft like every other: what the second reference needs may be gone after the first, which verification
finds out. Ours; the paper has no such step.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from agents.settings import ExplorationSettings
from environments.base import Environment, TaskSpec
from environments.registry import benchmark_of
from memory.jsonl import record_id
from memory.records import Draft, Task

_TRIES = 16
"""Pairs that are drawn for each composition that is asked for; most do not fit each other."""

_JOINS = (", then ", ", after that ", " and ")
_STOPS = " .;!"


def compose(
    drafts: Sequence[Draft], tasks: Sequence[Task], settings: ExplorationSettings, environment: Environment, seed: int
) -> tuple[Draft, ...]:
    """Return up to ``settings.compositions`` drafts, each of one of ``drafts`` and one of ``tasks``.

    ``drafts`` are those of one context. Only those of one user turn are joined, ``settings.two_turns`` is the share
    that keeps two, and none is longer than ``settings.max_reference_calls``. The draft's start state counts where both
    have one (``Benchmark.join``). Their texts stay as they are, joined. The parents of a composition are the draft and
    the task. Equal arguments give equal drafts.
    """
    first = [draft for draft in drafts if _plain(draft)]
    mates = [task for task in tasks if _plain(task)]
    rng, join = random.Random(seed), benchmark_of(environment).join
    composed: list[Draft] = []
    paired: set[tuple[str, str]] = set()
    for _ in range(_TRIES * settings.compositions if first and mates else 0):
        if len(composed) == settings.compositions:
            break
        draft, mate = rng.choice(first), rng.choice(mates)
        calls = len(draft.reference[0]) + len(mate.reference[0])
        if (draft.id, mate.id) in paired or calls > settings.max_reference_calls:
            continue
        start = join(draft, mate)
        if start is None:
            continue
        paired.add((draft.id, mate.id))
        parts: tuple[TaskSpec, TaskSpec] = (draft, mate) if rng.random() < 0.5 else (mate, draft)
        turns = tuple(one.turns[0] for one in parts)
        reference = tuple(one.reference[0] for one in parts)
        if rng.random() >= settings.two_turns:
            turns, reference = (_joined(turns, rng),), ((*reference[0], *reference[1]),)
        composed.append(
            draft.model_copy(
                update={
                    **{name: getattr(start, name) for name in ("classes", "initial_state", "setup", "tools")},
                    "turns": turns,
                    "reference": reference,
                    "id": record_id("draft", draft.context_id, "composed", len(composed)),
                    "parents": (draft.id, mate.id),
                    "difficulty": None,
                }
            )
        )
    return tuple(composed)


def _plain(task: TaskSpec) -> bool:
    return len(task.turns) == 1 and not task.withheld and not task.long_context


def _joined(turns: tuple[str, ...], rng: random.Random) -> str:
    first, second = turns
    return first.rstrip(_STOPS) + rng.choice(_JOINS) + second.lstrip()
