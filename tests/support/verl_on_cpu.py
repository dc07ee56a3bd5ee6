"""verl without Ray and vLLM, on a CPU, by its own settings: data set, agent loop worker, advantages, training workers.

Run by the Python of ``.venvs/verl`` in place of ``-m verl.trainer.main_ppo``, with the same arguments. Its workers hold
the policy and the reference as FSDP2 over gloo, in this one process; they take loss and step, hand their weights
on and save them. Tokens are drawn by a plain loop over a copy of the model, into which the weights go.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import set_platform

_CPU = {
    "device_name": property(lambda self: "cpu"),
    "device_module": property(lambda self: torch.cpu),
    "is_available": lambda self: True,
    "current_device": lambda self: "cpu",
    "communication_backend_name": lambda self: "gloo",
    "visible_devices_envvar": lambda self: "NO_VISIBLE_DEVICES",
    "ray_noset_envvars": lambda self: [],
}
_NOTHING = dict.fromkeys(PlatformBase.__abstractmethods__, lambda self, *given: None)
# verl has platforms of GPUs alone, and its modules ask at once which it is.
set_platform(type("CPU", (PlatformBase,), _NOTHING | _CPU)())

from verl.experimental.agent_loop.agent_loop import AgentLoopWorker  # noqa: E402
from verl.protocol import DataProto  # noqa: E402
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, compute_advantage  # noqa: E402
from verl.utils.config import validate_config  # noqa: E402
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn  # noqa: E402
from verl.workers.engine.fsdp import transformer_impl  # noqa: E402
from verl.workers.engine_workers import ActorRolloutRefWorker  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

HARDWARE = ("trainer.n_gpus_per_node=1", "trainer.device=cpu")
for _part in ("actor", "ref"):
    HARDWARE += (f"actor_rollout_ref.{_part}.strategy=fsdp2", f"actor_rollout_ref.{_part}.use_torch_compile=false")
    HARDWARE += (f"+actor_rollout_ref.{_part}.fsdp_config.mixed_precision={{param_dtype: fp32}}",)


def one_process() -> None:
    """Begin a group of this process alone; nothing is pinned, and no memory of a device counted."""
    transformer_impl.CPUOffloadPolicy = lambda pin_memory: CPUOffloadPolicy(pin_memory=False)
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved", "empty_cache"):
        setattr(torch.cpu, name, lambda *given: 0)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    os.environ["VERL_ENGINE_DEVICE"] = "cuda"  # the engine that it would take there
    os.environ |= {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


class PlainServer:
    """``LLMServerClient.generate`` by a loop over the model; ``give_up`` cuts the third message short."""

    def __init__(self, model, give_up: bool) -> None:
        self.model, self.calls, self.give_up = model, 0, give_up

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.calls += 1
        wanted = {"temperature", "top_p", "top_k", "repetition_penalty", "logprobs", "max_tokens", "stop_token_ids"}
        assert set(sampling_params) == wanted, sampling_params
        assert (sampling_params["top_p"], sampling_params["top_k"], sampling_params["logprobs"]) == (1, -1, True)
        ids, logprobs = [], []
        for _ in range(sampling_params["max_tokens"]):
            with torch.no_grad():
                logits = self.model(input_ids=torch.tensor([[*prompt_ids, *ids]])).logits[0, -1]
            dist = torch.log_softmax(logits / sampling_params["temperature"], -1)
            drawn = int(torch.multinomial(dist.exp(), 1))
            ids.append(drawn)
            logprobs.append(float(dist[drawn]))
            if drawn in sampling_params["stop_token_ids"] or (self.give_up and self.calls == 3):
                break
        versions = {"min_global_steps": self.calls, "max_global_steps": self.calls}
        return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason="completed", extra_fields=versions)


def worker(config, role: str) -> ActorRolloutRefWorker:
    made = ActorRolloutRefWorker(config.actor_rollout_ref, role)
    made.init_model()
    return made


def hand_on(actor: ActorRolloutRefWorker, model) -> None:
    """Copy the weights that verl hands to a server into ``model``."""
    weights, _ = actor.actor.engine.get_per_tensor_param()
    missing, unknown = model.load_state_dict({name: tensor.clone() for name, tensor in weights}, strict=False)
    assert not unknown, unknown
    assert all(name == "lm_head.weight" for name in missing), missing  # tied


def main(arguments: list[str]) -> None:
    give_up = "+give_up=true" in arguments
    one_process()
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", [*(one for one in arguments if one != "+give_up=true"), *HARDWARE])
    validate_config(config, use_reference_policy=True, use_critic=False)
    torch.manual_seed(0)
    path, temperature = config.actor_rollout_ref.model.path, config.actor_rollout_ref.rollout.temperature
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    server = PlainServer(model, give_up)
    agents = AgentLoopWorker(config, server)
    written = OmegaConf.to_yaml(config)
    trainer = SimpleNamespace(
        config=config,
        ref_in_actor=False,
        distillation_config=None,
        ref_policy_wg=worker(config, "ref"),
        actor_rollout_wg=worker(config, "actor"),
    )
    data = RLHFDataset(config.data.train_files, tokenizer, config.data)
    size, rollouts = config.data.train_batch_size, config.actor_rollout_ref.rollout
    assert len(data) == size * config.trainer.total_training_steps
    seen = []
    for step in range(config.trainer.total_training_steps):
        rows = DataProto.from_single_dict(collate_fn([data[step * size + place] for place in range(size)]))
        rows.non_tensor_batch["uid"] = np.array([f"{step}-{place}" for place in range(size)], dtype=object)
        rows = rows.repeat(rollouts.n, interleave=True)
        played = asyncio.run(agents.generate_sequences(rows))
        first, last = (played.non_tensor_batch[f"{name}_global_steps"] for name in ("min", "max"))
        assert all(0 < a <= b for a, b in zip(first, last, strict=True)), "verl's trainer needs both"
        assert any(a < b for a, b in zip(first, last, strict=True)), "episodes have several messages"
        played.meta_info["temperature"] = temperature
        played.meta_info["global_token_num"] = played.batch["attention_mask"].sum(-1).tolist()
        old, _ = RayPPOTrainer._compute_old_log_prob(trainer, played)
        played = played.union(DataProto.from_dict({"old_log_probs": old.batch["old_log_probs"]}))
        played = played.union(RayPPOTrainer._compute_ref_log_prob(trainer, played))
        batch = played.batch
        mask = batch["response_mask"]
        gap = float(((batch["old_log_probs"] - batch["rollout_log_probs"]) * mask).abs().max())
        batch["token_level_rewards"] = batch["rm_scores"]
        played = compute_advantage(played, "grpo", config=config.algorithm)
        done = RayPPOTrainer._update_actor(trainer, played)
        hand_on(trainer.actor_rollout_wg, model)
        seen.append(
            {
                "gap": gap,
                "norm": float(np.mean(done.meta_info["metrics"]["actor/grad_norm"])),
                "rewards": batch["rm_scores"].sum(-1).tolist(),
                "sampled": mask.sum(-1).tolist(),
                "advantages": float(played.batch["advantages"].abs().sum()),
                "uids": played.non_tensor_batch["uid"].tolist(),
            }
        )
    saved = Path(config.trainer.default_local_dir) / f"global_step_{len(seen)}" / "actor"
    trainer.actor_rollout_wg.save_checkpoint(str(saved), global_step=len(seen))
    (saved / "seen.json").write_text(json.dumps(seen))
    (saved / "config.yaml").write_text(written)


if __name__ == "__main__":
    assert sys.argv[1:3] == ["-m", "verl.trainer.main_ppo"], sys.argv
    main(sys.argv[3:])
