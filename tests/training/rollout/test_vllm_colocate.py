"""vLLM in the trainer's process: the loop around its engine, with a pretended engine, and with the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from support import ROOT
from support.chatter import Chatter
from support.fake_vllm import FakeServer
from support.late import Late
from support.served_model import change, farthest, save_small
from support.vllm_server import installed_vllm

from environments.base import InputError
from training.rollout.sampling import EngineFailure

torch = Late("torch")


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("model") / "starter")


class Engine:
    """vLLM's engine: a message per step, sampled by the model that a pretended server would sample it with."""

    def __init__(self, server: FakeServer) -> None:
        self.server, self.waiting, self.aborted, self.most = server, [], [], 0
        self.give_up = 0
        self.fail = False

    def add_request(self, key, prompt, parameters, lora_request=None) -> None:
        self.waiting.append((key, prompt["prompt_token_ids"], vars(parameters), lora_request))
        self.most = max(self.most, len(self.waiting))

    def abort_request(self, keys) -> None:
        self.aborted += keys

    def reset_prefix_cache(self) -> bool:
        return True

    def step(self):
        if self.fail:
            raise RuntimeError("EngineDeadError")
        key, ids, given, lora = self.waiting.pop(0)
        model = self.server.model if lora is None else self.server.adapters[lora.lora_name]
        drawn, logprobs = self.server.sample(model, ids, given)
        reason = "stop" if drawn[-1] in given["stop_token_ids"] else "length"
        if self.give_up and not key.startswith("canary"):
            self.give_up -= 1
            drawn, logprobs, reason = drawn[:1], logprobs[:1], "abort"
        held = [{one: SimpleNamespace(logprob=logprob)} for one, logprob in zip(drawn, logprobs, strict=True)]
        one = SimpleNamespace(token_ids=drawn, logprobs=held, finish_reason=reason)
        return [SimpleNamespace(finished=True, request_id=key, outputs=[one])]


@pytest.fixture
def made(starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """A sampler whose vllm is a module of this test."""
    from transformers import AutoModelForCausalLM

    from training.rollout.vllm_colocate import VllmInProcess
    from training.rollout.vllm_weights import PolicyWeights

    kept = SimpleNamespace(given={}, ignore=False)
    server = FakeServer(starter, "here")

    class LLM:
        def __init__(self, **given) -> None:
            kept.given, self.llm_engine = given, Engine(server)
            kept.engine = self.llm_engine

        def collective_rpc(self, method, args) -> None:
            assert method == "load_tensors"
            if not kept.ignore:
                missing, unknown = server.model.load_state_dict({n: v.clone() for n, v in args[0]}, strict=False)
                assert (missing, unknown) == (["lm_head.weight"], []), "the tied output layer has no tensor of its own"

    def lora_request(name, number, path):
        assert number > 0
        if name not in server.adapters:  # another process of the trainer has its own engine
            server.load_adapter(name, path)
        return SimpleNamespace(lora_name=name)

    modules = {
        "vllm": {"LLM": LLM, "SamplingParams": SimpleNamespace},
        "vllm.sampling_params": {"RequestOutputKind": lambda kind: kind},
        "vllm.lora.request": {"LoRARequest": lora_request},
    }
    for name in ("vllm", "vllm.lora", "vllm.sampling_params", "vllm.lora.request"):
        module = ModuleType(name)
        vars(module).update(modules.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)

    def make(adapter: bool = False, **ranks: object) -> SimpleNamespace:
        model = AutoModelForCausalLM.from_pretrained(starter)
        if adapter:
            from peft import get_peft_model

            from training.rollout.lora import lora_config
            from training.settings import LoraSettings

            torch.manual_seed(1)
            get_peft_model(model, lora_config(LoraSettings(rank=3), model))
        policy = SimpleNamespace(model=model, path=str(starter))
        weights = PolicyWeights(policy, tmp_path / "weights", adapter=adapter, autocast=False)
        sampler = VllmInProcess(
            weights, 1e-3, positions=256, dtype="float32", memory=0.4, lora_rank=3 if adapter else None, **ranks
        )
        return SimpleNamespace(model=model, sampler=sampler, kept=kept, weights=weights)

    return make


def chatters(count: int = 6) -> list[Chatter]:
    return [Chatter(seed, actions=3, longest=8) for seed in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True])
def test_logprobs_are_the_trainers_before_and_after_an_update(made, adapter: bool) -> None:
    engine = made(adapter)
    for version in (0, 1):
        engine.sampler.load_weights(version)
        for temperature in (0.0, 0.9):
            played = chatters()
            engine.sampler.run(played, temperature=temperature, concurrency=4)
            assert farthest(engine.model, played, temperature) < 1e-5
            assert engine.kept.engine.most <= 4
        change(engine.model)
    figures = engine.sampler.figures()
    assert figures.messages == 4 * 6 * 3
    assert figures.gap < 1e-5
    assert min(figures.sampling, figures.load, figures.canary, figures.idle) > 0


def test_servers_and_an_engine_in_process_draw_the_same(made) -> None:
    from support.fake_vllm import FakeVllm

    from training.rollout.settings import SamplingSettings
    from training.rollout.vllm_server import VllmServers

    engine = made()
    fakes = FakeVllm(Path(engine.weights.policy.path), "http://a:1")
    settings = SamplingSettings(engine="vllm_server", servers=("http://a:1",))
    servers = VllmServers(settings, engine.weights, 1e-3, transport=fakes.transport)
    here, there = chatters(), chatters()
    for sampler, played in ((engine.sampler, here), (servers, there)):
        sampler.load_weights(0)
        sampler.run(played, temperature=0.9, concurrency=3)
    servers.close()
    assert [one.ids for one in here] == [one.ids for one in there]


def test_the_engine_is_made_for_the_policy(made) -> None:
    given = made(adapter=True).kept.given
    assert given["max_model_len"] == 256
    assert given["logprobs_mode"] == "processed_logprobs"
    assert (given["enable_lora"], given["max_lora_rank"]) == (True, 8)
    assert given["worker_extension_cls"] == "training.rollout.vllm_extension.PolicyWorker"


def test_each_of_several_processes_has_an_engine_and_one_writes_the_adapter(made, tmp_path: Path) -> None:
    shared: list[object] = []

    def by_first(act):
        shared.append(act())
        return shared[-1]

    first = made(adapter=True, processes=2, by_first=by_first)
    other = made(adapter=True, processes=2, first=False, by_first=lambda act: shared[-1])
    assert other.kept.given["distributed_executor_backend"] == "external_launcher", "it takes the process's own GPU"
    for version in (0, 1):
        for one in (first, other):
            one.sampler.load_weights(version)
        assert [path.name for path in (tmp_path / "weights").iterdir()] == [f"step-{version}-{version + 1}"]
    drawn = []
    for one in (first, other):
        played = chatters()
        one.sampler.run(played, temperature=0.9, concurrency=6)
        drawn.append([driver.ids for driver in played])
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_weights_that_did_not_arrive_do_not_pass_the_canary(made) -> None:
    engine = made()
    engine.sampler.load_weights(0)
    change(engine.model)
    engine.kept.ignore = True
    with pytest.raises(EngineFailure, match="answers as other weights would"):
        engine.sampler.load_weights(1)


def test_a_policy_that_is_not_a_number_does_not_pass_the_canary(made) -> None:
    engine = made()
    with torch.no_grad():
        next(engine.model.parameters()).fill_(float("nan"))
    engine.kept.ignore = True
    with pytest.raises(EngineFailure, match="by up to inf nats"):
        engine.sampler.load_weights(0)


def test_what_the_engine_gives_up_is_sampled_again_a_few_times(made) -> None:
    engine, undisturbed = made(), chatters()
    engine.sampler.load_weights(0)
    engine.sampler.run(undisturbed, temperature=0.9, concurrency=6)
    engine.kept.engine.give_up = 2
    played = chatters()
    engine.sampler.run(played, temperature=0.9, concurrency=6)
    assert [one.ids for one in played] == [one.ids for one in undisturbed]
    assert engine.sampler.figures().resampled == 2
    engine.kept.engine.give_up = 100
    with pytest.raises(EngineFailure, match="gave up a message 4 times"):
        engine.sampler.run(chatters(1), temperature=0.9, concurrency=1)


def test_an_engine_that_fails_ends_the_round_and_asks_for_nothing_more(made) -> None:
    engine = made()
    engine.sampler.load_weights(0)
    engine.kept.engine.fail = True
    with pytest.raises(EngineFailure, match="RuntimeError: EngineDeadError"):
        engine.sampler.run(chatters(2), temperature=0.9, concurrency=2)
    assert len(engine.kept.engine.aborted) == 2


def test_without_vllm_the_engine_is_refused(made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(InputError, match="vllm_colocate needs vLLM in the trainer's own environment"):
        made()


REAL = """
import json, sys
from types import SimpleNamespace
sys.path.insert(0, "tests")
import torch
torch.set_num_threads(1)
from transformers import AutoModelForCausalLM
from support.chatter import Chatter
from training.rollout.vllm_colocate import VllmInProcess
from training.rollout.vllm_weights import PolicyWeights
from pathlib import Path

class Shifted(Chatter):
    def _suffix(self):
        prompt = super()._suffix()
        ids = [one + 100 for one in prompt.ids]
        self.ids[-len(ids):] = ids
        return type(prompt)(ids, prompt.max_new_tokens)

starter, folder = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(starter, dtype=torch.float32)
weights = PolicyWeights(SimpleNamespace(model=model, path=starter), Path(folder), adapter=False, autocast=False)
sampler = VllmInProcess(weights, 1e-3, positions=512, dtype="float32", memory=0.4)
worst, ids = 0.0, []
for version in range(2):
    sampler.load_weights(version)
    played = [Shifted(seed, actions=3, longest=12, stop_ids=frozenset(range(100, 900, 5))) for seed in range(6)]
    sampler.run(played, temperature=0.9, concurrency=6)
    ids.append([one.ids for one in played])
    for one in played:
        with torch.no_grad():
            logits = model.eval()(input_ids=torch.tensor([one.ids])).logits[0, :-1] / 0.9
        own = torch.log_softmax(logits, -1)[torch.arange(len(one.ids) - 1), torch.tensor(one.ids[1:])].tolist()
        pairs = zip(one.logprobs[1:], own, one.sampled[1:], strict=True)
        worst = max(worst, *(abs(a - b) for a, b, drawn in pairs if drawn))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.02 * torch.randn_like(value))
print(json.dumps({"worst": worst, "differ": ids[0] != ids[1], **sampler.figures().model_dump()}))
"""


@pytest.mark.vllm
@pytest.mark.external
@pytest.mark.process
@pytest.mark.slow
def test_the_real_engine_samples_with_the_trainers_weights(tmp_path: Path) -> None:
    """In vLLM's own environment, where this project's sampler runs, though not its trainer."""
    argv = [installed_vllm(), "-c", REAL, str(ROOT / "recipes" / "starter"), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["worst"] < 1e-4
    assert measured["gap"] < 1e-4
    assert measured["differ"]
    assert measured["messages"] == 2 * 6 * 3
