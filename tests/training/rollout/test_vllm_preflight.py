"""What is refused of an engine's settings and servers before a run writes anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.fake_vllm import FakeServer, FakeVllm

from environments.base import InputError
from graph.settings import RunSettings
from training.rollout import vllm_client
from training.rollout.engines import check_engine
from training.settings import LoraSettings, PolicySettings, SamplingSettings, TrainingSettings

A, B = "http://a:1", "http://b:2"


def served(**given: object) -> SamplingSettings:
    return SamplingSettings.model_validate({"engine": "vllm_server", "servers": (A, B)} | given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"servers": (A,)}, "'servers' is for engine: vllm_server, in_process would ignore it"),
        ({"engine": "vllm_server", "servers": (A, A)}, "lists http://a:1 twice"),
        ({"engine": "vllm_server", "servers": ("a:1",)}, "must be an address"),
        ({"engine": "vllm_server", "servers": ("http://user@a:1",)}, "must be an address"),
        ({"engine": "vllm"}, "'in_process' or 'vllm_server'"),
    ],
)
def test_settings_that_an_engine_would_ignore_are_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        SamplingSettings.model_validate(given)


def test_only_a_server_in_bfloat16_is_corrected_for() -> None:
    assert (served().corrected(bfloat16=False), served().corrected(bfloat16=True)) == (False, True)
    assert not SamplingSettings().corrected(bfloat16=True), "the trainer's own model samples"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeVllm:
    monkeypatch.setattr(FakeServer, "start", lambda self: vars(self).update(version="default", adapters={}))
    fakes = FakeVllm(Path(), A, B)
    monkeypatch.setattr(vllm_client, "VllmServer", partial(vllm_client.VllmServer, transport=fakes.transport))
    return fakes


def lacks(path: str) -> Callable[[FakeServer], None]:
    return lambda server: server.posts.discard(path)


def sets(**values: object) -> Callable[[FakeServer], None]:
    return lambda server: vars(server).update(values)


def test_servers_as_they_should_be_pass_and_nothing_is_changed(servers: FakeVllm) -> None:
    for policy in (PolicySettings(), PolicySettings(lora=LoraSettings())):
        check_engine(served(), policy, TrainingSettings())
    asked = {path for server in servers.servers.values() for path, _ in server.requests}
    assert "/health" in asked
    assert not any(body for server in servers.servers.values() for _, body in server.requests)


@pytest.mark.parametrize(
    ("fault", "lora", "told"),
    [
        (sets(down=True), False, "does not answer as a healthy vLLM server"),
        (sets(redirect=True), False, "does not answer as a healthy vLLM server"),
        (sets(release="0.29.1"), False, "is vLLM 0.29.1: 0.30 or later"),
        (sets(positions=100), False, "100 positions and training.max_tokens is 512"),
        (lacks("/inference/v1/generate"), False, "no /inference/v1/generate: start it with --enable-scale-out"),
        (lacks("/collective_rpc"), False, "no /collective_rpc: start it with VLLM_SERVER_DEV_MODE=1"),
        (lacks("/v1/load_lora_adapter"), True, "no /v1/load_lora_adapter: .*--enable-lora"),
    ],
)
def test_a_server_that_a_round_could_not_use_is_refused(
    fault: Callable[[FakeServer], None], lora: bool, told: str, servers: FakeVllm
) -> None:
    fault(servers[B])
    policy = PolicySettings(lora=LoraSettings() if lora else None)
    with pytest.raises(InputError, match=f"sampling.servers: .*{told}") as refused:
        check_engine(served(), policy, TrainingSettings())
    assert B in str(refused.value)


def test_preflight_of_a_run_asks_its_servers(servers: FakeVllm) -> None:
    from graph.check_recipe import check_run

    servers[A].down = True
    settings = RunSettings.model_validate({"evaluation": {"set": None}, "sampling": served().model_dump()})
    with pytest.raises(InputError, match="http://a:1 does not answer"):
        check_run(settings)
