"""What is ours beside the paper's steps: decorators of steps in ``graph.nodes``, which do nothing by default.

Under each decorator is the paper's step, with the choices that docs/papers.md lists. The decorators add:

- ``choice`` and ``contexts``: contexts from another source than the signals (``signals.contexts``,
  ``graph.unsignalled``), or with shuffled reflections (``signals.shuffled``);
- ``drafts``: longer tasks, composed of drafts and of tasks of D_t (``roles.exploration.compositions``);
- ``quota`` and ``shortfall``: as many tasks as an iteration admits (``tasks.admissions``, with which a study's
  ``match_admissions`` gives two arms equally many).

What else is ours is in the roles and the trainer: unguided exploration by rules (``agents.roles``), the expert step and
its rewording (``training.grpo.expert``).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps

from agents.settings import ExplorationSettings
from environments.base import Environment, TaskSpec
from environments.registry import benchmark_of
from environments.verification.verify import Refusal
from graph.assembly import RunServices
from graph.state import IterationState
from graph.unsignalled import contexts_without_signals
from memory.jsonl import derive_seed, record_id
from memory.records import Draft, DraftVerification, FailureContext, Interaction, Signal, Task
from memory.run_files import Evolution, Failure
from memory.tasks import TaskSettings, load_tasks, refused, tasks_at
from training.signals import Choice

Choose = Callable[[RunServices, int, Sequence[Signal]], Choice]
Reflected = tuple[Sequence[FailureContext], Sequence[Failure]]
Reflect = Callable[[RunServices, IterationState], Awaitable[Reflected]]
Abstract = Callable[[RunServices, FailureContext, Sequence[Interaction]], Awaitable[tuple[Draft, ...]]]
Verdicts = Sequence[DraftVerification]
Resolve = Callable[[RunServices, int, Sequence[Draft], Verdicts], list[DraftVerification]]
Conclude = Callable[[RunServices, int, Verdicts, Sequence[Task], Sequence[Failure]], Evolution]


def choice(choose: Choose) -> Choose:
    """Choose no signal where contexts come from another source; the round's signals are recorded all the same."""

    @wraps(choose)
    def chosen(services: RunServices, iteration: int, signals: Sequence[Signal]) -> Choice:
        followed = signals if services.settings.signals.contexts == "signals" else ()
        return choose(services, iteration, followed)

    return chosen


def contexts(reflect: Reflect) -> Reflect:
    """Take the contexts from another source, or shuffle their reflections, where ``signals`` asks for it.

    The decorated step raises InputError where a source has nothing to draw from.
    """

    @wraps(reflect)
    async def reflected(services: RunServices, state: IterationState) -> Reflected:
        settings = services.settings.signals
        if settings.contexts != "signals":
            return await asyncio.to_thread(contexts_without_signals, services, state.iteration), ()
        found, failures = await reflect(services, state)
        return (shuffled(found) if settings.shuffled else found), failures

    return reflected


def drafts(abstract: Abstract) -> Abstract:
    """Add drafts composed of the proposed ones and of tasks of D_t (``compose``); none in D_0."""

    @wraps(abstract)
    async def abstracted(
        services: RunServices, context: FailureContext, interactions: Sequence[Interaction]
    ) -> tuple[Draft, ...]:
        proposed = await abstract(services, context, interactions)
        settings, iteration = services.settings.roles.exploration, context.iteration
        if not settings.compositions or iteration is None:
            return proposed
        seed = derive_seed(services.settings.seed, iteration, "compose", context.id)
        present = tasks_at(await asyncio.to_thread(load_tasks, services.run), iteration)
        composed = await asyncio.to_thread(compose, proposed, present, settings, services.environment, seed)
        return (*proposed, *composed)

    return abstracted


def quota(resolve: Resolve) -> Resolve:
    """Refuse accepted drafts beyond the iteration's quota (``within_quota``), where there is one."""

    @wraps(resolve)
    def resolved(
        services: RunServices, iteration: int, drafts: Sequence[Draft], verdicts: Verdicts
    ) -> list[DraftVerification]:
        verifications = resolve(services, iteration, drafts, verdicts)
        number = quota_of(services.settings.tasks, iteration)
        if number is None:
            return verifications
        return within_quota(verifications, number, derive_seed(services.settings.seed, iteration, "quota"))

    return resolved


def shortfall(conclude: Conclude) -> Conclude:
    """Record how many tasks the iteration's quota lacks, where there is one."""

    @wraps(conclude)
    def concluded(
        services: RunServices, iteration: int, verdicts: Verdicts, tasks: Sequence[Task], failures: Sequence[Failure]
    ) -> Evolution:
        evolution = conclude(services, iteration, verdicts, tasks, failures)
        number = quota_of(services.settings.tasks, iteration)
        lacks = None if number is None else number - len(tasks)
        return evolution.model_copy(update={"shortfall": lacks})

    return concluded


_REFLECTED = (
    *("cause", "tool", "error_class", "label", "how", "why", "summary", "instability_pattern", "focus_pattern"),
    *("exploration_objectives", "do_not_repeat", "facts", "explore"),
)
"""What a reflector says of a failure; the other fields of a context say where it is explored."""


def shuffled(contexts: Sequence[FailureContext]) -> tuple[FailureContext, ...]:
    """Return the contexts, each with the reflection of another one with the same tools: a control (ours).

    It is of another task unless one task has more than half of them. A context whose tools no other one has keeps its
    own. The order of ``contexts`` does not matter.
    """
    groups: defaultdict[tuple[str, ...], list[FailureContext]] = defaultdict(list)
    for context in sorted(contexts, key=lambda one: (one.task_id, one.id)):
        groups[context.tools].append(context)
    changed = []
    for group in groups.values():
        # Sorted by task and moved on in a circle by the largest task, no context meets its own.
        largest = max(Counter(one.task_id for one in group).values())
        step = largest if largest < len(group) else 1
        for place, context in enumerate(group):
            other = group[(place + step) % len(group)]
            changed.append(context.model_copy(update={name: getattr(other, name) for name in _REFLECTED}))
    return tuple(sorted(changed, key=lambda context: context.id))


_TRIES = 16
"""Pairs that are drawn for each composition that is asked for; most do not fit each other."""

_JOINS = (", then ", ", after that ", " and ")
_STOPS = " .;!"


def compose(
    drafts: Sequence[Draft], tasks: Sequence[Task], settings: ExplorationSettings, environment: Environment, seed: int
) -> tuple[Draft, ...]:
    """Return up to ``settings.compositions`` drafts, each of one of ``drafts`` and one of ``tasks``.

    Only those of one user turn are joined, ``settings.two_turns`` is the share that keeps two, and none is longer than
    ``settings.max_reference_calls``. The draft's start state counts where both have one (``Benchmark.join``). What the
    second reference needs may be gone after the first: verification finds out. Equal arguments give equal drafts.
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


def quota_of(settings: TaskSettings, iteration: int) -> int | None:
    """Return how many tasks ``iteration`` admits, None without a quota."""
    return None if settings.admissions is None else settings.admissions[iteration]


def within_quota(verifications: Sequence[DraftVerification], quota: int, seed: int) -> list[DraftVerification]:
    """Return the results, refusing accepted drafts beyond ``quota``; ``seed`` draws those that stay.

    The draw does not depend on the order of ``verifications``.
    """
    accepted = sorted(verification.draft_id for verification in verifications if verification.accepted)
    kept = set(random.Random(seed).sample(accepted, min(quota, len(accepted))))
    detail = f"{len(accepted)} drafts were accepted, this iteration admits {quota}."
    return [
        refused(one, Refusal.OVER_QUOTA, detail) if one.accepted and one.draft_id not in kept else one
        for one in verifications
    ]
