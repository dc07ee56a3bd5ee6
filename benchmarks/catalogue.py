"""The list of benchmarks: the name, module and duration of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from environments.base import InputError

__all__ = ["BENCHMARKS", "CatalogueEntry", "chosen"]


class CatalogueEntry(NamedTuple):
    """``module`` has its ``measure``; ``takes`` is the duration of five repeats on two cores.

    ``reads_run``: its ``measure`` also takes ``run``, the directory of an existing run. ``optional``: skipped with the
    reason where a requirement is not installed, unless it was asked for by name.
    """

    name: str
    module: str
    words: str
    takes: str
    reads_run: bool = False
    optional: bool = False


BENCHMARKS = (
    CatalogueEntry(
        "environment",
        "benchmarks.environment",
        "replay and evaluation, against bfcl_eval's own executor and checker",
        "1 min",
    ),
    CatalogueEntry(
        "rollouts",
        "benchmarks.rollouts",
        "the rollout phase in sampled tokens per second, against TRL's environment path",
        "2 min",
    ),
    CatalogueEntry("grpo-step", "benchmarks.grpo_step", "one GRPO step, against plain TRL", "4 min"),
    CatalogueEntry(
        "deduplication",
        "benchmarks.deduplication",
        "the failure memory at 300, 3,000 and 30,000 contexts, against a filtered Chroma query",
        "3 min, and some more the first time",
    ),
    CatalogueEntry(
        "iterations",
        "benchmarks.iterations",
        "a whole iteration with 100, 1,000 and 10,000 tasks",
        "9 min",
    ),
    CatalogueEntry(
        "evolution-share",
        "benchmarks.evolution_share",
        "the graph's part of an iteration's time",
        "a second with --run, else 3 min",
        reads_run=True,
    ),
    CatalogueEntry(
        "environment-hosts",
        "benchmarks.environment_hosts",
        "episodes on eight environment hosts over HTTP, against this process",
        "4 min",
    ),
    CatalogueEntry(
        "host-scale",
        "benchmarks.host_scale",
        "the graph with 10,000 tasks and 1,000 contexts, alone and with episodes on 64 hosts",
        "10 min",
    ),
    CatalogueEntry(
        "training-memory",
        "benchmarks.training_memory",
        "the memory of a round at three sizes of the policy, against coevolve plan",
        "8 min, whatever the repeats",
    ),
    CatalogueEntry(
        "concurrent-evolution",
        "benchmarks.concurrent_evolution",
        "iterations with exploration beside training, against one after the other",
        "15 min",
    ),
    CatalogueEntry(
        "appworld",
        "benchmarks.appworld_worlds",
        "eight worlds of our AppWorld worker, against a pool of `appworld serve environment`",
        "6 min",
        optional=True,
    ),
    CatalogueEntry(
        "vllm",
        "benchmarks.vllm_sampler",
        "a vLLM server on CPU, against the sampler in process, at 0.6 M, 50 M and 100 M parameters",
        "6 min",
        optional=True,
    ),
    CatalogueEntry(
        "agentevolver",
        "benchmarks.agentevolver",
        "an environment host of ours, against AgentEvolver's service (COEVOLVE_AGENTEVOLVER names a running one)",
        "3 min",
        optional=True,
    ),
)


def chosen(names: Sequence[str]) -> tuple[CatalogueEntry, ...]:
    """Return the benchmarks of these names in the order of the catalogue, all where none is named.

    Raises InputError for an unknown name.
    """
    known = [benchmark.name for benchmark in BENCHMARKS]
    for name in names:
        if name not in known:
            raise InputError(f"--only {name}: unknown benchmark: choose from {', '.join(known)}")
    return tuple(benchmark for benchmark in BENCHMARKS if not names or benchmark.name in names)
