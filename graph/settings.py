"""The sections of a recipe, read from YAML plus overrides, strict about unknown keys."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from agents.settings import RolesSettings
from environments.base import InputError
from environments.settings import EnvironmentSettings, VerificationSettings
from evaluation.settings import EvaluationSettings
from memory.settings import OFFICIAL, EvolutionSettings, MemorySettings, Section, TaskSettings
from training.rollout.settings import SamplingSettings
from training.settings import PolicySettings, SignalSettings, TrainingSettings

YEAR = 365 * 24 * 3600.0  # upper bound of a deadline in seconds (ours)


class DeadlineSettings(Section):
    """Timeouts of child processes in seconds (ours); past one, the process is ended and the command fails."""

    round: float = Field(24 * 3600.0, gt=0, le=YEAR, description="one round of training")
    evaluation: float = Field(6 * 3600.0, gt=0, le=YEAR, description="one evaluation, before or after a round")


class RunSettings(Section):
    """The settings of one run; a recipe file holds exactly these sections."""

    seed: int = Field(0, ge=0, lt=2**63, description="every random draw of the run derives from it")
    iterations: int = Field(3, ge=1, le=100_000, description="iterations of the run in total")
    environment: EnvironmentSettings = EnvironmentSettings()
    policy: PolicySettings = PolicySettings()
    training: TrainingSettings = TrainingSettings()
    sampling: SamplingSettings = SamplingSettings()
    signals: SignalSettings = SignalSettings()
    roles: RolesSettings = RolesSettings()
    verification: VerificationSettings = VerificationSettings()
    memory: MemorySettings = MemorySettings()
    tasks: TaskSettings = TaskSettings()
    evolution: EvolutionSettings = EvolutionSettings()
    evaluation: EvaluationSettings = Field(EvaluationSettings(), validate_default=True)
    deadlines: DeadlineSettings = DeadlineSettings()

    @model_validator(mode="after")
    def _one_admission_an_iteration(self) -> Self:
        numbers = self.tasks.admissions
        if numbers is not None and len(numbers) != self.iterations:
            raise ValueError(
                f"tasks.admissions has {len(numbers)} numbers and the run {self.iterations} iterations: give one each"
            )
        return self

    @model_validator(mode="after")
    def _a_round_has_the_steps_that_are_read(self) -> Self:
        read, steps = self.signals.last_steps, self.training.steps
        if read is not None and read > steps:
            raise ValueError(
                f"signals.last_steps is {read} and a round has {steps} steps (training.steps): make it {steps} at most"
            )
        return self

    @model_validator(mode="after")
    def _weights_reach_the_sampler(self) -> Self:
        complaint = self.sampling.complaint(self.policy.lora is not None)
        if complaint is not None:
            raise ValueError(complaint)
        return self

    @model_validator(mode="after")
    def _verification_has_its_model(self) -> Self:
        mode, validator = self.verification.mode, self.roles.validator
        if mode != "deterministic" and validator is None:
            raise ValueError(
                f"verification.mode is {mode}, which needs a chat model that carries out drafts: set roles.validator"
            )
        if mode == "deterministic" and validator is not None:
            raise ValueError(
                "roles.validator is for verification.mode agent and both, deterministic would ignore it: remove it"
            )
        shortest, most = self.roles.exploration.min_reference_calls, self.verification.max_calls
        if mode != "agent" and shortest > most:
            raise ValueError(
                f"roles.exploration.min_reference_calls ({shortest}) is above verification.max_calls ({most}): every "
                "draft would be refused"
            )
        return self

    @model_validator(mode="after")
    def _baselines_ask_only_their_models(self) -> Self:
        unasked = {"signals": (), "random": ("reflector",), "unguided": ("reflector",)}
        for name in unasked[self.signals.contexts]:
            if name in self.roles.chat():
                raise ValueError(
                    f"signals.contexts is {self.signals.contexts}, which asks no {name}: "
                    f"roles.{name} of kind chat would be ignored, remove it"
                )
        return self


def check_benchmark(settings: RunSettings, source: str) -> None:
    """Raise InputError, one sentence that begins with ``source``, for a setting that the benchmark does not support.

    A benchmark named by an import path is imported only where a setting depends on it.
    """
    environment, chosen = settings.environment, settings.evaluation.set
    official, checks = settings.tasks.initial == OFFICIAL, settings.training.reward == "checks"
    if chosen is None and not official and not checks:
        return
    benchmark = environment.benchmark
    if chosen is not None and not benchmark.evaluation_sets:
        raise InputError(
            f"{source}: evaluation: {environment.name} has no evaluation set {chosen}: set evaluation.set to null"
        )
    if official and not benchmark.has_official_tasks:
        raise InputError(
            f"{source}: tasks.initial: {environment.name} has no official tasks: name a file, or leave it out"
        )
    if checks and not benchmark.reports_partial:
        raise InputError(
            f"{source}: training.reward: checks needs an environment that reports which checks passed, "
            f"{environment.name} reports success alone: set it to success"
        )
