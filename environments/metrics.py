"""Define the type of a benchmark's metrics: functions from the attempts at a group of tasks to one number.

A ``Ratio`` is a metric that is a quotient of two sums over tasks. What is computed of it for tasks has an interval
(``evaluation.outcomes``); a plain function has none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

SUCCESS = "success"
"""The metric that every score has."""

Made: TypeAlias = tuple[str, str]
"""A call: the function's name, and the hash of its arguments as canonical JSON (30 and 30.0 are one value)."""


class Attempted(NamedTuple):
    """One completed attempt at one task.

    ``id`` is the task's: attempts at one task are samples of it. ``group`` is the unit that the benchmark scores as a
    whole, such as the scenario that the task is a variant of; None for a task on its own. ``success`` is the official
    result. ``group_evaluated`` is False where an infrastructure error ended another attempt of the group, so that the
    given attempts are not all of it.

    ``calls`` are the agent's in its own turns (those after ``TaskSpec.played``), refused ones included, and
    ``malformed`` counts actions there that were not calls. ``reference`` has the calls of the reference in these turns.
    Both are None where they are unknown. ``partial`` is ``Outcome.partial``.
    """

    id: str
    group: str | None
    success: bool
    group_evaluated: bool = True
    calls: tuple[Made, ...] | None = None
    malformed: int = 0
    reference: tuple[Made, ...] | None = None
    partial: float | None = None


Metric: TypeAlias = Callable[[Sequence[Attempted]], float]
"""Return a number in the benchmark's own unit, or nan where it is not defined (it is then left out of the score).

The argument has the completed attempts of one group of tasks, in order, at least one. A benchmark maps names to such
functions.
"""

Share: TypeAlias = tuple[float, int]
"""What an attempt adds to the two sums of a quotient in [0, 1]; (0, 0) where it does not count."""


@dataclass(frozen=True)
class Ratio:
    """A metric that is the sum of the attempts' first numbers divided by the sum of their second ones.

    ``shares`` returns one pair per attempt, in order. ``unit`` turns the quotient into the metric's own unit and never
    decreases.
    """

    shares: Callable[[Sequence[Attempted]], Sequence[Share]]
    unit: Callable[[float], float] = float

    def __call__(self, attempts: Sequence[Attempted]) -> float:
        """Return the metric; nan where no attempt counts."""
        shares = self.shares(attempts)
        whole = sum(one for _, one in shares)
        return self.unit(sum(one for one, _ in shares) / whole) if whole else math.nan


def each(share: Callable[[Attempted], Share]) -> Ratio:
    """Return the metric to which each attempt adds ``share`` of it, whatever the others are."""
    return Ratio(lambda attempts: [share(one) for one in attempts])


success = each(lambda one: (one.success, 1))
"""The share of attempts that succeeded."""

checks_passed = each(lambda one: (0, 0) if one.partial is None else (one.partial, 1))
"""Mean ``Outcome.partial`` of the attempts that report one."""


def of_calls(share: Callable[[Sequence[Made], Sequence[Made]], Share]) -> Ratio:
    """Return the metric of the agent's calls and the reference's, over the attempts of which both are known."""
    return each(lambda one: (0, 0) if one.calls is None or one.reference is None else share(one.calls, one.reference))


def _overlap(made: Iterable[Hashable], wanted: Iterable[Hashable]) -> Share:
    """Return twice the number of equal members of two multisets, and the number of all members of both."""
    left, right = Counter(made), Counter(wanted)
    return 2 * (left & right).total(), left.total() + right.total()


def _names(calls: Sequence[Made]) -> list[str]:
    return [name for name, _ in calls]


call_f1 = of_calls(_overlap)
"""F1 of the agent's calls and the reference's with their values, as multisets of an attempt, counts summed over all."""

name_f1 = of_calls(lambda made, wanted: _overlap(_names(made), _names(wanted)))
"""F1 as ``call_f1`` of the functions' names alone."""

first_function = of_calls(lambda made, wanted: (_names(made)[:1] == _names(wanted)[:1], 1) if wanted else (0, 0))
"""The share of attempts whose first call is of the reference's first function; of those with a reference."""

abstention = each(
    lambda one: (one.success and not one.calls and not one.malformed, 1) if one.reference == () else (0, 0)
)
"""The share of attempts that ended without a call, a malformed one included; of those where the reference has none.

An attempt that had no room to answer fails, and did not abstain.
"""


def pass_at(k: int) -> Ratio:
    """Return the metric pass@k: the chance that one of ``k`` samples of a task succeeds, the mean over tasks.

    Of ``n`` samples with ``c`` successes it is estimated without bias as 1 - C(n - c, k) / C(n, k) (Chen et al., 2021,
    arXiv 2107.03374, equation 1). A task with fewer than ``k`` samples does not count.
    """
    return _by_task(lambda n, c: (1 - math.comb(n - c, k) / math.comb(n, k), 1) if n >= k else (0, 0))


def _by_task(share: Callable[[int, int], Share]) -> Ratio:
    """Return the metric to which each task adds ``share`` of its samples and successes, at its first attempt."""

    def shares(attempts: Sequence[Attempted]) -> list[Share]:
        sampled = Counter(one.id for one in attempts)
        solved = Counter(one.id for one in attempts if one.success)
        return [share(n, solved[one.id]) if (n := sampled.pop(one.id, 0)) else (0, 0) for one in attempts]

    return Ratio(shares)


mixed = _by_task(lambda n, c: (0 < c < n, 1) if n > 1 else (0, 0))
"""The share of tasks of which some samples succeed and some fail: as groups of GRPO, those that teach something."""

CALL_METRICS: Mapping[str, Ratio] = {
    "call_f1": call_f1,
    "name_f1": name_f1,
    "first_function": first_function,
    "abstention": abstention,
}
"""Metrics of the calls, for a benchmark whose agents call functions one by one as its references do."""

OF_ANY_TASKS: Mapping[str, Ratio] = {**CALL_METRICS, "checks_passed": checks_passed}
"""The metrics that need no evaluation set: those of a benchmark that a file of tasks is scored by, too."""
