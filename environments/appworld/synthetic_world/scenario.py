"""Define a scenario of a synthetic world: variants of one instruction, its solution and its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from environments.appworld.synthetic_world.plan import Person, WorldPlan

VARIANTS = 3


@dataclass(frozen=True)
class Variant:
    """One task: its person, its instruction, its values and its answer (None: no answer is expected)."""

    person: int
    instruction: str
    values: dict[str, Any]
    answer: str | int | float | None = None


@dataclass(frozen=True)
class Scenario:
    """Three tasks that differ in values only.

    ``solution`` is the body of the reference code; it can use ``login(app)`` and ``pages(api, **arguments)``, and has
    ``values`` as ``wanted``. ``checks`` is the body of the package's ``evaluate``, where ``wanted`` are
    the same values; it comes after the check of the answer.
    """

    id: str
    split: str
    difficulty: int
    apps: tuple[str, ...]
    variants: Callable[[WorldPlan], list[Variant]]
    solution: str
    checks: str


def people_from(plan: WorldPlan, first: int) -> Iterator[tuple[int, Person]]:
    """Yield every person once, beginning with ``first``, so that scenarios do not all use the same three people."""
    count = len(plan.people)
    for offset in range(count):
        yield (first + offset) % count, plan.people[(first + offset) % count]


def first_variants(found: Iterator[Variant]) -> list[Variant]:
    """Return the first three variants. Raises ValueError when a plan gives fewer."""
    variants = [variant for variant, _ in zip(found, range(VARIANTS), strict=False)]
    if len(variants) < VARIANTS:
        raise ValueError("this seed's plan has too little for a scenario: use another seed")
    return variants
