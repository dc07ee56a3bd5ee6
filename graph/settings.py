"""The sections of a recipe, read from YAML plus overrides, strict about unknown keys."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from agents.settings import RolesSettings
from environments.base import Environment, InputError
from environments.benchmark import AnyBenchmark
from environments.settings import GIVEN, EnvironmentSettings, Section, VerificationSettings, requires
from evaluation.settings import EvaluationSettings
from memory.jsonl import leaves
from memory.settings import OFFICIAL, MemorySettings, TaskSettings
from training.settings import PolicySettings, SamplingSettings, TrainingSettings
from training.signals import SignalSettings

YEAR = 365 * 24 * 3600.0  # upper bound of a deadline in seconds (ours)


class DeadlineSettings(Section):
    """Seconds after which a child process is ended and the command fails (ours)."""

    round: float = Field(24 * 3600.0, gt=0, le=YEAR, description="one round of training")
    evaluation: float = Field(
        6 * 3600.0,
        gt=0,
        le=YEAR,
        description="one evaluation, before or after a round",
        json_schema_extra=requires({"evaluation.set": GIVEN, "evaluation.tasks": GIVEN}),
    )


class PlanSettings(Section):
    """The machine and the rates that `coevolve plan` counts with (ours); no run reads them."""

    gpus: int | None = Field(
        None, ge=1, le=100_000, description="GPUs of the machine; null: one for each process and server"
    )
    gib: float | None = Field(None, gt=0, le=1e6, description="GiB of each GPU; null: those of this machine")
    gpu_seconds: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="GPU seconds of one rollout, with all that its run does beside; null: hours are not known",
    )
    contexts: float | None = Field(
        None, gt=0, le=1e9, description="contexts of one iteration on average; null: as many as there can be"
    )
    prompt_tokens: float | None = Field(None, gt=0, le=1e9, description="prompt tokens of a chat request on average")
    completion_tokens: float | None = Field(
        None, gt=0, le=1e9, description="completion tokens of a chat request on average"
    )
    discordance: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of tasks that one of two arms solves and the other does not",
    )
    cluster: float = Field(
        1.0, ge=1, le=1e6, description="tasks of an evaluation set that share a scenario or an index"
    )


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
    evaluation: EvaluationSettings = Field(EvaluationSettings(), validate_default=True)
    deadlines: DeadlineSettings = DeadlineSettings()
    plan: PlanSettings = PlanSettings()

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
    def _words_are_the_scripted_abstractors(self) -> Self:
        if self.training.expert is not None and self.training.expert.reword and "abstractor" in self.roles.by_chat():
            raise ValueError(
                "training.expert.reword writes user turns anew by rules, which would replace those of "
                "roles.abstractor of kind chat: set it to false"
            )
        return self

    @model_validator(mode="after")
    def _verification_has_its_model(self) -> Self:
        mode, validator = self.verification.mode, self.roles.validator
        if mode != "deterministic" and validator is None:
            raise ValueError(
                f"verification.mode is {mode}, which needs a chat model that carries out drafts: set roles.validator"
            )
        shortest, most = self.roles.exploration.min_reference_calls, self.verification.max_calls
        if mode != "agent" and shortest > most:
            raise ValueError(
                f"roles.exploration.min_reference_calls ({shortest}) is above verification.max_calls ({most}): every "
                "draft would be refused"
            )
        return self


NOT_SHOWN = "(not shown)"
"""What stands for the value of an option of a user's own environment."""


def dotted(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as plain values by dotted key, as others may see them; an empty section is a value.

    Reports, cards and trackers show these. Options of a packaged benchmark are what its type declares, and hold no
    secret. Arguments of a user's own callable may be anything, so that their values are left out.
    """
    plain = settings.model_dump(mode="json")
    if settings.environment.is_own:
        plain["environment"]["options"] = dict.fromkeys(settings.environment.options, NOT_SHOWN)
    return {".".join(keys): value for keys, value in leaves(plain)}


def changed(settings: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Return value and default of each setting that differs, by dotted key; the default is None for a new key."""
    default = dotted(RunSettings())
    return {
        key: (value, default.get(key))
        for key, value in dotted(settings).items()
        if key not in default or default[key] != value
    }


def check_starts(settings: SignalSettings, environment: Environment) -> None:
    """Raise InputError where contexts are to begin in start states, and the environment has none."""
    key = f"contexts: {settings.contexts}" if settings.contexts in ("unguided", "coverage") else ""
    if key and not environment.starts():
        raise InputError(
            f"signals.{key} needs a start state, and starts() of the environment {environment.name} is empty: give it "
            "one"
        )
    offered = [set(start.tools) for start in environment.starts()] if settings.functions else []
    for names in settings.functions or ():
        if not any(offers.issuperset(names) for offers in offered):
            raise InputError(f"signals.functions: no start state of {environment.name} offers {' and '.join(names)}")


def check_benchmark(settings: RunSettings, source: str, benchmark: AnyBenchmark | None = None) -> None:
    """Raise InputError, one sentence that begins with ``source``, for a setting that the benchmark does not support.

    ``benchmark`` is the opened environment's. Without it no module that the settings name is imported, and a benchmark
    that only an import could show is not checked.
    """
    environment, chosen = settings.environment, settings.evaluation.set
    official = settings.tasks.initial == OFFICIAL
    expert, ruled = settings.training.expert, settings.roles.exploration.of_general_rules()
    ruled = None if ruled is None else f"roles.exploration.{ruled}"
    if expert is not None and expert.reword:
        ruled = "training.expert.reword"
    if chosen is None and not official and ruled is None:
        return
    benchmark = benchmark or environment.stated_benchmark
    if benchmark is None:
        return
    if chosen is not None and not benchmark.evaluation_sets:
        raise InputError(
            f"{source}: evaluation: {environment.name} has no evaluation set {chosen}: set evaluation.set to null"
        )
    if ruled is not None and benchmark.scripted_roles is not None:
        raise InputError(
            f"{source}: {ruled}: {environment.name} has scripted roles of its own, which would ignore it: remove it"
        )
    if official and not benchmark.has_official_tasks:
        raise InputError(
            f"{source}: tasks.initial: {environment.name} has no official tasks: name a file, or leave it out"
        )
