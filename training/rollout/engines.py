"""Choose the engine that samples, check it before anything is written or paid, and make the sampler of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from environments.base import InputError
from training.grpo.ranks import ALONE, Ranks, whole_state
from training.rollout.policy import Policy
from training.rollout.sampling import Sampler
from training.settings import PolicySettings, SamplingSettings, TrainingSettings

OLDEST = (0, 30)
"""The first release of vLLM with token-in, token-out requests that name the weights of each token."""

_DEVELOPMENT = "VLLM_SERVER_DEV_MODE=1"
_ROUTES = {"/inference/v1/generate": "--enable-scale-out", "/weight_info": _DEVELOPMENT}
_FOLDER_ROUTES = {"/collective_rpc": _DEVELOPMENT, "/pause": _DEVELOPMENT, "/update_weight_version": _DEVELOPMENT}
_ADAPTER_ROUTES = {"/v1/load_lora_adapter": "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora"}
"""What a server must answer, always and by how it gets new weights, and what it is started with to do so."""


def open_sampler(
    settings: SamplingSettings,
    policy: Policy,
    folder: Path,
    *,
    bfloat16: bool,
    adapter: bool,
    stored: bool = False,
    ranks: Ranks = ALONE,
) -> Sampler:
    """Return the sampler that ``settings`` choose for ``policy``; close it when it is not needed any more.

    Args:
        folder: where weights are written for servers.
        bfloat16: the policy's matrix products are computed in it.
        adapter: the policy's layers hold a LoRA adapter, now or once training has begun.
        stored: the policy's weights are those of its path, and do not change.
        ranks: the processes that train together, of which the first loads servers.

    Raises InputError for a model that the engine cannot decode.
    """
    if settings.engine == "in_process":
        from training.rollout.in_process import InProcessSampler

        return InProcessSampler(policy.model)
    from huggingface_hub import snapshot_download

    from training.rollout.vllm_server import PolicyWeights, VllmServers

    path = Path(policy.path)
    if stored and not path.is_dir():  # the policy was loaded from the hub's cache
        path = Path(snapshot_download(policy.path, local_files_only=True))
    weights = PolicyWeights(
        policy=policy,
        folder=folder,
        adapter=adapter,
        autocast=bfloat16,
        stored=path if stored else None,
        gather=whole_state if ranks.sharded else None,
    )
    return VllmServers(settings, weights, 0.2 if bfloat16 else 1e-3, by_first=ranks.by_first)


def check_engine(sampling: SamplingSettings, policy: PolicySettings, training: TrainingSettings) -> None:
    """Raise InputError for a server that a round could not use: a few requests, no weights.

    That is one that cannot be reached, is too old, lacks a request that is needed, or has fewer positions than an
    episode may have tokens.
    """
    if sampling.engine == "vllm_server":
        routes = _ROUTES | (_FOLDER_ROUTES if policy.lora is None else _ADAPTER_ROUTES)
        for url in sampling.addresses:
            asyncio.run(_check(url, routes, training.max_tokens))


async def _check(url: str, routes: dict[str, str], tokens: int) -> None:
    from training.rollout import vllm_client

    server = vllm_client.VllmServer(url)
    place = f"sampling.servers: {server.url}"
    try:
        if not await server.healthy():
            raise InputError(f"{place} does not answer as a healthy vLLM server: start it, or remove it")
        release = await server.release()
        if _numbers(release) < OLDEST:
            raise InputError(f"{place} is vLLM {release}: {'.'.join(map(str, OLDEST))} or later is needed")
        for path, option in routes.items():
            if not await server.has(path):
                raise InputError(f"{place} has no {path}: start it with {option} (python -m graph.serve does)")
        positions = (await server.own_model()).max_model_len
    except vllm_client.ServerFault as fault:
        raise InputError(f"{place} cannot be used: {fault}") from None
    finally:
        await server.close()
    if positions is not None and positions < tokens:
        raise InputError(
            f"{place} has {positions} positions and training.max_tokens is {tokens}: start it with a larger "
            "--max-model-len, or lower max_tokens"
        )


def _numbers(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a release; a development version without any counts as new."""
    parts = [part for part in release.split(".")[:2] if part.isdecimal()]
    return tuple(map(int, parts)) if len(parts) == 2 else (10**6,)
