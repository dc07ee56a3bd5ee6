"""Settings of the engine that samples rollouts and a run's own evaluations."""

from __future__ import annotations

import os
from typing import Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from environments.addresses import Address
from environments.base import InputError
from environments.settings import Section, requires

SERVERS_VARIABLE = "COEVOLVE_SERVERS"
"""Variable that names servers, separated by commas, of a job whose machines change."""

Engine = Literal["in_process", "vllm_server"]
Correction = Literal["none", "sequence_mask"]

SERVER = requires({"engine": "vllm_server"})


class SamplingSettings(Section):
    """Which engine samples (ours): the trainer's own model, or vLLM servers that the user started."""

    engine: Engine = Field(
        "in_process",
        description="in_process: the trainer's model decodes; vllm_server: vLLM servers",
    )
    servers: tuple[Address, ...] = Field(
        (),
        max_length=1024,
        description="addresses, such as http://host:8000; empty: those of the variable COEVOLVE_SERVERS",
        json_schema_extra=SERVER,
    )
    request_timeout: float = Field(
        120.0,
        gt=0,
        le=86_400.0,
        description="timeout in seconds of one message; a server that takes longer ends the round",
        json_schema_extra=SERVER,
    )
    concurrency: int = Field(
        32,
        ge=1,
        le=4096,
        description="most messages in flight at one server; on a CPU, prompts beyond the server's "
        "max_num_batched_tokens end its process",
        json_schema_extra=SERVER,
    )

    @model_validator(mode="after")
    def _has_servers(self) -> Self:
        if self.engine != "vllm_server":
            return self
        twice = [url for place, url in enumerate(self.servers) if url in self.servers[:place]]
        if twice:
            raise ValueError(f"'servers' lists {twice[0]} twice: remove one")
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the servers.

        They may differ from one start of a run to the next. Raises InputError where none are named.
        """
        if self.servers:
            return self.servers
        named = tuple(filter(None, (part.strip() for part in os.environ.get(SERVERS_VARIABLE, "").split(","))))
        if not named:
            raise InputError(
                "sampling.engine is vllm_server and no server is named: start one (python -m graph.serve RECIPE), and "
                f"set sampling.servers or {SERVERS_VARIABLE} to http://127.0.0.1:8000"
            )
        try:
            return TypeAdapter(tuple[Address, ...]).validate_python(named)
        except ValidationError:
            raise InputError(f"{SERVERS_VARIABLE}: name addresses as http://host:8000, separated by commas") from None

    def corrected(self, bfloat16: bool) -> Correction:
        """Return TRL's name of the correction by the ratio of the trainer's to the engine's probabilities (ours).

        ``bfloat16``: the policy's matrix products are computed in it.
        """
        return "sequence_mask" if bfloat16 and self.engine != "in_process" else "none"


IN_PROCESS = SamplingSettings()
"""The default: the trainer's own model samples."""
