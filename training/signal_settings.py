"""Settings of the signals: how weaknesses are found in a round's rollouts, and which of them are followed."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from environments.sections import GIVEN, Above, Need, Section, requires
from memory.records import PAPER_KINDS, SignalKind

SIGNALS: Need = {"contexts": "signals"}
LIMITED = requires(SIGNALS, {"contexts_per_iteration": GIVEN})
PAPER = requires({"definition": "paper"})
GROUP = requires({"definition": "group"})
LISTED: Need = {"kinds": "unsolved"}


class ExperimentalSignals(Section):
    """A choice among contexts beyond the shares of their kinds (ours): not shown to help, off by default."""

    novelty: bool = Field(
        False,
        description="reflect on three times as many signals and explore those whose (tool, error class) was explored "
        "least (ours)",
        json_schema_extra=LIMITED,
    )


class SignalSettings(Section):
    """How weaknesses are found in a round's trajectories (CoEvolve, section 3.1), and which of them are followed.

    ``definition`` chooses between the paper's signals and those of this project's recorded studies.
    """

    definition: Literal["paper", "group"] = Field(
        "paper",
        description="paper: signals mark trajectories, rare patterns are counted over the whole run; group: one signal "
        "per group of rollouts, rare patterns are counted in one round (ours, as in the recorded studies)",
    )
    window: int = Field(
        10,
        ge=1,
        le=100_000,
        description="W: scores of a task in earlier steps that forgetting compares with; they are of trajectories, "
        "or with definition group the means of groups (ours; the paper has no value)",
    )
    threshold: float = Field(
        0.5,
        gt=0.0,
        lt=1.0,
        description="score that separates success from failure (paper: 0.5)",
        json_schema_extra=GROUP,
    )
    rare_percent: float = Field(
        5.0, gt=0.0, le=100.0, description="theta: patterns rarer than this are rare (5: an example in the paper)"
    )
    pattern: Literal["succeeded", "called", "sequence"] = Field(
        "succeeded",
        description="action pattern of a trajectory; succeeded: the set of tools that it called with success; "
        "called: the set of tools that it called; sequence: the tools of its calls in order (ours; the paper has no "
        "form)",
        json_schema_extra=PAPER,
    )
    rare_total: Literal["patterns", "occurrences"] = Field(
        "patterns",
        description="N of the rare signal; patterns: the number of different patterns observed in the run; "
        "occurrences: the number of their occurrences (ours; the paper says the total number of observed patterns)",
        json_schema_extra=PAPER,
    )
    rare_min_patterns: int = Field(
        50,
        ge=1,
        le=1_000_000_000,
        description="N_min: no pattern is rare while N is smaller (ours; the paper has no value)",
        json_schema_extra=PAPER,
    )
    rare_min_trajectories: int = Field(
        2,
        ge=1,
        le=1_000_000,
        description="trajectories of the run in which a rare pattern has to recur (ours; the paper has no number)",
        json_schema_extra=PAPER,
    )
    pattern_length: int = Field(
        2,
        ge=1,
        le=100,
        description="n of the API-name n-grams that the definition group counts as patterns (ours)",
        json_schema_extra=GROUP,
    )
    last_steps: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="number of steps at the end of a round whose trajectories carry signals; scores and patterns are "
        "kept of all steps; null: all steps (ours; the paper has no value, and 1 gives about as many signals as its "
        "Figure 3b)",
        json_schema_extra=PAPER,
    )
    contexts_per_iteration: int | None = Field(
        24,
        ge=1,
        le=100_000,
        description="failure contexts explored in one iteration, at most one per task and kind of signal (ours); "
        "null: no limit, as in the paper",
    )
    context_per: Literal["trajectory", "task"] = Field(
        "trajectory",
        description="contexts without a limit; trajectory: one for each trajectory and kind that marks it (the "
        "paper, section 3.2); task: one for each task and kind (ours)",
        json_schema_extra=requires({"contexts_per_iteration": None}),
    )
    share_forgetting: float = Field(
        0.3, ge=0.0, le=1.0, description="share of contexts for forgetting (ours)", json_schema_extra=LIMITED
    )
    share_boundary: float = Field(
        0.5, ge=0.0, le=1.0, description="share of contexts for boundary (ours)", json_schema_extra=LIMITED
    )
    share_rare: float = Field(
        0.2, ge=0.0, le=1.0, description="share of contexts for rare (ours)", json_schema_extra=LIMITED
    )
    share_unsolved: float = Field(
        0.5,
        gt=0.0,
        le=1000.0,
        description="weight of contexts for unsolved where kinds lists it, beside the shares of the paper's kinds, "
        "which sum to 1: 0.5 gives it a third of the contexts (ours)",
        json_schema_extra=requires(LISTED, SIGNALS, {"contexts_per_iteration": GIVEN}),
    )
    kinds: tuple[SignalKind, ...] = Field(
        PAPER_KINDS,
        min_length=1,
        description="kinds of signals in use, by default the paper's; the shares of those listed are scaled to sum to "
        "1; unsolved marks failures at calls without any success in the window (ours)",
        json_schema_extra=requires(SIGNALS),
    )
    unsolved: Literal["shape", "function"] = Field(
        "shape",
        description="what had no success; shape: the reference's whole sequence of calls, which includes the case "
        "that one of its functions had none; function: one of the reference's functions (ours)",
        json_schema_extra=requires(LISTED),
    )
    unsolved_rounds: int = Field(
        3,
        ge=1,
        le=100_000,
        description="window of unsolved: rounds in which nothing succeeded, the present one included (ours)",
        json_schema_extra=requires(LISTED),
    )
    contexts: Literal["signals", "random", "unguided", "coverage"] = Field(
        "signals",
        description="source of contexts; signals: the signals; random: calls drawn uniformly from the round's "
        "trajectories; unguided: start states, explored without guidance with as many environment calls; coverage: "
        "tools that no task calls, then the tools and pairs of tools that the fewest tasks call (the last three: "
        "ours, baselines)",
    )
    uncovered: int = Field(
        0,
        ge=0,
        le=100_000,
        description="number of an iteration's contexts that come from coverage, as with contexts: coverage, in place "
        "of signals; it is part of contexts_per_iteration, or added to the signals' contexts where that is null "
        "(ours)",
        json_schema_extra=requires(SIGNALS),
    )
    coverage_by: Literal["tasks", "need"] = Field(
        "tasks",
        description="which contexts from coverage come first; tasks: those of tools that the fewest tasks call; "
        "need: those of tools with few tasks at whose calls rollouts fail, where a tool that no rollout was asked "
        "for counts as half known (ours)",
        json_schema_extra=requires({"contexts": "coverage", "uncovered": Above(0)}),
    )
    experimental: ExperimentalSignals = ExperimentalSignals()

    @property
    def limit(self) -> int:
        """Return ``contexts_per_iteration`` where it is a number, as every choice among contexts needs it.

        Raises ValueError for null, which such a choice refuses beforehand.
        """
        if self.contexts_per_iteration is None:
            raise ValueError("signals.contexts_per_iteration is null: there is no limit to choose by")
        return self.contexts_per_iteration

    @property
    def for_signals(self) -> int | None:
        """Return the contexts that signals may have in an iteration; None without a limit."""
        return None if self.contexts_per_iteration is None else self.contexts_per_iteration - self.uncovered

    @property
    def from_coverage(self) -> int:
        """Return the contexts of an iteration that come from coverage."""
        return self.limit if self.contexts == "coverage" else self.uncovered

    @property
    def found(self) -> tuple[SignalKind, ...]:
        """Return the kinds that a round is read for: the paper's, listed or not, and others that are listed."""
        return tuple(kind for kind in SignalKind if kind in PAPER_KINDS or kind in self.kinds)

    def shares(self) -> dict[SignalKind, float]:
        """Return the share of each kind that is listed, scaled to sum to 1."""
        shares = {
            SignalKind.FORGETTING: self.share_forgetting,
            SignalKind.BOUNDARY: self.share_boundary,
            SignalKind.RARE: self.share_rare,
            SignalKind.UNSOLVED: self.share_unsolved,
        }
        if set(self.kinds) == set(PAPER_KINDS):
            return {kind: shares[kind] for kind in PAPER_KINDS}
        total = sum(shares[kind] for kind in self.kinds)
        return {kind: share / total for kind, share in shares.items() if kind in self.kinds}

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        total = self.share_forgetting + self.share_boundary + self.share_rare
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"share_forgetting + share_boundary + share_rare is {total:g}: make it 1")
        return self

    @model_validator(mode="after")
    def _kinds_fit(self) -> Self:
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"'kinds' lists a kind twice: {', '.join(self.kinds)}")
        if not any(getattr(self, f"share_{kind}") for kind in self.kinds):
            raise ValueError(f"'kinds' lists only kinds whose share is 0: {', '.join(self.kinds)}")
        return self

    @model_validator(mode="after")
    def _kinds_can_be_found(self) -> Self:
        if SignalKind.UNSOLVED in self.kinds and self.definition == "group":
            raise ValueError("'kinds' lists unsolved, which definition: group cannot find: remove one of them")
        return self

    @model_validator(mode="after")
    def _coverage_leaves_room(self) -> Self:
        if self.uncovered and self.contexts_per_iteration is not None and self.uncovered >= self.contexts_per_iteration:
            raise ValueError(
                f"'uncovered' is {self.uncovered} of contexts_per_iteration: {self.contexts_per_iteration}, and leaves "
                "none for signals: make it smaller, or choose contexts: coverage"
            )
        return self

    @model_validator(mode="after")
    def _baselines_have_a_limit(self) -> Self:
        if self.contexts_per_iteration is None and self.contexts != "signals":
            raise ValueError(
                f"'contexts_per_iteration' is null, and contexts: {self.contexts} needs a number: give one"
            )
        return self
