"""Choose the engine that samples, and make the sampler of it from settings; nothing else does.

Import this module late: it needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.rollout.policy import Policy
from training.rollout.sampling import Sampler
from training.rollout.settings import SamplingSettings

__all__ = ["alone", "open_sampler"]


def alone(act: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it returns
    """Call ``act`` in the one process that there is."""
    return act()


def open_sampler(
    settings: SamplingSettings,
    policy: Policy,
    folder: Path,
    *,
    bfloat16: bool,
    lora_rank: int | None,
    autocast: bool = False,
    stored: bool = False,
    first: bool = True,
    by_first: Callable[[Callable[[], Any]], Any] = alone,
    gather: Callable[[Any], dict[str, Any]] | None = None,
) -> Sampler:
    """Return the sampler that ``settings`` choose for ``policy``; close it when it is not needed any more.

    Args:
        folder: where weights are written for servers.
        bfloat16: the policy's matrix products are computed in it.
        lora_rank: rank of the LoRA adapter in the policy's layers, now or once training has begun; None for none.
        autocast: they are computed so by autocast, as in training.
        stored: the policy's weights are those of its path, and do not change.
        first: this process loads servers; of several that train together, one does.
        by_first: calls a function in the first process alone, and returns its result in all.
        gather: with weights that are divided among those processes: returns the model's whole tensors by name in the
            first one, where all have called it.

    Raises InputError for a model that the engine cannot decode.
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
    from training.rollout.vllm_server import VllmServers

    return VllmServers(settings, weights, tolerance, first=first, by_first=by_first)
