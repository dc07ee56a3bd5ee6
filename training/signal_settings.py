"""Settings of the signals: how weaknesses are found in a round's rollouts, and which of them are followed."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from environments.sections import Section, requires
from memory.records import SignalKind

SIGNALS = requires({"contexts": "signals"})


class SignalSettings(Section):
    """How weaknesses are found in a round's trajectories (CoEvolve, section 3.1), and which of them are followed."""

    window: int = Field(
        10,
        ge=1,
        le=100_000,
        description="W: scores of a task's trajectories in earlier steps that forgetting compares with (ours; the "
        "paper has no value)",
    )
    rare_percent: float = Field(
        5.0, gt=0.0, le=100.0, description="theta: patterns rarer than this are rare (5: an example in the paper)"
    )
    pattern: Literal["succeeded", "called", "sequence"] = Field(
        "succeeded",
        description="action pattern of a trajectory; succeeded: the set of tools that it called with success; "
        "called: the set of tools that it called; sequence: the tools of its calls in order (ours; the paper has no "
        "form)",
    )
    rare_min_patterns: int = Field(
        50,
        ge=1,
        le=1_000_000_000,
        description="N_min: no pattern is rare while N, the number of different patterns observed in the run, is "
        "smaller (ours; the paper has no value)",
    )
    rare_min_trajectories: int = Field(
        2,
        ge=1,
        le=1_000_000,
        description="trajectories of the run in which a rare pattern has to recur (ours; the paper has no number)",
    )
    last_steps: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="number of steps at the end of a round whose trajectories carry signals; scores and patterns are "
        "kept of all steps; null: all steps (ours; the paper has no value, and 1 gives about as many signals as its "
        "Figure 3b)",
    )
    contexts_per_iteration: int | None = Field(
        24,
        ge=1,
        le=100_000,
        description="failure contexts explored in one iteration, at most one per task and kind of signal (ours); "
        "null: one for each trajectory and kind that marks it, as in the paper (section 3.2)",
    )
    kinds: tuple[SignalKind, ...] = Field(
        tuple(SignalKind),
        min_length=1,
        description="kinds of signals that are followed, by default all of the paper's",
        json_schema_extra=SIGNALS,
    )
    contexts: Literal["signals", "random", "unguided", "coverage"] = Field(
        "signals",
        description="source of contexts; signals: the signals; random: calls drawn uniformly from the round's "
        "trajectories; unguided: start states, explored without guidance with as many environment calls; coverage: "
        "tools that no task calls, then the tools and pairs of tools that the fewest tasks call (the last three: "
        "ours, baselines)",
    )
    coverage_by: Literal["tasks", "need"] = Field(
        "tasks",
        description="which contexts from coverage come first; tasks: those of tools that the fewest tasks call; "
        "need: those of tools with few tasks at whose calls rollouts fail, where a tool that no rollout was asked "
        "for counts as half known (ours)",
        json_schema_extra=requires({"contexts": "coverage"}),
    )

    functions: tuple[Annotated[tuple[str, ...], Field(min_length=1, max_length=2)], ...] | None = Field(
        None,
        min_length=1,
        description="what contexts from coverage are of, in turn and in this order: functions, or pairs of them one "
        "after the other, each a list of one or two names; null: all functions of the start states (ours: a study's "
        "positive control names those that are known to fail)",
        json_schema_extra=requires({"contexts": "coverage"}, {"coverage_by": "tasks"}),
    )
    shuffled: bool = Field(
        False,
        description="whether each context keeps its start state and gets the reflection of another task's context with "
        "the same tools, where there is one (ours: a study's control, which shows whether reflection matters)",
        json_schema_extra=SIGNALS,
    )

    @property
    def limit(self) -> int:
        """Return ``contexts_per_iteration`` where it is a number, as every source but the signals needs it.

        Raises ValueError for null, which such a source refuses beforehand.
        """
        if self.contexts_per_iteration is None:
            raise ValueError("signals.contexts_per_iteration is null: there is no limit to choose by")
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
