"""Settings of an evaluation: the recipe's section, and those of one call of ``evaluation.run``.

A field of ``AttemptSettings`` is all that a new setting needs: it is a key of the recipe's section, an option of the
command, and part of the file that a run or a study hands to the command with ``--settings FILE``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from environments.base import InputError
from environments.checkout import INITIAL_POLICY
from environments.registry import DEFAULT
from memory.jsonl import complaint
from memory.settings import Section
from memory.strict_yaml import read_yaml


class AttemptSettings(Section):
    """How each task is attempted, in a run's own evaluations and in those by hand."""

    limit: int | None = Field(
        None, ge=1, le=1_000_000, description="attempt the first N tasks of each group only (labelled as such)"
    )
    batch: int | None = Field(
        None, ge=1, le=65_536, description="episodes decoded together; null: the benchmark's number, else 128"
    )
    max_actions: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="actions in one user turn at most; null: as the environment has it, else 20",
    )
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="messages of the model in one episode at most, over all user turns; null: "
        "training.max_episode_steps in a run, else no limit",
    )
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=1_048_576,
        description="sampled tokens of one message at most; null: training.max_new_tokens in a run, else by rendering "
        "and benchmark",
    )
    max_tokens: int | None = Field(
        None,
        ge=16,
        le=1_048_576,
        description="tokens of one episode at most; null: training.max_tokens in a run, else by rendering and "
        "benchmark",
    )


class EvaluationSettings(AttemptSettings):
    """The tasks that are scored before and after each round: a fixed evaluation set, or a file where there is none."""

    set: str | None = Field("templated-dev", description="evaluation set to score; null scores none")
    tasks: str | None = Field(
        None,
        description="a JSONL file of held-out tasks to score, for an environment without evaluation sets: D_0 and "
        "drafts are refused where they equal one of them (ours)",
    )

    @model_validator(mode="after")
    def _something_is_scored(self) -> Self:
        # A default that is written out says nothing: a run's settings.yaml holds every key.
        shared = AttemptSettings.model_fields
        given = [key for key, field in shared.items() if getattr(self, key) != field.default]
        if self.scored is None and given:
            raise ValueError(
                f"'{given[0]}' is for an evaluation set, and none is scored: remove it, or name a set in 'set'"
            )
        if self.set is not None and self.tasks is not None:
            raise ValueError("'tasks' is scored in place of an evaluation set: set 'set' to null, or remove it")
        return self

    @property
    def scored(self) -> str | None:
        """The name of what is scored, None where nothing is."""
        return self.set if self.tasks is None else Path(self.tasks).name


class ScoringSettings(AttemptSettings):
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
    category: str | None = Field(None, description="category of the benchmark's official tasks, or all")
    tasks: Path | None = Field(None, description="file of tasks, as tasks.jsonl of a run")
    split: str = Field("all", description="with --category: its tasks of one split only")
    model: str = Field(
        INITIAL_POLICY,
        description="folder or hub id of a causal language model; or, with --train, lookup (the nearest training "
        "clause) or constant (the most frequent training turn): baselines without a model",
    )
    train: Path | None = Field(None, description="with --model lookup or constant: file of training tasks")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the model runs")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="type of the weights")
    threads: int = Field(1, ge=1, description="CPU threads")
    access_log: Path | None = Field(
        None,
        description="test access log, for held-out sets: of evaluation.study, where it alone opens them; else the log "
        "to which this access is added, with date, commit, split, hash of its ids, and model",
    )
    thinking: bool | None = Field(
        None, description="enable_thinking of the chat template; null: as trained, else the template's default"
    )
    trust_agent_code: bool = Field(False, description="run agents' code where the kernel cannot isolate it")


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML or JSON file of ``ScoringSettings``, those only that it states.

    Raises InputError that names the file and the key that is unknown or wrong.
    """
    tree = read_yaml(path, "file of settings")
    try:
        stated = ScoringSettings.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error)}") from None
    return stated.model_dump(exclude_unset=True)
