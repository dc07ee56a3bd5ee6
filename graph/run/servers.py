"""vLLM servers that a run starts for itself, and what they serve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from graph.run.progress import Progress
from graph.settings import RunSettings
from memory.run import RunDirectory
from training.rollout.serving import ServedPolicy, check_servers, vllm_servers
from training.rollout.settings import SERVERS_VARIABLE

__all__ = ["check_sampling", "run_servers", "served_policy"]


def served_policy(settings: RunSettings) -> ServedPolicy:
    """Return what servers of a run serve: its initial policy, with room for an episode of training or evaluation."""
    lora = settings.policy.lora
    return ServedPolicy(
        settings.policy.path,
        settings.policy.dtype,
        max(settings.training.max_tokens, settings.evaluation.max_tokens or 0),
        None if lora is None else lora.rank,
    )


def check_sampling(settings: RunSettings) -> None:
    """Raise InputError where the servers of a run could not be started, and where it has none."""
    sampling = settings.sampling
    if sampling.engine != "vllm_server":
        return
    if sampling.start is None:
        _ = sampling.addresses
        return
    check_servers(sampling.start, served_policy(settings))


@contextmanager
def run_servers(directory: RunDirectory, settings: RunSettings, progress: Progress) -> Iterator[None]:
    """Start the servers of ``sampling.start`` for the length of the block, if the run has any left to do.

    Rounds and evaluations, which are processes of their own, find them by the variable COEVOLVE_SERVERS. Raises
    InputError like ``check_sampling``, and ServerFailure.
    """
    last = directory.iteration(settings.iterations - 1).summary
    if last.exists() or settings.sampling.engine != "vllm_server":
        yield
        return
    start = settings.sampling.start
    if start is None:
        _ = settings.sampling.addresses
        yield
        return
    progress.say(
        f"starting {start.count} vLLM server{'s' if start.count > 1 else ''}, logs in {directory.servers_path}"
    )
    with vllm_servers(start, served_policy(settings), directory.servers_path) as servers:
        for server in servers:
            progress.say(f"vLLM server {server.url} (pid {server.pid}) answers")
        given = os.environ.get(SERVERS_VARIABLE)
        os.environ[SERVERS_VARIABLE] = ",".join(server.url for server in servers)
        try:
            yield
        finally:
            os.environ.pop(SERVERS_VARIABLE)
            if given is not None:
                os.environ[SERVERS_VARIABLE] = given
