"""Settings of the engine that samples rollouts and a run's own evaluations."""

from __future__ import annotations

import os
from typing import Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from environments.addresses import Address
from environments.base import InputError
from environments.sections import Section, requires
from training.rollout.serving import VLLM_PYTHON, VLLM_VARIABLE, ServerSettings

__all__ = ["IN_PROCESS", "SERVERS_VARIABLE", "Correction", "Engine", "SamplingSettings", "WeightsWay"]

SERVERS_VARIABLE = "COEVOLVE_SERVERS"
"""Variable that names servers, separated by commas: those that a run started, or of a job whose machines change."""

Engine = Literal["in_process", "vllm_server", "vllm_colocate"]
WeightsWay = Literal["lora", "folder", "nccl"]
Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]

SERVER = requires({"engine": "vllm_server"})
VLLM = requires({"engine": ("vllm_server", "vllm_colocate")})


class SamplingSettings(Section):
    """Which engine samples (ours): the trainer's own model, vLLM servers, or vLLM in the trainer's process."""

    engine: Engine = Field(
        "in_process",
        description="in_process: the trainer's model decodes; vllm_server: vLLM servers; vllm_colocate: vLLM in the "
        "trainer's process, which has to have it installed (ours)",
    )
    servers: tuple[Address, ...] = Field(
        (),
        max_length=1024,
        description="vllm_server: addresses of the servers, such as http://host:8000; empty: those of start, else "
        "those that the variable COEVOLVE_SERVERS names, separated by commas (ours)",
        json_schema_extra=SERVER,
    )
    start: ServerSettings | None = Field(
        None,
        description="vllm_server: servers that coevolve evolve starts for its own length; null: none (ours)",
        json_schema_extra=SERVER,
    )
    weights: WeightsWay | None = Field(
        None,
        description="vllm_server: how new weights reach the servers; lora: an adapter by name; folder: a folder that "
        "the servers read; nccl: from GPU to GPU (untested); null: lora with policy.lora, else folder (ours)",
        json_schema_extra=SERVER,
    )
    folder: str | None = Field(
        None,
        description="vllm_server: where weights are written for the servers, the same path on each of their machines; "
        "null: in the run directory (ours)",
        json_schema_extra=requires({"engine": "vllm_server"}, {"weights": ("lora", "folder", None)}),
    )
    request_timeout: float = Field(
        120.0,
        gt=0,
        le=86_400.0,
        description="vllm_server: timeout in seconds of one message; a server that takes longer is not asked again in "
        "the step (ours)",
        json_schema_extra=SERVER,
    )
    load_timeout: float = Field(
        600.0,
        gt=0,
        le=86_400.0,
        description="vllm_server: timeout in seconds of a server that loads weights (ours)",
        json_schema_extra=SERVER,
    )
    concurrency: int = Field(
        32,
        ge=1,
        le=4096,
        description="vllm_server: most messages in flight at one server; on a CPU a burst of prompts beyond the "
        "server's max_num_batched_tokens ends its process (ours)",
        json_schema_extra=SERVER,
    )
    memory: float = Field(
        0.4,
        gt=0.0,
        lt=1.0,
        description="vllm_colocate: share of the GPU's memory for weights and KV cache (ours)",
        json_schema_extra=requires({"engine": "vllm_colocate"}),
    )
    correction: Correction | None = Field(
        None,
        description="importance sampling by the ratio of the trainer's to the engine's probabilities, by TRL's names; "
        "null: sequence_mask with policy.dtype bfloat16, else none (ours; TRL: sequence_mask)",
        json_schema_extra=VLLM,
    )
    tolerance: float | None = Field(
        None,
        gt=0.0,
        le=100.0,
        description="most nats by which a log-probability of the engine may differ from the trainer's, for a fixed "
        "prompt after new weights are loaded; null: 1e-3, with policy.dtype bfloat16 0.2 (ours)",
        json_schema_extra=VLLM,
    )

    @model_validator(mode="after")
    def _has_servers(self) -> Self:
        if self.engine != "vllm_server":
            return self
        if self.servers and self.start is not None:
            raise ValueError("'servers' names servers that run and 'start' starts others: remove one of them")
        twice = [url for place, url in enumerate(self.servers) if url in self.servers[:place]]
        if twice:
            raise ValueError(f"'servers' lists {twice[0]} twice: remove one")
        if self.start is not None and self.start.python != VLLM_PYTHON:
            raise ValueError(
                f"'start.python' is {self.start.python}, and a recipe must not name a program to run: remove it, and "
                f"set the variable {VLLM_VARIABLE}"
            )
        needed = "nccl" if self.weights == "nccl" else "none"
        if self.start is not None and self.start.weight_transfer != needed:
            raise ValueError(
                f"'start.weight_transfer' is {self.start.weight_transfer} and weights {self.weights or 'null'} needs "
                f"{needed}: set it to that"
            )
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the servers, also of those that the run started.

        They may differ from one start of a run to the next. Raises InputError where none are named.
        """
        if self.servers:
            return self.servers
        named = tuple(filter(None, (part.strip() for part in os.environ.get(SERVERS_VARIABLE, "").split(","))))
        if not named:
            how = "it is for coevolve evolve alone" if self.start is not None else "set sampling.servers or .start"
            raise InputError(f"sampling.engine is vllm_server and no server is named: {how}, or {SERVERS_VARIABLE}")
        try:
            return TypeAdapter(tuple[Address, ...]).validate_python(named)
        except ValidationError:
            raise InputError(f"{SERVERS_VARIABLE}: name addresses as http://host:8000, separated by commas") from None

    def way(self, lora: bool) -> WeightsWay:
        """Return how weights reach the servers; ``lora``: the policy trains an adapter."""
        return self.weights or ("lora" if lora else "folder")

    def most_difference(self, bfloat16: bool) -> float:
        """Return the tolerance in nats; ``bfloat16``: the policy's matrix products are computed in it."""
        return self.tolerance if self.tolerance is not None else 0.2 if bfloat16 else 1e-3

    def corrected(self, bfloat16: bool) -> Correction:
        """Return the correction; ``bfloat16``: the policy's matrix products are computed in it."""
        if self.engine == "in_process":
            return "none"
        return self.correction or ("sequence_mask" if bfloat16 else "none")

    def complaint(self, lora: bool) -> str | None:
        """Return why the section does not fit a policy that trains an adapter (``lora``) or all weights, else None."""
        if self.engine == "vllm_server" and self.weights is not None and (self.weights == "lora") != lora:
            trains = "policy.lora trains an adapter" if lora else "policy.lora is null, so that all weights are trained"
            return f"sampling.weights is {self.weights} and {trains}: set it to {'lora' if lora else 'folder'}"
        return None


IN_PROCESS = SamplingSettings()
"""The default: the trainer's own model samples."""
