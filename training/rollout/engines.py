"""Choose the engine that samples, and make the sampler of it from settings; nothing else does.

Import this module late: it needs torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.rollout.policy import Policy
from training.rollout.sampling import Sampler
from training.rollout.settings import SamplingSettings

__all__ = ["alone", "open_sampler", "weights_folder"]


def alone(act: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it returns
    """Call ``act`` in the one process that there is."""
    return act()


def weights_folder(settings: SamplingSettings, run: Path, default: Path) -> Path:
    """Return where a run's weights are written for servers: ``default``, or its own folder in ``sampling.folder``."""
    if settings.folder is None:
        return default
    # Runs may share the folder, and each removes what is in its own.
    name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:12]
    return Path(settings.folder) / f"coevolve-{name}"


def open_sampler(
    settings: SamplingSettings,
    policy: Policy,
    folder: Path,
    *,
    positions: int,
    bfloat16: bool,
    lora_rank: int | None,
    autocast: bool = False,
    stored: bool = False,
    processes: int = 1,
    first: bool = True,
    by_first: Callable[[Callable[[], Any]], Any] = alone,
    gather: Callable[[Any], dict[str, Any]] | None = None,
) -> Sampler:
    """Return the sampler that ``settings`` choose for ``policy``; close it when it is not needed any more.

    Args:
        folder: where weights are written for servers.
        positions: tokens of an episode at most.
        bfloat16: the policy's matrix products are computed in it.
        lora_rank: rank of the LoRA adapter in the policy's layers, now or once training has begun; None for none.
        autocast: they are computed so by autocast, as in training.
        stored: the policy's weights are those of its path, and do not change.
        processes: those that train together.
        first: this process loads servers; of several that train together, one does.
        by_first: calls a function in the first process alone, and returns its result in all.
        gather: with weights that are divided among those processes: returns the model's whole tensors by name in the
            first one, where all have called it.

    Raises InputError for a model that the engine cannot decode, and for an engine that is not installed.
    """
    if settings.engine == "in_process":
        from training.rollout.in_process import InProcessSampler

        return InProcessSampler(policy.model)
    from training.rollout.vllm_weights import DividedWeights, PolicyWeights, stored_folder

    adapter = lora_rank is not None
    if gather is not None:
        weights: PolicyWeights = DividedWeights(policy, folder, adapter=adapter, autocast=autocast, gather=gather)
    else:
        path = stored_folder(policy.path) if stored else None
        weights = PolicyWeights(policy, folder, adapter=adapter, autocast=autocast, stored=path)
    tolerance = settings.most_difference(bfloat16)
    if settings.engine == "vllm_colocate":
        from training.rollout.vllm_colocate import VllmInProcess

        return VllmInProcess(
            weights,
            tolerance,
            positions=positions,
            dtype="bfloat16" if bfloat16 else "float32",
            memory=settings.memory,
            lora_rank=lora_rank,
            processes=processes,
            first=first,
            by_first=by_first,
        )
    from training.rollout.vllm_server import VllmServers

    return VllmServers(settings, weights, tolerance, first=first, by_first=by_first)
