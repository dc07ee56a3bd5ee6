"""Settings of the signals: how weaknesses are found in a round's rollouts, and which of them are followed."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from environments.settings import Section, requires
from memory.records import SignalKind

SIGNALS = requires({"contexts": "signals"})


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
        tuple(SignalKind),
        min_length=1,
        description="kinds of signals that are followed",
        json_schema_extra=SIGNALS,
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
        json_schema_extra=SIGNALS,
    )

    @property
    def limit(self) -> int:
        """Return ``contexts_per_iteration``, which is a number with every source but the signals."""
        assert self.contexts_per_iteration is not None
        return self.contexts_per_iteration

    @model_validator(mode="after")
    def _kinds_differ(self) -> Self:
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"'kinds' lists a kind twice: {', '.join(self.kinds)}")
        return self

    @model_validator(mode="after")
    def _baselines_have_a_limit(self) -> Self:
        if self.contexts_per_iteration is None and self.contexts != "signals":
            raise ValueError(
                f"'contexts_per_iteration' is null, and contexts: {self.contexts} needs a number: give one"
            )
        return self
