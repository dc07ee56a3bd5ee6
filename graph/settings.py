"""The settings of a run, and how they are read from a recipe: YAML plus ``key=value`` overrides.

Validation is strict: an unknown key, a value of another type and a key given twice are errors that name the file
(or the override) and the key.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from agents.settings import RolesSettings
from environments.base import Environment, InputError
from environments.benchmark import AnyBenchmark
from environments.registry import is_import_path, look
from environments.settings import GIVEN, EnvironmentSettings, Section, VerificationSettings, requires, section_of
from evaluation.settings import EvaluationSettings
from memory.failures import MemorySettings
from memory.jsonl import changes_given, leaves, put, read_recipe
from memory.run import RunDirectory
from memory.tasks import OFFICIAL, TaskSettings
from training.device_memory import Dtype
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
    def _sections_agree(self) -> Self:
        numbers, read, steps = self.tasks.admissions, self.signals.last_steps, self.training.steps
        if numbers is not None and len(numbers) != self.iterations:
            raise ValueError(
                f"tasks.admissions has {len(numbers)} numbers and the run {self.iterations} iterations: give one each"
            )
        if read is not None and read > steps:
            raise ValueError(
                f"signals.last_steps is {read} and a round has {steps} steps (training.steps): make it {steps} at most"
            )
        writer = self.roles.abstractor.kind
        if self.training.expert is not None and self.training.expert.reword and writer != "scripted":
            raise ValueError(
                "training.expert.reword writes user turns anew by rules, which would replace those of "
                f"roles.abstractor of kind {writer}: set it to false"
            )
        mode = self.verification.mode
        if mode != "deterministic" and self.roles.validator is None:
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
    official, expert = settings.tasks.initial == OFFICIAL, settings.training.expert
    rule = settings.roles.exploration.of_general_rules()
    ruled = None if rule is None else f"roles.exploration.{rule}"
    if expert is not None and expert.reword:
        ruled = "training.expert.reword"
    if chosen is None and not official and ruled is None:
        return
    benchmark = benchmark or environment.stated_benchmark
    if benchmark is None:
        return
    wrong = None
    if chosen is not None and not benchmark.evaluation_sets:
        wrong = f"evaluation: {environment.name} has no evaluation set {chosen}: set evaluation.set to null"
    elif ruled is not None and benchmark.scripted_roles is not None:
        wrong = f"{ruled}: {environment.name} has scripted roles of its own, which would ignore it: remove it"
    elif official and not benchmark.has_official_tasks:
        wrong = f"tasks.initial: {environment.name} has no official tasks: name a file, or leave it out"
    if wrong is not None:
        raise InputError(f"{source}: {wrong}")


ENVIRONMENT_NAME = ("environment", "name")

_OTHER_FILES = {
    "base": "a study's recipe, which coevolve study runs",
    "compute_environment": "a configuration of accelerate, which no command reads: set training.launch in a recipe",
}
"""The first key of files that are taken for a recipe, and what each is."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> RunSettings:
    """Return the settings in the file at ``path`` with ``overrides`` (``dotted.key=value``, or ``@FILE``) on top.

    A recipe that ships with the project is also found by its name in the checkout (recipes/quickstart.yaml).
    Raises InputError with one sentence that names the file or override and the key.
    """
    recorded = path.with_name(RunDirectory.recorded_path.name)
    if path.name == RunDirectory.settings_path.name and os.path.lexists(recorded):
        RunDirectory.open(path.parent)  # the settings of a run, which may be anybody's
    tree = read_recipe(path)
    given: dict[tuple[str, ...], str] = {}
    for change in changes_given(overrides):
        put(tree, change.keys, change.value, f"--set {change.given}")
        given[change.keys] = change.given
    # The file is right for the environment that it names; another one may have been asked for on top of it.
    named = f"--set {given[ENVIRONMENT_NAME]} on top of {path}" if ENVIRONMENT_NAME in given else str(path)
    try:
        settings = RunSettings.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        section = tree.get("environment")
        name = section.get("name") if isinstance(section, dict) else None
        if ENVIRONMENT_NAME in given and isinstance(name, str) and is_import_path(name):
            look(name)  # a missing module is the likelier mistake than a recipe that is wrong for it
        raise InputError(_explain(error, path, given, named)) from error
    check_benchmark(settings, named)
    return settings


def with_known_dtype(settings: RunSettings, known: Dtype | None = None) -> RunSettings:
    """Return the settings as a run records them: auto is the type of a run's matrix products, ``known`` or found here.

    A run decides it once, so that every process of it, on another machine too, computes alike.
    """
    policy = settings.policy.model_copy(update={"dtype": known or settings.policy.known_dtype})
    return settings.model_copy(update={"policy": policy})


def _explain(error: ValidationError, path: Path, given: Mapping[tuple[str, ...], str], named: str) -> str:
    first = error.errors(include_url=False)[0]
    location = tuple(str(part) for part in first["loc"])
    override = next((text for keys, text in given.items() if keys[: len(location)] == location), None) or next(
        (text for keys, text in given.items() if location[: len(keys)] == keys), None
    )
    source = f"--set {override}" if override else named if location[:1] == ("environment",) else str(path)
    name = ".".join(location)
    if first["type"] == "extra_forbidden":
        if override is None and name in _OTHER_FILES:
            return f"{source}: not the recipe of a run, but {_OTHER_FILES[name]}"
        if location[0] == "roles" and location[-1] == "key_variable":
            return (
                f"{source}: unknown key '{name}': an address decides its key: remove it, and set the environment "
                "variable COEVOLVE_KEYS to ADDRESS=VARIABLE"
            )
        return f"{source}: unknown key '{name}'{_suggestion(location)}"
    message = first["msg"].removeprefix("Value error, ")
    where = f"{name}: " if name else ""  # a rule that spans sections names its keys itself
    return f"{source}: {where}{message[:1].lower()}{message[1:]}"


def _suggestion(location: tuple[str, ...]) -> str:
    """Return a hint: the nearest key of the section, else all of them."""
    model: type[BaseModel] | None = RunSettings
    for part in location[:-1]:
        model = None if model is None or part not in model.model_fields else section_of(model, part)
    if model is None:
        return ""
    near = difflib.get_close_matches(location[-1], model.model_fields, n=1)
    return f": did you mean '{near[0]}'?" if near else f": choose from {', '.join(model.model_fields)}"
