"""What the sampler takes for granted of vLLM, of the pretended servers of other tests and of a real one alike.

The real one is started (``make test-vllm``), or is at COEVOLVE_VLLM_URL, where it serves recipes/starter in float32
with adapters of rank 8 and is not used by anything else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from support.chatter import starter_episodes as episodes
from support.fake_vllm import FakeVllm
from support.late import Late
from support.served_model import change, farthest, trained_and_sampled
from support.vllm_server import CONTEXT, STARTER

from training.rollout.engines import check_engine
from training.rollout.sampling import EngineFailure
from training.settings import LoraSettings, PolicySettings, SamplingSettings, TrainingSettings

pytestmark = pytest.mark.slow

torch = Late("torch")

FAKE = "http://fake:1"
REAL = pytest.param("real", marks=[pytest.mark.vllm, pytest.mark.external, pytest.mark.process, pytest.mark.slow])


@pytest.fixture(scope="module", params=["fake", REAL])
def served(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Where the starter is served, and through what."""
    torch.set_num_threads(1)
    if request.param == "fake":
        return SimpleNamespace(url=FAKE, transport=FakeVllm(STARTER, FAKE).transport)
    url = os.environ.get("COEVOLVE_VLLM_URL") or request.getfixturevalue("vllm_server").url
    return SimpleNamespace(url=url, transport=None)


@pytest.fixture
def made(served: SimpleNamespace, tmp_path: Path) -> Iterator[Callable[..., SimpleNamespace]]:
    samplers = []

    def make(adapter: bool = False, **given: object) -> SimpleNamespace:
        start_again(served)
        rank, folder = 8 if adapter else None, tmp_path / "weights"
        engine = trained_and_sampled(STARTER, [served.url], folder, served.transport, rank=rank, **given)
        samplers.append(engine.sampler)
        return engine

    yield make
    for sampler in samplers:
        sampler.close()


def post(served: SimpleNamespace, path: str, body: object = None) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient(transport=served.transport, trust_env=False, timeout=60) as client:
            (await client.post(served.url + path, json=body)).raise_for_status()

    import asyncio

    asyncio.run(ask())


def start_again(served: SimpleNamespace) -> None:
    """The weights that the server was started with, unnamed."""
    post(served, "/pause?mode=wait")
    post(served, "/collective_rpc", {"method": "load_policy", "kwargs": {"path": str(STARTER)}, "timeout": 60})
    post(served, "/reset_prefix_cache")
    post(served, "/update_weight_version", {"new_version": "default"})
    post(served, "/resume")


@pytest.mark.parametrize("adapter", [False, True])
def test_logprobs_are_the_trainers_before_and_after_an_update(made, adapter: bool) -> None:
    engine = made(adapter=adapter)
    stopped = set()
    for version in (0, 1):
        engine.sampler.load_weights(version)
        for temperature in (0.0, 0.9):
            played = episodes()
            engine.sampler.run(played, temperature=temperature, concurrency=6)
            assert farthest(engine.model, played, temperature) < 1e-4
            stopped |= {message.ids[-1] in one.stop_ids for one in played for message in one.acted}
        change(engine.model, 0.02)
    assert stopped == {True, False}
    figures = engine.sampler.figures()
    assert (figures.messages, figures.resampled) == (4 * 6 * 3, 0)
    assert figures.gap < 1e-4


def test_equal_seeds_draw_equal_messages_in_any_company(made) -> None:
    engine = made()
    engine.sampler.load_weights(0)
    together, alone = episodes(), episodes()
    engine.sampler.run(together, temperature=0.9, concurrency=6)
    engine.sampler.run(alone, temperature=0.9, concurrency=1)
    assert [one.ids for one in together] == [one.ids for one in alone]


def test_weights_that_somebody_else_loaded_end_the_round_until_the_next_load(made, served: SimpleNamespace) -> None:
    """What a restarted server is: the first weights, under no name of this run."""
    engine = made(request_timeout=2.0)
    change(engine.model, 0.02)
    engine.sampler.load_weights(0)
    post(served, "/pause?mode=wait")
    with pytest.raises(EngineFailure, match="it hangs, or is paused"):
        engine.sampler.run(episodes(2), temperature=0.9, concurrency=2)
    start_again(served)
    with pytest.raises(EngineFailure, match="weights 'default' sampled a message"):
        engine.sampler.run(episodes(2), temperature=0.9, concurrency=2)
    engine.sampler.load_weights(1)
    played = episodes()
    engine.sampler.run(played, temperature=0.9, concurrency=6)
    assert farthest(engine.model, played, 0.9) < 1e-4


def test_other_weights_under_the_wanted_name_do_not_pass(made, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made()
    change(engine.model, 0.02)
    monkeypatch.setattr(engine.weights, "write", lambda name: STARTER)
    with pytest.raises(EngineFailure, match="answers as other weights would"):
        engine.sampler.load_weights(0)


def test_messages_that_a_server_gives_up_are_sampled_again_whole(made, served: SimpleNamespace) -> None:
    undisturbed, disturbed = episodes(24), episodes(24)
    engine = made()
    engine.sampler.load_weights(0)
    engine.sampler.run(undisturbed, temperature=0.9, concurrency=24)

    def give_up() -> None:
        post(served, "/pause?mode=abort")
        post(served, "/resume")

    aborts = threading.Timer(0.05, give_up)
    aborts.start()
    engine.sampler.run(disturbed, temperature=0.9, concurrency=24)
    aborts.join()
    assert [one.ids for one in disturbed] == [one.ids for one in undisturbed]


def test_the_server_passes_preflight(served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from training.rollout import vllm_client

    if served.transport is not None:
        patched = partial(vllm_client.VllmServer, transport=served.transport)
        monkeypatch.setattr(vllm_client, "VllmServer", patched)
    sampling = SamplingSettings(engine="vllm_server", servers=(served.url,))
    for lora in (None, LoraSettings(rank=8)):
        check_engine(sampling, PolicySettings(lora=lora), TrainingSettings(max_tokens=CONTEXT))
