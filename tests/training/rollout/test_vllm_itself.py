"""A real vLLM server that is killed and started again: the trainers that loaded it get no message of other weights.

It runs with ``make test-vllm``; ``test_vllm_contract`` has what is expected of a server that lives.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support.chatter import starter_episodes
from support.served_model import change, trained_and_sampled
from support.server_process import RunningServer
from support.vllm_server import STARTER, serving_starter

from training.rollout.sampling import EngineFailure

pytestmark = [pytest.mark.vllm, pytest.mark.external, pytest.mark.process, pytest.mark.slow]

GONE = 60.0  # seconds in which every process of a killed server must have ended


def loaded(server: RunningServer, folder: Path, *, adapter: bool) -> SimpleNamespace:
    """A trainer between two steps: the server has its weights, whole ones or an adapter, which differ from the first.

    ``played`` are episodes that were sampled with them.
    """
    rank = 8 if adapter else None
    trainer = trained_and_sampled(STARTER, [server.url], folder, None, rank=rank)
    change(trainer.model, 0.02)
    trainer.sampler.load_weights(1)
    trainer.played = starter_episodes()
    trainer.sampler.run(trainer.played, temperature=0.9, concurrency=6)
    return trainer


def test_a_killed_server_that_is_started_again_is_loaded_before_a_message_counts(tmp_path: Path) -> None:
    """No process of the killed one is left. One at its address has the first weights, and says so."""
    with serving_starter(tmp_path / "first") as server:
        port = int(server.url.rpartition(":")[2])
        trainers = [loaded(server, tmp_path / str(adapter), adapter=adapter) for adapter in (True, False)]
        processes = psutil.Process(server.process.pid).children(recursive=True)
        engine = next(one for one in processes if "EngineCore" in " ".join(one.cmdline()))
        os.kill(engine.pid, signal.SIGKILL)
        server.process.wait(timeout=60)
        # A worker notices the death of its engine at its next message, which takes seconds on a busy machine.
        end = time.monotonic() + GONE
        while left := [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
            assert time.monotonic() < end, left
            time.sleep(0.5)
    with serving_starter(tmp_path / "again", port) as again:
        assert again.url == server.url
        for trainer, cause in zip(trainers, ("status 404", "weights 'default' sampled"), strict=True):
            with closing(trainer.sampler) as sampler:
                with pytest.raises(EngineFailure, match=f"{again.url} failed: .*{cause}"):
                    sampler.run(starter_episodes(), temperature=0.9, concurrency=6)
                sampler.load_weights(1)
                played = starter_episodes()
                sampler.run(played, temperature=0.9, concurrency=6)
                assert [one.ids for one in played] == [one.ids for one in trainer.played]
