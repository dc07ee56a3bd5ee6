"""What vLLM itself does, as far as this project relies on it: one real server, started once for all of these.

They run with ``make test-vllm``. The last one ends the server.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.chatter import starter_episodes
from support.served_model import change
from support.vllm_server import CONTEXT, STARTER, RunningServer, Status, ask, generate, serving_starter

from training.rollout.sampling import EngineFailure
from training.rollout.settings import SamplingSettings
from training.settings import LoraSettings

pytestmark = [pytest.mark.vllm, pytest.mark.external, pytest.mark.process, pytest.mark.slow]

EXACT = 1e-4  # nats, float32
STOP = 916


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(100, 900), k=length)


@cache
def model_of(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def farthest(model: Any, ids: list[int], message: dict[str, Any], temperature: float = 0.9) -> float:
    """How far the message's log-probabilities are from the model's own forward pass, in nats."""
    from support.small_policy import hand_logps

    own = hand_logps(model, ids, message["ids"], temperature)
    return max(abs(a - b) for a, b in zip(own.tolist(), message["logprobs"], strict=True))


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starter after a step that changed every weight, its tied embedding too."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("changed") / "step-1"
    model = AutoModelForCausalLM.from_pretrained(STARTER, dtype=torch.float32)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.02 * torch.randn(weights.shape, generator=noise))
    model.save_pretrained(folder)
    return folder


def load(server: RunningServer, method: str, folder: Path, version: str) -> None:
    """Replace the weights in the order that a trainer keeps."""
    name = {"load_policy": "path", "reload_weights": "weights_path"}[method]
    ask(server, "/pause?mode=wait", {})
    ask(server, "/collective_rpc", {"method": method, "kwargs": {name: str(folder)}, "timeout": 60})
    assert ask(server, "/reset_prefix_cache", {}) == {"success": True}
    ask(server, "/update_weight_version", {"new_version": version})
    ask(server, "/resume", {})


@pytest.fixture(autouse=True, scope="module")
def _starter_again(vllm_server: RunningServer) -> None:
    """The server has the weights that it was started with, whatever other tests loaded."""
    load(vllm_server, "load_policy", STARTER, "step-0")


@pytest.fixture(autouse=True)
def _running(request: pytest.FixtureRequest) -> None:
    """Each test begins with a server that is not paused."""
    server = request.getfixturevalue("vllm_server")
    if ask(server, "/is_paused")["is_paused"]:
        ask(server, "/resume", {})


def test_a_seed_draws_the_same_message_alone_and_in_company(vllm_server: RunningServer) -> None:
    """Prompts of different lengths at once, more than a budget of one step held by default."""
    prompts = [prompt(60 + 11 * number, number) for number in range(24)]
    alone = [generate(vllm_server, ids, seed=number) for number, ids in enumerate(prompts)]
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda pair: generate(vllm_server, pair[1], seed=pair[0]), enumerate(prompts)))
    assert [one["ids"] for one in together] == [one["ids"] for one in alone]
    assert [one["logprobs"] for one in together] == [one["logprobs"] for one in alone]
    assert generate(vllm_server, prompts[0], seed=77)["ids"] != alone[0]["ids"]


def test_log_probabilities_are_those_of_the_forward_pass(vllm_server: RunningServer) -> None:
    """After the temperature, over the whole vocabulary; a span names the weights of every token."""
    for number, temperature in enumerate((0.9, 1.0, 2.0)):
        ids = prompt(80, number)
        message = generate(vllm_server, ids, temperature=temperature, most=32)
        assert message["versions"] == [("step-0", 0, 32)]
        assert farthest(model_of(STARTER), ids, message, temperature) < EXACT


def test_greedy_messages_are_the_likeliest(vllm_server: RunningServer) -> None:
    import torch

    ids = prompt(50, 9)
    message = generate(vllm_server, ids, temperature=0.0, most=8)
    for place, one in enumerate(message["ids"]):
        with torch.no_grad():
            logits = model_of(STARTER)(input_ids=torch.tensor([ids + message["ids"][:place]])).logits[0, -1]
        assert int(logits.argmax()) == one


def test_a_stop_ends_a_message_and_is_its_last_id(vllm_server: RunningServer) -> None:
    ids = prompt(40, 5)
    free = generate(vllm_server, ids, seed=4, most=40)
    assert (free["reason"], len(free["ids"])) == ("length", 40)
    stop = next(one for place, one in enumerate(free["ids"]) if place >= 3)
    end = free["ids"].index(stop)
    stopped = generate(vllm_server, ids, seed=4, most=40, stops=(stop,))
    assert (stopped["reason"], stopped["ids"]) == ("stop", free["ids"][: end + 1])
    assert len(stopped["logprobs"]) == end + 1


def test_what_cannot_be_sampled_is_refused_or_cut(vllm_server: RunningServer) -> None:
    """A message that the context has no room for is cut without an error: a client must compare what it asked for."""
    cut = generate(vllm_server, prompt(CONTEXT - 4), most=40)
    assert (len(cut["ids"]), cut["reason"]) == (4, "length")
    for wrong in ({"ids": prompt(CONTEXT + 8)}, {"ids": []}, {"ids": [10**6]}):
        with pytest.raises(Status) as refused:
            generate(vllm_server, **wrong)
        assert refused.value.status == 400
    with pytest.raises(Status) as refused:
        generate(vllm_server, prompt(10), model="nobody")
    assert refused.value.status == 404


def test_new_weights_of_tied_embeddings_need_the_extension(vllm_server: RunningServer, changed: Path) -> None:
    """vLLM's own reload leaves the output layer as it was, and names the weights as if they were the new ones."""
    ids = prompt(70, 2)
    load(vllm_server, "reload_weights", changed, "stale")
    stale = generate(vllm_server, ids, most=16)
    assert stale["versions"] == [("stale", 0, 16)]
    assert farthest(model_of(changed), ids, stale) > 100 * EXACT

    load(vllm_server, "load_policy", changed, "step-1")
    fresh = generate(vllm_server, ids, most=16)
    assert fresh["versions"] == [("step-1", 0, 16)]
    assert ask(vllm_server, "/weight_info")["weight_version"] == "step-1"
    assert farthest(model_of(changed), ids, fresh) < EXACT

    load(vllm_server, "load_policy", STARTER, "step-0")
    assert farthest(model_of(STARTER), ids, generate(vllm_server, ids, most=16)) < EXACT


def test_a_folder_that_is_not_there_leaves_an_error(vllm_server: RunningServer, tmp_path: Path) -> None:
    with pytest.raises(Status) as failed:
        ask(vllm_server, "/collective_rpc", {"method": "load_policy", "kwargs": {"path": str(tmp_path / "none")}})
    assert failed.value.status >= 400
    load(vllm_server, "load_policy", STARTER, "step-0")  # and the server lives


def test_an_adapter_is_sampled_from_by_its_name(vllm_server: RunningServer, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(STARTER, dtype=torch.float32)
    adapted = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_B" in name:
                weights.add_(0.05 * torch.randn(weights.shape, generator=noise))
    adapted.save_pretrained(tmp_path / "step-1")
    body = {"lora_name": "run-1", "lora_path": str(tmp_path / "step-1")}
    ask(vllm_server, "/v1/load_lora_adapter", body)
    ids = prompt(60, 8)
    message = generate(vllm_server, ids, model="run-1", most=24)
    assert farthest(adapted.eval(), ids, message) < EXACT
    assert farthest(model_of(STARTER), ids, message) > 100 * EXACT
    assert farthest(model_of(STARTER), ids, generate(vllm_server, ids, most=24)) < EXACT

    with pytest.raises(Status) as twice:
        ask(vllm_server, "/v1/load_lora_adapter", body)
    assert twice.value.status == 400
    ask(vllm_server, "/v1/unload_lora_adapter", {"lora_name": "run-1"})
    with pytest.raises(Status) as unknown:
        generate(vllm_server, ids, model="run-1")
    assert unknown.value.status == 404


def in_background(server: RunningServer, **given: Any) -> tuple[threading.Thread, list[Any]]:
    """A long message under way: a thread, and the list that its outcome is appended to."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(generate(server, prompt(20, 1), most=CONTEXT - 20, **given))
        except (Status, OSError) as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.5)
    return thread, outcome


def test_an_aborted_message_is_a_part_and_says_so(vllm_server: RunningServer) -> None:
    thread, outcome = in_background(vllm_server)
    ask(vllm_server, "/pause?mode=abort", {})
    thread.join(30)
    assert outcome[0]["reason"] == "abort"
    assert len(outcome[0]["ids"]) < CONTEXT - 20
    ask(vllm_server, "/resume", {})


def test_a_message_across_two_versions_names_both(vllm_server: RunningServer) -> None:
    ask(vllm_server, "/update_weight_version", {"new_version": "step-0"})
    thread, outcome = in_background(vllm_server)
    ask(vllm_server, "/pause?mode=keep", {})
    ask(vllm_server, "/update_weight_version", {"new_version": "step-2"})
    ask(vllm_server, "/resume", {})
    thread.join(60)
    (first, begin, middle), (second, again, end) = outcome[0]["versions"]
    assert (first, second, begin, end) == ("step-0", "step-2", 0, CONTEXT - 20)
    assert 0 < middle == again < end


def test_a_paused_server_accepts_and_does_not_answer(vllm_server: RunningServer) -> None:
    """It looks healthy: only a timeout of the message finds it."""
    ask(vllm_server, "/pause?mode=wait", {})
    assert vllm_server.answers()
    began = time.monotonic()
    with pytest.raises((TimeoutError, socket.timeout, OSError)):
        generate(vllm_server, prompt(10), timeout=1.0)
    assert time.monotonic() - began < 10
    assert ask(vllm_server, "/is_paused")["is_paused"] is True
    ask(vllm_server, "/resume", {})
    assert generate(vllm_server, prompt(10), most=2)["reason"] == "length"


def loaded(server: RunningServer, folder: Path, *, adapter: bool) -> SimpleNamespace:
    """A trainer between two steps: the server has its weights, whole ones or an adapter, which differ from the first.

    ``played`` are episodes that were sampled with them.
    """
    from transformers import AutoModelForCausalLM

    from training.rollout.vllm_server import VllmServers
    from training.rollout.vllm_weights import PolicyWeights

    model = AutoModelForCausalLM.from_pretrained(STARTER)
    if adapter:
        from peft import get_peft_model

        from training.rollout.lora import lora_config

        get_peft_model(model, lora_config(LoraSettings(rank=8), model))
    change(model, 0.02)
    weights = PolicyWeights(SimpleNamespace(model=model, path=str(STARTER)), folder, adapter=adapter, autocast=False)
    sampler = VllmServers(SamplingSettings(engine="vllm_server", servers=(server.url,)), weights, 1e-3)
    sampler.load_weights(1)
    trainer = SimpleNamespace(model=model, sampler=sampler, played=starter_episodes())
    sampler.run(trainer.played, temperature=0.9, concurrency=6)
    return trainer


def test_a_killed_server_that_is_started_again_is_loaded_before_a_message_counts(
    vllm_server: RunningServer, tmp_path: Path
) -> None:
    """The last test of this file: it ends the server, and starts one at its address with the first weights.

    No message is answered as if it were whole, and no process is left. What the new server samples by itself is of the
    first weights, and says so; trainers that loaded the one before it get messages of their own weights alone.
    """
    trainers = [loaded(vllm_server, tmp_path / str(adapter), adapter=adapter) for adapter in (True, False)]
    processes = psutil.Process(vllm_server.pid).children(recursive=True)
    engine = next(one for one in processes if "EngineCore" in " ".join(one.cmdline()))
    thread, outcome = in_background(vllm_server)
    os.kill(engine.pid, signal.SIGKILL)
    thread.join(60)
    assert isinstance(outcome[0], Status | OSError)
    if isinstance(outcome[0], Status):
        assert outcome[0].status == 500
    vllm_server.process.wait(timeout=60)
    assert not [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    port = int(vllm_server.url.rpartition(":")[2])
    with serving_starter(tmp_path / "again", port) as again:
        assert again.url == vllm_server.url
        ids = trainers[-1].played[0].ids[:20]
        old = generate(again, ids)
        assert old["versions"] == [("default", 0, 16)]
        assert farthest(model_of(STARTER), ids, old) < EXACT
        assert farthest(trainers[-1].model, ids, old) > 100 * EXACT
        for trainer, cause in zip(trainers, ("status 404", "weights 'default' sampled"), strict=True):
            with closing(trainer.sampler) as sampler:
                with pytest.raises(EngineFailure, match=f"{again.url} failed: .*{cause}"):
                    sampler.run(starter_episodes(), temperature=0.9, concurrency=6)
                sampler.load_weights(1)
                played = starter_episodes()
                sampler.run(played, temperature=0.9, concurrency=6)
                assert [one.ids for one in played] == [one.ids for one in trainer.played]
