"""Define the type of a benchmark's metrics: functions from the attempts at a group of tasks to one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

SUCCESS = "success"
"""The metric that every score has."""


class Attempted(NamedTuple):
    """One completed attempt at one task.

    ``id`` is the task's. ``group`` is the unit that the benchmark scores as a whole, such as the scenario that the
    task is a variant of; None for a task on its own. ``success`` is the official result. ``group_evaluated`` is False
    where an infrastructure error ended another attempt of the group, so that the given attempts are not all of it.
    """

    id: str
    group: str | None
    success: bool
    group_evaluated: bool = True


Metric: TypeAlias = Callable[[Sequence[Attempted]], float]
"""Return a number in the benchmark's own unit, or nan where it is not defined (it is then left out of the score).

The argument has the completed attempts of one group of tasks, in order, at least one. A benchmark maps names to such
functions.
"""


def success(attempts: Sequence[Attempted]) -> float:
    """Return the share of attempts that succeeded, in [0, 1]; nan without an attempt."""
    return sum(one.success for one in attempts) / len(attempts) if attempts else math.nan
