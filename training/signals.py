"""Signals of the agent's weaknesses: forgetting, boundary and rare, as pure functions over a round.

The definitions are those of CoEvolve (arXiv 2604.15840), section 3.1: a signal marks a trajectory, and a trajectory
carries every kind that fires. Choices that the paper leaves open are marked "ours"; so is a limit of contexts, and how
``choose`` shares it out. A trajectory's score is 1.0 when the official rule was met, else 0.0. Trajectories with an
infrastructure error are left out. No result depends on the order in which trajectories or signals are given.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from environments.base import Record
from environments.settings import Section, requires
from memory.jsonl import derive_seed, record_id
from memory.records import KINDS, Signal, SignalKind, Trajectory

Pattern = tuple[str, ...]
Group = tuple[Trajectory, ...]
"""The rollouts of one task in one step, by sample."""

SUCCESS = 0.5
"""The score that separates success from failure (section 3.1)."""


class SignalSettings(Section):
    """How weaknesses are found in a round's trajectories (CoEvolve, section 3.1), and which of them are followed."""

    window: int = Field(
        10,
        ge=1,
        le=100_000,
        description="W: scores of a task in earlier steps that forgetting compares with (ours)",
    )
    rare_percent: float = Field(
        5.0, gt=0.0, le=100.0, description="theta: patterns rarer than this are rare (5: an example in the paper)"
    )
    pattern: Literal["succeeded", "called", "sequence"] = Field(
        "succeeded",
        description="action pattern of a trajectory; succeeded: the set of tools called with success; called: of "
        "all tools called; sequence: the tools in order (ours)",
    )
    rare_min_patterns: int = Field(
        50,
        ge=1,
        le=1_000_000_000,
        description="N_min: no pattern is rare while the run has fewer different ones (ours)",
    )
    rare_min_trajectories: int = Field(
        2,
        ge=1,
        le=1_000_000,
        description="trajectories of the run in which a rare pattern has to recur (ours)",
    )
    last_steps: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="steps at the end of a round whose trajectories carry signals; null: all (ours; 1 gives about "
        "as many signals as the paper's figure 3b)",
    )
    contexts_per_iteration: int | None = Field(
        24,
        ge=1,
        le=100_000,
        description="contexts explored in one iteration, at most one per task and kind of signal (ours); null: "
        "one for each trajectory and kind that marks it (CoEvolve, section 3.2)",
    )
    kinds: tuple[SignalKind, ...] = Field(
        (SignalKind.FORGETTING, SignalKind.BOUNDARY, SignalKind.RARE),
        min_length=1,
        description="kinds of signals that are followed",
        json_schema_extra=requires({"contexts": "signals"}),
    )
    contexts: Literal["signals", "random", "unguided", "coverage"] = Field(
        "signals",
        description="source of contexts: the signals, or a baseline (ours); random: calls of the round's "
        "trajectories; unguided: start states, with as many environment calls; coverage: tools, then "
        "pairs, that the fewest tasks call",
    )
    coverage_by: Literal["tasks", "need"] = Field(
        "tasks",
        description="which come first; tasks: tools that the fewest tasks call; need: tools with few tasks at "
        "whose calls rollouts fail (ours)",
        json_schema_extra=requires({"contexts": "coverage"}),
    )
    functions: tuple[Annotated[tuple[str, ...], Field(min_length=1, max_length=2)], ...] | None = Field(
        None,
        min_length=1,
        description="functions or pairs of functions, each a list, that contexts are of, in this order; null: all "
        "(ours, a study's positive control)",
        json_schema_extra=requires({"contexts": "coverage"}, {"coverage_by": "tasks"}),
    )
    shuffled: bool = Field(
        False,
        description="give each context the reflection of another task's context with the same tools, if there is "
        "one (ours, a study's control)",
        json_schema_extra=requires({"contexts": "signals"}),
    )

    @property
    def limit(self) -> int:
        """Return ``contexts_per_iteration``, which is a number with every source but the signals."""
        assert self.contexts_per_iteration is not None
        return self.contexts_per_iteration

    @model_validator(mode="after")
    def _kinds_differ_and_baselines_have_a_limit(self) -> Self:
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"'kinds' lists a kind twice: {', '.join(self.kinds)}")
        if self.contexts_per_iteration is None and self.contexts != "signals":
            raise ValueError(
                f"'contexts_per_iteration' is null, and contexts: {self.contexts} needs a number: give one"
            )
        return self


class GroupScore(Record):
    """The scores of one task in one training step: of its rollouts without an infrastructure error, at least one.

    ``scores`` are theirs by sample, 0 or 1, ``mean`` is the share of successes and ``n`` their number.
    """

    task_id: str
    step: int
    mean: float
    n: int
    scores: tuple[int, ...]


class PatternCount(Record):
    """How often one action pattern occurred in a round."""

    pattern: tuple[str, ...]
    count: int


class Extraction(Record):
    """The signals of a round, sorted by id, and what later rounds compare with: its scores and pattern counts.

    ``patterns`` are the round's own, by pattern. ``pattern_occurrences`` and ``different_patterns`` count those of the
    whole run. ``left_out`` counts trajectories with an infrastructure error.
    """

    signals: tuple[Signal, ...]
    scores: tuple[GroupScore, ...]
    patterns: tuple[PatternCount, ...]
    pattern_occurrences: int
    different_patterns: int
    left_out: int

    def counts(self) -> dict[SignalKind, int]:
        """Count the signals of each kind, kinds without one included."""
        return {kind: sum(signal.kind is kind for signal in self.signals) for kind in SignalKind}

    def task_counts(self) -> dict[SignalKind, int]:
        """Count the tasks that have a signal of each kind, kinds without one included."""
        return {kind: len({one.task_id for one in self.signals if one.kind is kind}) for kind in SignalKind}

    def marked(self) -> int:
        """Count the trajectories that carry at least one signal."""
        return len({signal.trajectory_id for signal in self.signals})


def extract(
    trajectories: Iterable[Trajectory],
    earlier: Mapping[str, Sequence[GroupScore]],
    settings: SignalSettings,
    iteration: int,
    counted: Iterable[PatternCount] = (),
) -> Extraction:
    """Find every signal of a round.

    ``earlier`` holds the scores of former rounds by task id (each round's are in ``Extraction.scores``), ``counted``
    the pattern counts of former rounds (``Extraction.patterns``). ``settings.last_steps`` limits which trajectories
    carry signals, not the scores and patterns that are kept.
    """
    everything = sorted(trajectories, key=lambda trajectory: (trajectory.step, trajectory.sample, trajectory.id))
    valid = [trajectory for trajectory in everything if trajectory.infrastructure_error is None]
    by_task = _groups(valid)
    own = Counter(pattern for one in valid if (pattern := action_pattern(one, settings)))
    counts = Counter(own)
    for former in counted:
        counts[former.pattern] += former.count
    found: list[Signal] = []
    for task_id, groups in by_task.items():
        found += _forgotten(groups, earlier.get(task_id, ()), settings, iteration)
        found += _at_the_boundary(groups, iteration)
    found += _rarely_done(by_task, counts, settings, iteration)
    if settings.last_steps is not None:
        first = max((trajectory.step for trajectory in everything), default=0) - settings.last_steps + 1
        read = {trajectory.id for trajectory in valid if trajectory.step >= first}
        found = [signal for signal in found if signal.trajectory_id in read]
    return Extraction(
        signals=tuple(sorted(found, key=lambda signal: signal.id)),
        scores=tuple(_score(group) for groups in by_task.values() for group in groups),
        patterns=tuple(PatternCount(pattern=pattern, count=count) for pattern, count in sorted(own.items())),
        pattern_occurrences=counts.total(),
        different_patterns=len(counts),
        left_out=len(everything) - len(valid),
    )


def _groups(ordered: Iterable[Trajectory]) -> dict[str, list[Group]]:
    """Return groups by task id: tasks in order of their ids, a task's groups in order of their steps."""
    members: dict[tuple[str, int], list[Trajectory]] = defaultdict(list)
    for trajectory in ordered:
        members[trajectory.task_id, trajectory.step].append(trajectory)
    by_task: dict[str, list[Group]] = defaultdict(list)
    for (task_id, _), group in sorted(members.items(), key=lambda item: item[0]):
        by_task[task_id].append(tuple(group))
    return by_task


def _score(group: Group) -> GroupScore:
    scores = tuple(int(one.success) for one in group)
    n = len(scores)
    return GroupScore(task_id=group[0].task_id, step=group[0].step, mean=sum(scores) / n, n=n, scores=scores)


def _signal(kind: SignalKind, iteration: int, group: Group, trajectory: Trajectory) -> partial[Signal]:
    """Return the signal that marks one trajectory, to which a kind adds fields of its own."""
    return partial(
        Signal,
        id=record_id("signal", iteration, kind, trajectory.id),
        kind=kind,
        iteration=iteration,
        task_id=trajectory.task_id,
        trajectory_id=trajectory.id,
        successful_evidence=trajectory.success,
        score=float(trajectory.success),
        group=(sum(one.success for one in group), len(group)),
    )


def _forgotten(
    groups: Sequence[Group], earlier: Sequence[GroupScore], settings: SignalSettings, iteration: int
) -> Iterator[Signal]:
    """Mark each trajectory that scores less than 0.5 with a score of 0.5 or more in its task's window (section 3.1).

    The window holds the last W scores of the task's trajectories in earlier steps, in order of step and sample, those
    of former rounds included. The rollouts of one step do not see each other, because they are sampled at once from one
    policy (ours: the paper does not say how a group enters the window).
    """
    former = {score.step: score.scores for score in earlier}
    for group in groups:
        before = [score for step, scores in sorted(former.items()) if step < group[0].step for score in scores]
        window = before[-settings.window :]
        if any(score >= SUCCESS for score in window):
            for trajectory in (one for one in group if not one.success):
                yield _signal(SignalKind.FORGETTING, iteration, group, trajectory)(
                    previous=float(max(window)), recent=(sum(window), len(window))
                )
        former[group[0].step] = _score(group).scores


def _at_the_boundary(groups: Sequence[Group], iteration: int) -> Iterator[Signal]:
    """Mark all trajectories of a step's group of which some score above 0.5 and some below it (section 3.1).

    Each signal also names a counterpart: the rollout with the other result and the lowest sample number (ours).
    """
    for group in groups:
        above = [one for one in group if float(one.success) > SUCCESS]
        below = [one for one in group if float(one.success) < SUCCESS]
        if above and below:
            for trajectory in group:
                other = below[0] if trajectory.success else above[0]
                yield _signal(SignalKind.BOUNDARY, iteration, group, trajectory)(counterpart_id=other.id)


def action_pattern(trajectory: Trajectory, settings: SignalSettings) -> Pattern:
    """Return the one action pattern of a trajectory (section 3.1), empty where there is no call.

    The paper says "an action pattern p from each trajectory" and leaves the form open: ``settings.pattern`` (ours).
    """
    if settings.pattern == "sequence":
        return tuple(call.name for call in trajectory.calls())
    if settings.pattern == "called":
        return tuple(sorted({call.name for call in trajectory.calls()}))
    steps = (step for _, step in trajectory.own_steps() if not step.observation.failed)
    return tuple(sorted({call.name for step in steps for call in step.observation.calls}))


def _rarely_done(
    by_task: Mapping[str, Sequence[Group]], counts: Counter[Pattern], settings: SignalSettings, iteration: int
) -> Iterator[Signal]:
    """Mark each trajectory whose pattern p is rare: N >= N_min, c_p > 0 and c_p / N < theta / 100 (section 3.1).

    c_p counts the trajectories with p since the run began, this round's included. N is the number of different patterns
    observed (ours): with occurrences and theta 5 nearly every trajectory would be marked, which the paper's Figure 4
    excludes. In words the paper asks that p recurs, too: ``rare_min_trajectories`` (ours).
    """
    total = len(counts)
    if total < settings.rare_min_patterns:
        return
    for group in (group for groups in by_task.values() for group in groups):
        for trajectory in group:
            pattern = action_pattern(trajectory, settings)
            count = counts[pattern] if pattern else 0
            if settings.rare_min_trajectories <= count and 0 < 100 * count < settings.rare_percent * total:
                yield _signal(SignalKind.RARE, iteration, group, trajectory)(pattern=pattern, count=count)


class Choice(Record):
    """The signals that are reflected on, sorted by id, and counts of the others by kind.

    ``repeated``: further signals of a task and kind that has one already. ``left_out``: beyond the limit. Signals of a
    kind that the settings do not list are in none of them.
    """

    chosen: tuple[Signal, ...]
    repeated: dict[SignalKind, int]
    left_out: dict[SignalKind, int]


def choose(signals: Iterable[Signal], settings: SignalSettings, seed: int) -> Choice:
    """Choose the signals to reflect on, among those of the kinds that the settings list.

    Without a limit, all of them: each marked trajectory gets a context of its own for every kind that it carries.

    With a limit (ours), one per (task, kind), at most ``contexts_per_iteration``, a share per kind. Of a task's signals
    of one kind, failed evidence goes before successful evidence and a rarer pattern before a more frequent one;
    ``seed`` draws among the rest, and among tasks. The part of its share that a kind cannot use goes to the others.
    """
    ordered = sorted((signal for signal in signals if signal.kind in settings.kinds), key=lambda signal: signal.id)
    limit = settings.contexts_per_iteration
    if limit is None:
        nothing = dict.fromkeys(SignalKind, 0)
        return Choice(chosen=tuple(ordered), repeated=nothing, left_out=nothing)
    best: dict[tuple[SignalKind, str], Signal] = {}
    for signal in sorted(ordered, key=lambda signal: _preference(signal, seed)):
        best.setdefault((signal.kind, signal.task_id), signal)
    candidates = {kind: [s for s in ordered if best.get((kind, s.task_id)) is s] for kind in SignalKind}
    repeated = {kind: sum(s.kind is kind for s in ordered) - len(of_kind) for kind, of_kind in candidates.items()}
    total = sum(KINDS[kind].share for kind in settings.kinds)
    shares = {kind: KINDS[kind].share / total for kind in SignalKind if kind in settings.kinds}
    share = _places(shares, {kind: len(of_kind) for kind, of_kind in candidates.items()}, limit)
    chosen = [
        signal
        for kind, of_kind in candidates.items()
        for signal in random.Random(derive_seed(seed, kind)).sample(of_kind, share[kind])
    ]
    return Choice(
        chosen=tuple(sorted(chosen, key=lambda signal: signal.id)),
        repeated=repeated,
        left_out={kind: len(of_kind) - share[kind] for kind, of_kind in candidates.items()},
    )


def _preference(signal: Signal, seed: int) -> tuple[bool, int, int]:
    return signal.successful_evidence, signal.count or 0, derive_seed(seed, signal.id)


def _places(
    shares: Mapping[SignalKind, float], available: Mapping[SignalKind, int], budget: int
) -> dict[SignalKind, int]:
    """Split the budget, one by one, to the kind that is furthest below its share and still has candidates."""
    taken = dict.fromkeys(available, 0)
    for _ in range(budget):
        open_kinds = [kind for kind in available if taken[kind] < available[kind]]
        if not open_kinds:
            break
        kind = max(open_kinds, key=lambda kind: shares[kind] * budget - taken[kind])
        taken[kind] += 1
    return taken
