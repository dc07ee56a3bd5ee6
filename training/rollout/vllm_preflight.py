"""Checks of the engine that a run's settings choose, before anything is written or paid: a few requests, no weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from environments.base import InputError
from training.rollout.settings import SamplingSettings, WeightsWay
from training.settings import PolicySettings, TrainingSettings

if TYPE_CHECKING:
    from training.rollout.vllm_client import VllmServer

__all__ = ["check_engine"]

OLDEST = (0, 30)
"""The first release of vLLM with token-in, token-out requests that name the weights of each token."""

_DEVELOPMENT = "VLLM_SERVER_DEV_MODE=1"
_ROUTES: dict[WeightsWay, dict[str, str]] = {
    "folder": {"/collective_rpc": _DEVELOPMENT, "/pause": _DEVELOPMENT, "/update_weight_version": _DEVELOPMENT},
    "lora": {"/v1/load_lora_adapter": "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora"},
}
"""What a server must answer for a way of new weights, and what it is started with to do so."""


def check_engine(sampling: SamplingSettings, policy: PolicySettings, training: TrainingSettings) -> None:
    """Raise InputError for a server that a round could not use.

    That is one that cannot be reached, is of another release than the others or too old, lacks a request that is
    needed, or has fewer positions than an episode may have tokens.
    """
    if sampling.engine == "in_process":
        return
    way = sampling.way(policy.lora is not None)
    releases = asyncio.run(_check_all(sampling, way, training.max_tokens))
    if len(set(releases)) > 1:
        releases_by_url = ", ".join(
            f"{url} is {release}" for url, release in zip(sampling.addresses, releases, strict=True)
        )
        raise InputError(
            f"sampling.servers: the servers are of several releases of vLLM ({releases_by_url}): start equal ones"
        )


async def _check_all(sampling: SamplingSettings, way: WeightsWay, tokens: int) -> Sequence[str]:
    """Return the release of each server."""
    from training.rollout import vllm_client

    servers = [
        vllm_client.VllmServer(
            url, request_timeout=vllm_client.CONTROL_SECONDS, load_timeout=vllm_client.CONTROL_SECONDS
        )
        for url in sampling.addresses
    ]
    try:
        return await asyncio.gather(*(_check_one(server, way, tokens) for server in servers))
    finally:
        for server in servers:
            await server.close()


async def _check_one(server: VllmServer, way: WeightsWay, tokens: int) -> str:
    from training.rollout.vllm_client import ServerFault

    place = f"sampling.servers: {server.url}"
    try:
        if not await server.healthy():
            raise InputError(f"{place} does not answer as a healthy vLLM server: start it, or remove it")
        release = await server.release()
        if _numbers(release) < OLDEST:
            raise InputError(f"{place} is vLLM {release}: {'.'.join(map(str, OLDEST))} or later is needed")
        needed = {"/inference/v1/generate": "--enable-scale-out", "/weight_info": _DEVELOPMENT, **_ROUTES[way]}
        for path, option in needed.items():
            if not await server.has(path):
                raise InputError(f"{place} has no {path}: start it with {option} (python -m graph.serve does)")
        positions = [model.max_model_len for model in await server.models() if model.parent is None]
    except ServerFault as fault:
        raise InputError(f"{place} cannot be used: {fault}") from None
    if not positions:
        raise InputError(f"{place} serves no model: start it with the policy's")
    if positions[0] is not None and positions[0] < tokens:
        raise InputError(
            f"{place} has {positions[0]} positions and training.max_tokens is {tokens}: start it with a larger "
            "--max-model-len, or lower max_tokens"
        )
    return release


def _numbers(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a release; a development version without any counts as new."""
    parts = [part for part in release.split(".")[:2] if part.isdecimal()]
    return tuple(map(int, parts)) if len(parts) == 2 else (10**6,)
