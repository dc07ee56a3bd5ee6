"""Signals of the agent's weaknesses: forgetting, boundary and rare, as pure functions over a round's trajectories.

The definitions are those of CoEvolve (arXiv 2604.15840), section 3; choices that the paper leaves open are marked "our
choice". A trajectory's score is 1.0 when the official rule was met, else 0.0 (our choice: rewards include a length
cost, which is not a weakness). Trajectories with an infrastructure error are left out. No result depends on the order
in which trajectories or signals are given.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from environments.base import Record
from memory.jsonl import derive_seed, record_id
from memory.records import Signal, SignalKind, Trajectory
from training.settings import SignalSettings

__all__ = ["Choice", "Extraction", "GroupScore", "choose", "extract", "patterns", "places"]

NOVELTY_CANDIDATES = 3
"""Signals that are reflected on for each context that is explored, with ``novelty`` (our choice)."""

Pattern = tuple[str, ...]


class GroupScore(Record):
    """One attempt at a task: the rollouts of one training step (our definition of an attempt).

    ``mean`` is the share of successes among the ``n`` rollouts without an infrastructure error; ``n`` is at least 1.
    """

    task_id: str
    step: int
    mean: float
    n: int


class Extraction(Record):
    """The signals of a round, sorted by id, and its scores, which later rounds compare with.

    ``pattern_occurrences`` is N of the rare signal. ``left_out`` counts trajectories with an infrastructure error.
    """

    signals: tuple[Signal, ...]
    scores: tuple[GroupScore, ...]
    pattern_occurrences: int
    left_out: int

    def counts(self) -> dict[SignalKind, int]:
        """Count the signals of each kind, kinds without one included."""
        return {kind: sum(signal.kind is kind for signal in self.signals) for kind in SignalKind}


class Choice(Record):
    """The signals that are reflected on, sorted by id, and counts of the others by kind.

    ``repeated``: further signals of a task and kind that has one already. ``left_out``: beyond the budget. Signals of a
    kind that the settings do not list are in none of them.
    """

    chosen: tuple[Signal, ...]
    repeated: dict[SignalKind, int]
    left_out: dict[SignalKind, int]


class _Group(Record):
    """The rollouts of one task in one step, by sample."""

    task_id: str
    step: int
    trajectories: tuple[Trajectory, ...]

    @property
    def score(self) -> GroupScore:
        successes = sum(trajectory.success for trajectory in self.trajectories)
        n = len(self.trajectories)
        return GroupScore(task_id=self.task_id, step=self.step, mean=successes / n, n=n)

    @property
    def failed(self) -> tuple[Trajectory, ...]:
        return tuple(trajectory for trajectory in self.trajectories if not trajectory.success)


def extract(
    trajectories: Iterable[Trajectory],
    earlier: Mapping[str, Sequence[GroupScore]],
    settings: SignalSettings,
    iteration: int,
) -> Extraction:
    """Find every signal of a round.

    ``earlier`` holds the scores of former rounds by task id (each round's are in ``Extraction.scores``). A task gives
    one forgetting and one boundary signal for each step that shows it, and one rare signal for each rare pattern.
    """
    everything = sorted(trajectories, key=lambda trajectory: (trajectory.step, trajectory.sample, trajectory.id))
    valid = [trajectory for trajectory in everything if trajectory.infrastructure_error is None]
    by_task = _groups(valid)
    counts = Counter(pattern for trajectory in valid for pattern in patterns(trajectory, settings.pattern_length))
    signals = list(_rare(valid, counts, settings, iteration))
    for task_id, groups in by_task.items():
        signals += _forgetting(groups, earlier.get(task_id, ()), settings, iteration)
        signals += _boundary(groups, settings, iteration)
    return Extraction(
        signals=tuple(sorted(signals, key=lambda signal: signal.id)),
        scores=tuple(group.score for groups in by_task.values() for group in groups),
        pattern_occurrences=counts.total(),
        left_out=len(everything) - len(valid),
    )


def _groups(ordered: Iterable[Trajectory]) -> dict[str, list[_Group]]:
    """Return groups by task id: tasks in order of their ids, a task's groups in order of their steps."""
    members: dict[tuple[str, int], list[Trajectory]] = defaultdict(list)
    for trajectory in ordered:
        members[trajectory.task_id, trajectory.step].append(trajectory)
    by_task: dict[str, list[_Group]] = defaultdict(list)
    for (task_id, step), group in sorted(members.items(), key=lambda item: item[0]):
        by_task[task_id].append(_Group(task_id=task_id, step=step, trajectories=tuple(group)))
    return by_task


def _forgetting(
    groups: Sequence[_Group], earlier: Sequence[GroupScore], settings: SignalSettings, iteration: int
) -> Iterator[Signal]:
    """Yield forgetting signals (section 3): one of the last W attempts scored 0.5 or more, and this one scores less.

    Our choice: an attempt is a step's group and scores its mean; W counts attempts before this one, those of earlier
    rounds included; the evidence is the group's failed rollout with the lowest sample number.
    """
    attempts = {score.step: score.mean for score in sorted(earlier, key=lambda score: score.step)}
    for group in groups:
        score = group.score
        before = [mean for step, mean in sorted(attempts.items()) if step < group.step][-settings.window :]
        if score.mean < settings.threshold and max(before, default=0.0) >= settings.threshold:
            yield Signal(
                id=record_id("signal", iteration, SignalKind.FORGETTING, group.task_id, group.step),
                kind=SignalKind.FORGETTING,
                iteration=iteration,
                task_id=group.task_id,
                trajectory_id=group.failed[0].id,
                score=score.mean,
                previous=max(before),
            )
        attempts[group.step] = score.mean


def _boundary(groups: Sequence[_Group], settings: SignalSettings, iteration: int) -> Iterator[Signal]:
    """Yield boundary signals (section 3): within one step, rollouts of the task score both above and below 0.5.

    Our choice: the evidence is the failed rollout with the lowest sample number.
    """
    for group in groups:
        scores = [float(trajectory.success) for trajectory in group.trajectories]
        if min(scores) < settings.threshold < max(scores):
            yield Signal(
                id=record_id("signal", iteration, SignalKind.BOUNDARY, group.task_id, group.step),
                kind=SignalKind.BOUNDARY,
                iteration=iteration,
                task_id=group.task_id,
                trajectory_id=group.failed[0].id,
                score=group.score.mean,
            )


def patterns(trajectory: Trajectory, length: int) -> Iterator[Pattern]:
    """Yield every run of ``length`` API names in the calls of a trajectory, in order, across its turns.

    The paper only says "action pattern"; API-name n-grams are our choice.
    """
    names = [call.name for call in trajectory.calls()]
    for start in range(len(names) - length + 1):
        yield tuple(names[start : start + length])


def _rare(
    ordered: Sequence[Trajectory], counts: Counter[Pattern], settings: SignalSettings, iteration: int
) -> Iterator[Signal]:
    """Yield rare signals (section 3): a pattern p with 0 < c_p and c_p / N < theta / 100.

    Our choice: c_p counts the occurrences of p in the round and N those of all patterns. Each task with a trajectory
    that holds p has one signal of p; the evidence is its latest failed one (then lowest sample), else its latest
    successful one, marked as such.
    """
    total = counts.total()
    holders: dict[tuple[str, Pattern], list[Trajectory]] = defaultdict(list)
    for trajectory in ordered:
        for pattern in set(patterns(trajectory, settings.pattern_length)):
            if 100 * counts[pattern] < settings.rare_percent * total:
                holders[trajectory.task_id, pattern].append(trajectory)
    for (task_id, pattern), holding in sorted(holders.items(), key=lambda item: item[0]):
        evidence = min(holding, key=lambda trajectory: (trajectory.success, -trajectory.step, trajectory.sample))
        yield Signal(
            id=record_id("signal", iteration, SignalKind.RARE, task_id, pattern),
            kind=SignalKind.RARE,
            iteration=iteration,
            task_id=task_id,
            trajectory_id=evidence.id,
            successful_evidence=evidence.success,
            pattern=pattern,
            count=counts[pattern],
        )


def choose(signals: Iterable[Signal], settings: SignalSettings, seed: int) -> Choice:
    """Choose the signals to reflect on: one per (task, kind), at most ``contexts_per_iteration``, a share per kind.

    Our choice throughout. Of a task's signals of one kind, failed evidence goes before successful evidence and a rarer
    pattern before a more frequent one; ``seed`` draws among the rest, and among tasks. The part of its share that a
    kind cannot use goes to the others; a kind with share 0, or one that is not listed in ``kinds``, gets nothing. With
    ``novelty`` there are ``NOVELTY_CANDIDATES`` times as many: candidates, among which their contexts decide.
    """
    ordered = sorted((signal for signal in signals if signal.kind in settings.kinds), key=lambda signal: signal.id)
    best: dict[tuple[SignalKind, str], Signal] = {}
    for signal in sorted(ordered, key=lambda signal: _preference(signal, seed)):
        best.setdefault((signal.kind, signal.task_id), signal)
    candidates = {kind: [s for s in ordered if best.get((kind, s.task_id)) is s] for kind in SignalKind}
    budget = settings.contexts_per_iteration * (NOVELTY_CANDIDATES if settings.novelty else 1)
    share = places(settings.shares(), {kind: len(of_kind) for kind, of_kind in candidates.items()}, budget)
    chosen = [
        signal
        for kind, of_kind in candidates.items()
        for signal in random.Random(derive_seed(seed, kind)).sample(of_kind, share[kind])
    ]
    return Choice(
        chosen=tuple(sorted(chosen, key=lambda signal: signal.id)),
        repeated={kind: sum(s.kind is kind for s in ordered) - len(candidates[kind]) for kind in SignalKind},
        left_out={kind: len(candidates[kind]) - share[kind] for kind in SignalKind},
    )


def _preference(signal: Signal, seed: int) -> tuple[bool, int, int]:
    return signal.successful_evidence, signal.count or 0, derive_seed(seed, signal.id)


def places(
    shares: Mapping[SignalKind, float], available: Mapping[SignalKind, int], budget: int
) -> dict[SignalKind, int]:
    """Split the budget, one by one, to the kind that is furthest below its share and still has candidates."""
    taken = dict.fromkeys(SignalKind, 0)
    for _ in range(budget):
        open_kinds = [kind for kind in SignalKind if shares.get(kind, 0.0) > 0 and taken[kind] < available[kind]]
        if not open_kinds:
            break
        kind = max(open_kinds, key=lambda kind: shares[kind] * budget - taken[kind])
        taken[kind] += 1
    return taken
