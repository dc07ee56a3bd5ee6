"""What SEAL saw and showed in an arm of a study: labels, errors and what became of them, guidelines, and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from environments.base import Record
from environments.learning_interface.profile import ErrorStatistics, TurnLabel
from evaluation.arm_records import ArmHeader

HEAD = (
    "arm",
    "turns by label",
    "errors",
    "recovered",
    "by seed",
    "in a success",
    "of these with a hint",
    "recovered",
    "in a success",
    "guidelines, steps shown (times mastered)",
    "diagnosis and weights, % of the rounds",
)
"""Of the rows of ``seal_rows``.

Hints answer some kinds of errors and not others, so that errors with and without one do not compare: arms do.
"""


class SealFacts(Record):
    """All rounds of an arm's seeds together (see ``environments.learning_interface.profile.SealFigures``).

    ``recovered``: by seed, the share of all errors that were recovered from; None where there was no error.
    ``cost_share``: SEAL's share of the rounds' wall-clock; None where no time was measured.
    """

    steps: int
    labels: dict[TurnLabel, int]
    errors: ErrorStatistics
    recovered: dict[int, float | None]
    guidelines: dict[TurnLabel, int]
    retired: dict[TurnLabel, int]
    cost_share: float | None


def seal_facts(headers: Sequence[ArmHeader]) -> SealFacts | None:
    """The facts from the headers of an arm; None where SEAL was off."""
    iterations = [one for header in headers for one in header.iterations if one.seal is not None]
    found = [one.seal for one in iterations if one.seal is not None]
    if not found:
        return None
    by_seed = {
        header.seed: ErrorStatistics.total(one.seal.errors for one in header.iterations if one.seal is not None)
        for header in headers
    }
    seconds: Counter[str] = Counter()
    for one in iterations:
        seconds.update({name: spent for name, spent in one.measured.items() if name.startswith("round ")})
    whole = sum(seconds.values())
    return SealFacts(
        steps=sum(one.steps for one in found),
        labels=_sum([one.labels for one in found]),
        errors=ErrorStatistics.total(by_seed.values()),
        recovered={seed: one.recovered / one.errors if one.errors else None for seed, one in by_seed.items()},
        guidelines=_sum([one.guidelines for one in found]),
        retired=_sum([one.retired for one in found]),
        cost_share=seconds["round seal"] / whole if whole else None,
    )


def seal_rows(facts: Mapping[str, SealFacts | None]) -> Iterator[tuple[str, ...]]:
    """A row of the report for each arm with SEAL. Shares are in percent; empty where there is nothing to share."""
    for name, one in facts.items():
        if one is None:
            continue
        errors = one.errors
        turns = sum(one.labels.values())
        shown = (f"{label} {n} of {one.steps} ({one.retired.get(label, 0)})" for label, n in one.guidelines.items())
        yield (
            name,
            ", ".join(f"{label} {_percent(n, turns)} %" for label, n in one.labels.items()),
            f"{errors.errors:,}",
            _percent(errors.recovered, errors.errors),
            ", ".join(f"{seed}: {share * 100:.1f}" for seed, share in one.recovered.items() if share is not None),
            _percent(errors.succeeded, errors.errors),
            f"{errors.hinted:,}",
            _percent(errors.hinted_recovered, errors.hinted),
            _percent(errors.hinted_succeeded, errors.hinted),
            ", ".join(shown) or "none",
            "" if one.cost_share is None else f"{one.cost_share * 100:.2f}",
        )


def _sum(parts: Sequence[Mapping[TurnLabel, int]]) -> dict[TurnLabel, int]:
    counted: Counter[TurnLabel] = Counter()
    for part in parts:
        counted.update(part)
    return {label: counted[label] for label in TurnLabel if counted[label]}


def _percent(part: int, of: int) -> str:
    return f"{part / of * 100:.1f}" if of else ""
