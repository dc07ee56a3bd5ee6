"""The smallest difference between two arms that a study can show, by simulation from development outcomes (ours).

Policies of one arm that differ in their seed alone have no true difference: what is found between two of them is
chance, of training and of the tasks. A simulated study draws a pair of them for each of its seeds and as many clusters
of tasks as its evaluation set has, with replacement; within each cluster it takes the pair in either order, as nothing
tells them apart. What a seed changes in all tasks alike is lost by that and added again, with the variance that the
pairs' means have beyond that of their clusters.

A true difference of constant size moves the estimate and leaves the rest. The smallest one whose interval excludes zero
and whose p stays below the level after Holm's correction is computed for each simulated study; the ``power`` quantile
of them is what that share of studies shows.

What it cannot know: development sets have few clusters and policies. Arms of one seed that start alike differ less by
chance than two seeds do. A difference that is in some tasks alone varies more.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from environments.base import InputError, Record
from evaluation.outcomes import TaskOutcome, evaluated
from evaluation.statistics import numbered, rarest_functions, shared_interval, t_quantile

LEVEL = 0.05
DRAWS = 400
"""Simulated studies: the quantile of 80 % has a standard error of about 0.02 of its rank."""


class SimulatedPower(Record):
    """What a study of ``seeds`` seeds and ``clusters`` clusters of tasks can show, in [0, 1].

    ``difference`` is the smallest that a share ``power`` of studies shows where Holm's correction is for ``tests``
    hypotheses (the first of them: its p is multiplied by all); ``by_interval`` the smallest whose interval alone
    excludes zero, which is all that one seed can show. ``tasks`` is the mean number of tasks of a simulated set,
    ``pairs`` that of different pairs.
    """

    seeds: int
    clusters: int
    tasks: float
    tests: int
    power: float
    pairs: int
    difference: float
    by_interval: float

    @property
    def sentence(self) -> str:
        """One line of a plan or a report."""
        several = self.seeds > 1
        corrected = f", among {self.tests} hypotheses after Holm's correction" if several else ""
        shown = f"a difference of {100 * self.difference:.1f} points" if self.difference < 1 else "no difference"
        return (
            f"{self.seeds} seed{'s' if several else ''} on {self.clusters} clusters of {self.tasks:.0f} tasks "
            f"show{'' if several else 's'} {shown} with {100 * self.power:.0f} % power{corrected}; the interval alone "
            f"excludes zero from {100 * self.by_interval:.1f} on"
        )


def simulated_difference(
    arms: Sequence[Sequence[Sequence[TaskOutcome]]],
    *,
    seeds: int,
    clusters: int,
    tests: int = 1,
    power: float = 0.8,
    seed: int = 0,
    draws: int = DRAWS,
) -> SimulatedPower:
    """Return the smallest difference of success that a study can show.

    ``arms`` hold the outcomes of each arm's policies on one evaluation set, by seed; policies of one arm are compared.
    Equal arguments give an equal result. Raises InputError for no arm of two policies with a task in common, and for
    tasks of fewer than two clusters.
    """
    pairs = [pair for one in arms for pair in permutations([_solved(policy) for policy in one], 2)]
    known = {one.task_id: one for arm in arms for policy in arm for one in evaluated(policy)}
    common = [name for name in known if all(name in policy for pair in pairs for policy in pair)]
    if not pairs or not common:
        raise InputError("there is no arm of two policies with a task in common: give outcomes of two seeds or more")
    members: dict[str, list[int]] = defaultdict(list)
    for column, name in enumerate(common):
        members[known[name].cluster].append(column)
    if len(members) < 2:
        raise InputError("all tasks share one start state: no other task could be drawn")
    solved = np.array([[[policy[name] for name in common] for policy in pair] for pair in pairs])
    functions = numbered(rarest_functions([known[name].shape for name in common]))
    spread = _of_seeds(solved[:, 0] - solved[:, 1], list(members.values()))
    rng = random.Random(seed)
    needed, by_interval, sizes = [], [], []
    for _ in range(draws):
        chosen = rng.choices(list(members.values()), k=clusters)
        columns = [column for cluster in chosen for column in cluster]
        places = np.repeat(np.arange(clusters), [len(cluster) for cluster in chosen])
        drawn = solved[rng.choices(range(len(pairs)), k=seeds)][:, :, columns].astype(np.float64)
        turned = np.array([[rng.random() < 0.5 for _ in chosen] for _ in range(seeds)])[:, places]
        first, second = np.where(turned, drawn[:, 1], drawn[:, 0]), np.where(turned, drawn[:, 0], drawn[:, 1])
        first += np.array([[rng.gauss(0, spread)] for _ in range(seeds)])
        tried = np.ones(first.shape)
        interval = shared_interval(first, tried, places, numbered(functions[columns].tolist()), (second, tried))
        assert interval is not None
        by_interval.append(-interval[0])
        needed.append(max(-interval[0], _by_test((first - second).mean(axis=1), tests)))
        sizes.append(len(columns))
    return SimulatedPower(
        seeds=seeds,
        clusters=clusters,
        tasks=float(np.mean(sizes)),
        tests=tests,
        power=power,
        pairs=len(pairs),
        difference=float(np.quantile(needed, power)),
        by_interval=float(np.quantile(by_interval, power)),
    )


def assumed_outcomes(discordance: float, tasks: int, cluster: float = 1.0) -> list[list[TaskOutcome]]:
    """Return outcomes of two policies, each of which alone solves half of the share ``discordance`` of the tasks.

    Tasks of a cluster, ``cluster`` of them on average, are solved together.
    """
    clusters = max(2, round(tasks / cluster))
    alone = round(clusters * discordance / 2)
    return [
        [
            TaskOutcome(task_id=str(n), group="", split="", cluster=str(place), success=first <= place < first + alone)
            for n in range(tasks)
            for place in [n * clusters // tasks]
        ]
        for first in (0, alone)
    ]


def _by_test(by_seed: NDArray[np.float64], tests: int) -> float:
    """Return the smallest difference whose p is below the level, added to what chance gave each seed."""
    seeds = len(by_seed)
    if seeds < 2:
        return -math.inf
    error = float(by_seed.std(ddof=1)) / math.sqrt(seeds)
    return t_quantile(1 - LEVEL / (2 * tests), seeds - 1) * error - float(by_seed.mean())


def _of_seeds(differences: NDArray[np.int64], clusters: Sequence[Sequence[int]]) -> float:
    """Return the standard deviation of a pair's difference that all tasks share, from (pairs, tasks) differences.

    It is what the squares of the pairs' means have beyond the variance that is robust to clusters; 0 where they do not.
    """
    means = differences.mean(axis=1)
    off = np.stack([(differences[:, cluster] - means[:, None]).sum(axis=1) for cluster in clusters], axis=1)
    within = (off**2).sum(axis=1) * len(clusters) / (len(clusters) - 1) / differences.shape[1] ** 2
    return math.sqrt(max(0.0, float((means**2 - within).mean())))


def _solved(policy: Sequence[TaskOutcome]) -> dict[str, int]:
    return {one.task_id: int(one.success) for one in evaluated(policy)}
