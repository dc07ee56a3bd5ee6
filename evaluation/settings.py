"""Settings of an evaluation: the recipe's section, and those of one call of ``evaluation.run``.

A field of ``LimitSettings`` is all that a new setting needs: it is a key of the recipe's section, an option of the
command, and part of the file that a run or a study hands to the command with ``--settings FILE``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError

from agents.settings import BudgetSettings, ChatSettings
from environments.base import Environment, InputError
from environments.checkout import INITIAL_POLICY
from environments.registry import DEFAULT, benchmark_of
from environments.settings import GIVEN, Section, requires
from memory.jsonl import complaint, read_jsonl, read_yaml
from memory.records import Task
from training.device_memory import Dtype
from training.settings import IN_PROCESS, RenderingOptions, SamplingSettings

if TYPE_CHECKING:
    from agents.chat.endpoint import Endpoint


SCORED = requires({"set": GIVEN, "tasks": GIVEN})


class LimitSettings(Section):
    """How long an attempt may be, in a run's own evaluations, in a study's and in those by hand."""

    limit: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="attempt the first N tasks of each group only",
        json_schema_extra=SCORED,
    )
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="messages of an episode at most; null: training.max_episode_steps in a run, else no limit",
        json_schema_extra=SCORED,
    )
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=1_048_576,
        description="sampled tokens of a message at most; null: training.max_new_tokens in a run, else by "
        "rendering and benchmark",
        json_schema_extra=SCORED,
    )
    max_tokens: int | None = Field(
        None,
        ge=16,
        le=1_048_576,
        description="tokens of an episode at most; null: training.max_tokens in a run, else by rendering and benchmark",
        json_schema_extra=SCORED,
    )


class AttemptSettings(LimitSettings):
    """How each task is attempted in a study and by hand; a run attempts tasks as it trains on them."""

    batch: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="episodes decoded together; null: the benchmark's number, else 128, and at most what half of the "
        "free memory holds",
    )
    max_actions: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="actions in one user turn at most; null: as the environment has it, else 20",
    )
    strict_messages: bool = Field(
        False,
        description="refuse a message with all of its calls if one of them is malformed or of a tool that is not on "
        "offer (SEAL as released), as training.strict_messages",
    )


class EvaluationSettings(LimitSettings):
    """The tasks that are scored before and after each round."""

    set: str | None = Field("templated-dev", description="evaluation set to score; null: none")
    tasks: str | None = Field(
        None,
        description="JSONL file of held-out tasks to score: D_0 and drafts that equal one are refused (ours)",
        json_schema_extra=requires({"set": None}),
    )

    @property
    def scored(self) -> str | None:
        """The name of what is scored, None where nothing is."""
        return self.set if self.tasks is None else Path(self.tasks).name


LOOKUP, NEAREST_TURN, BM25_LOOKUP = "lookup", "nearest-turn", "bm25-lookup"
CONTROLS = (LOOKUP, NEAREST_TURN, BM25_LOOKUP)
"""The models that are none: baselines over training tasks (``evaluation.baselines``)."""

ENDPOINT = "openai:"
"""The prefix of the name of a model that an OpenAI-compatible endpoint serves."""


SERVED_ROLE = "policy"
"""The role of a served model: part of its ledger's lines."""


class EndpointSettings(Section):
    """How a model on an endpoint is asked; for ``model: openai:NAME`` alone. Defaults are those of a chat role."""

    base_url: str | None = Field(
        None,
        description="openai: the endpoint, whose key is in the variable of COEVOLVE_KEYS for its address, else in "
        "OPENAI_API_KEY; none: OPENAI_BASE_URL, or OpenAI's own",
    )
    temperature: float = Field(0.0, ge=0.0, le=100.0, description="sampling temperature, 0 is greedy (paper: 0)")
    concurrency: int = Field(
        16, ge=1, le=1024, description="openai: most requests in flight, one per open episode (ours)"
    )
    budget_tokens: int | None = Field(None, ge=1, le=10**15, description="openai: stop after so many tokens")
    budget_calls: int | None = Field(None, ge=1, le=10**12, description="openai: stop after so many requests")

    @property
    def budget(self) -> BudgetSettings:
        """The limits of all that is spent."""
        return BudgetSettings(tokens=self.budget_tokens, calls=self.budget_calls)

    def as_role(self, model: str) -> ChatSettings:
        """Return the settings of requests to ``model``, empty where an environment variable names it.

        Raises InputError that names the option which does not fit.
        """
        try:
            return ChatSettings(model=model or None, base_url=self.base_url, temperature=self.temperature)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            option = str(first["loc"][0]).replace("_", "-") if first["loc"] else "model"
            raise InputError(f"--{option} {first['msg'].removeprefix('Value error, ')}") from None


def sampling_on(servers: Sequence[str]) -> SamplingSettings:
    """Return the settings of sampling on these vLLM servers. Raises InputError for an address that is not one."""
    try:
        return SamplingSettings(engine="vllm_server", servers=tuple(servers))
    except ValidationError as error:
        raise InputError(f"--servers: {complaint(error).replace('Value error, ', '')}") from None


class ScoringSettings(AttemptSettings, EndpointSettings, RenderingOptions):
    """Settings of one call of ``evaluation.run``, each an option of the command: which tasks, which model, how."""

    environment: str = Field(DEFAULT, description="a benchmark, or module:callable of your own environment")
    options: dict[str, JsonValue] = Field(
        {}, description="options of the environment, as environment.options of a recipe"
    )
    evaluation_set: tuple[str, ...] = Field(
        (),
        description="evaluation set of the benchmark, may be repeated where one environment serves several: an unknown "
        "name is answered with the ones there are",
    )
    tasks: Path | None = Field(None, description="file of tasks, as tasks.jsonl of a run")
    model: str = Field(
        INITIAL_POLICY,
        description="folder or hub id of a causal language model; openai:NAME, a model that an OpenAI-compatible "
        "endpoint serves; or, with --train, a control without a model: lookup (the nearest training clause), "
        "nearest-turn (the nearest training turn) or bm25-lookup (a function by its documentation)",
    )
    train: Path | None = Field(None, description="with a control: file of training tasks")
    controls: bool = Field(
        False, description="with --train: score every control, and after them the --model where one is given (ours)"
    )
    samples: int = Field(
        1,
        ge=1,
        le=1024,
        description="attempts at each task, of a local model with a --temperature: success is their mean, beside it "
        "pass@k, k at most 8, and the share of tasks with both results",
    )
    sampling: SamplingSettings = Field(IN_PROCESS, description="the engine, as section sampling of a recipe")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the model runs")
    dtype: Dtype = Field(
        "float32", description="type of the weights; auto: bfloat16 where the device has instructions for it"
    )
    threads: int = Field(1, ge=1, description="CPU threads")
    access_log: Path | None = Field(
        None,
        description="test access log, for held-out sets: of evaluation.study, where it alone opens them; else the log "
        "to which this access is added, with date, commit, split, hash of its ids, and model",
    )

    @property
    def models(self) -> tuple[str, ...]:
        """The names of what is scored: the model; or every control, and the model where it was given."""
        given = (self.model,) if not self.controls or "model" in self.model_fields_set else ()
        return tuple(dict.fromkeys((*CONTROLS, *given))) if self.controls else given

    @property
    def served(self) -> str | None:
        """The name of the model at an endpoint, None for another model; empty where a variable shall name it."""
        return self.model.removeprefix(ENDPOINT) if self.model.startswith(ENDPOINT) else None

    def endpoint(self) -> Endpoint:
        """Return where the requests to the served model go.

        Raises InputError for a missing model or key, and for options that do not fit.
        """
        from agents.chat.endpoint import resolve

        assert self.served is not None, "the model is not one of an endpoint"
        return resolve(self.as_role(self.served), SERVED_ROLE, commanded=True)

    def named(self) -> Self:
        """Return the settings with the served model's name as it was resolved; unchanged for another model.

        Raises InputError where nothing names it.
        """
        if self.served is None:
            return self
        from agents.chat.endpoint import model_of

        name = model_of(self.as_role(self.served), SERVED_ROLE, commanded=True)
        return self.model_copy(update={"model": f"{ENDPOINT}{name}"})

    def check_model(self) -> None:
        """Raise InputError for options that the model would ignore, and for a control without its tasks."""
        without = all(name in CONTROLS for name in self.models)
        if (self.train is None) == (without or self.controls):
            raise InputError(
                f"--train FILE goes with --model {LOOKUP} (or {', '.join(CONTROLS[1:])}), or --controls: give both "
                "or neither"
            )
        if self.controls and self.served is not None:
            raise InputError("--controls are scored beside a local model: score the endpoint's in a command of its own")
        local = ("device", "dtype", "threads", "sampling", *RenderingOptions.model_fields)
        remote = (name for name in EndpointSettings.model_fields if name != "temperature")
        given = self._given(*(local if self.served is not None else remote))
        if given:
            option = "--servers" if given[0] == "sampling" else f"--{given[0].replace('_', '-')}"
            why = "decides how a local model runs" if self.served is not None else f"is for --model {ENDPOINT}NAME"
            raise InputError(f"{option} {why}, {self.model} would ignore it: remove it")
        if without and self._given("sampling"):
            raise InputError("--servers samples from a model, a control has none: remove it")
        if without and self._given("samples", "temperature"):
            raise InputError("--samples and --temperature sample from a model, a control has none: remove them")
        if self.samples > 1 and self.served is not None:
            raise InputError("--samples samples from a local model, an endpoint's is attempted once: remove it")
        if self.samples > 1 and not self.temperature:
            raise InputError("--samples: greedy attempts at a task are all equal: give --temperature 1, or remove it")


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML or JSON file of ``ScoringSettings``, those only that it states.

    Raises InputError that names the file and the key that is unknown or wrong. A file may come from anyone, so that it
    cannot choose where a key goes.
    """
    tree = read_yaml(path, "file of settings")
    try:
        stated = ScoringSettings.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error)}") from None
    if stated.base_url is not None:
        raise InputError(
            f"{path}: base_url decides where a key goes, which no file may: give --base-url on the command line, or "
            "set the environment variable OPENAI_BASE_URL"
        )
    return stated.model_dump(exclude_unset=True)


def check_evaluation(settings: EvaluationSettings, environment: Environment | None) -> None:
    """Raise InputError for an evaluation set that ``environment`` does not have, that is not installed or that a run
    may not open, and for a file of tasks that cannot be read, is empty or is of another environment. No set is opened.

    Without an environment a file of tasks is read, and a set is not checked.
    """
    path, name = settings.tasks, settings.set
    if path is not None:
        tasks = read_jsonl(Path(path), Task)
        if not tasks:
            raise InputError(f"evaluation.tasks: {path} holds no task: name another file, or set it to null")
        strange = [task for task in tasks if environment is not None and task.environment != environment.name]
        if strange and environment is not None:
            raise InputError(
                f"evaluation.tasks: task {strange[0].id} of {path} is of {strange[0].environment}, the run acts in "
                f"{environment.name}: name a file of its tasks"
            )
        return
    if name is None or environment is None:
        return
    benchmark = benchmark_of(environment)
    known = benchmark.evaluation_sets
    if name not in known:
        instead = f"choose one of {', '.join(known)}" if known else "set it to null"
        raise InputError(f"evaluation.set: no evaluation set is called {name!r} in {environment.name}: {instead}")
    if known[name]:
        raise InputError(
            f"evaluation.set: {name} is held out, and a run would score on it again and again: choose a development "
            "set, or null"
        )
    try:
        benchmark.evaluation_set(name)
    except InputError as missing:
        raise InputError(f"evaluation.set: {str(missing).removeprefix(f'--evaluation-set {name}: ')}") from None
