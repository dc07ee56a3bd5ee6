"""Define the settings of the environment and of verification."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationInfo, field_validator

from environments.benchmark import AnyBenchmark
from environments.registry import (
    DEFAULT,
    find_benchmark,
    is_import_path,
    packaged,
    parse_options,
    stated_benchmark,
    unknown,
)
from environments.sections import Section


class EnvironmentSettings(Section):
    """The environment's name and its options; a benchmark's options are written out with their defaults."""

    model_config = ConfigDict(validate_default=True)

    name: str = Field(
        DEFAULT,
        description="a benchmark's folder in environments/, or module:attribute of a benchmark or environment of "
        "your own",
    )
    options: dict[str, JsonValue] = Field(
        {},
        description="options of the benchmark (options_type in its benchmark.py), or arguments of your own callable",
    )

    @field_validator("name")
    @classmethod
    def _openable(cls, name: str) -> str:
        if not is_import_path(name) and packaged(name) is None:
            raise ValueError(unknown(name))
        return name

    @field_validator("options")
    @classmethod
    def _options_of_the_benchmark(cls, value: dict[str, JsonValue], info: ValidationInfo) -> dict[str, JsonValue]:
        benchmark = packaged(info.data.get("name", ""))
        if benchmark is None:  # an import path is imported when the environment is opened
            return value
        written: dict[str, JsonValue] = parse_options(benchmark, value).model_dump(mode="json")
        return written

    @property
    def is_own(self) -> bool:
        """Return whether the user brings it: by an import path, or in the options of a benchmark made for that.

        No command that only reads opens it, and its options, which may hold anything, are shown to nobody else.
        """
        found = packaged(self.name)
        return is_import_path(self.name) or (found is not None and found.brought)

    @property
    def benchmark(self) -> AnyBenchmark:
        """The benchmark that ``name`` names. Raises InputError for an import path that cannot be imported."""
        return find_benchmark(self.name)

    @property
    def stated_benchmark(self) -> AnyBenchmark | None:
        """The benchmark, without importing a module that ``name`` names: see ``environments.registry``."""
        return stated_benchmark(self.name)

    @property
    def max_actions(self) -> int | None:
        """Actions in one user turn before the environment cuts it off; None where it has no such option."""
        benchmark = self.benchmark
        return benchmark.max_actions(parse_options(benchmark, self.options))

    @property
    def for_evaluation(self) -> dict[str, JsonValue]:
        """The options that the evaluations of a run also need."""
        benchmark = self.benchmark
        return benchmark.evaluation_options(parse_options(benchmark, self.options))

    @property
    def verification_label(self) -> str | None:
        """The label of tasks that are verified without comparing states, None where states are compared."""
        benchmark = self.benchmark
        return benchmark.verification_label(parse_options(benchmark, self.options))


class VerificationSettings(Section):
    """Checks of a draft, beside those that are never off: decontamination, duplicates, whether it opens."""

    mode: Literal["deterministic", "agent", "both"] = Field(
        "deterministic",
        description="who verifies drafts; deterministic: replays of the reference (ours); agent: a run of "
        "roles.validator, which reads request and reference, beside the checks that are never off (CoEvolve, section "
        "3.3); both: the replays have to accept, and then the agent (ours)",
    )
    max_calls: int = Field(6, ge=1, le=1000, description="most calls of a draft's reference, all turns together (ours)")
    enabled: bool = Field(
        True,
        description="false: outside D_0 a draft only has to open, and to be neither held out nor a duplicate "
        "(ours, ablation)",
    )
