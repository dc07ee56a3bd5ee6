"""verl without Ray, FSDP and vLLM: its data set, agent loop worker, advantages and loss, on a CPU, by its own settings.

Run by the Python of ``.venvs/verl`` in place of ``-m verl.trainer.main_ppo``, with the same arguments. Tokens are drawn
by a plain loop over the model, and a plain AdamW takes the step that verl's engine would take.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

HARDWARE = ("trainer.n_gpus_per_node=1", "trainer.device=cpu")


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


def logprobs_of(model, batch, temperature: float):
    width = batch["responses"].shape[1]
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    logits = model(**given).logits[:, -width - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, batch["responses"][..., None])[..., 0]


def main(arguments: list[str]) -> None:
    give_up = "+give_up=true" in arguments
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", [*(one for one in arguments if one != "+give_up=true"), *HARDWARE])
    validate_config(config, use_reference_policy=True, use_critic=False)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    torch.manual_seed(0)
    path = config.actor_rollout_ref.model.path
    model, frozen = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for _ in range(2))
    tokenizer = AutoTokenizer.from_pretrained(path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=actor.optim.lr, weight_decay=actor.optim.weight_decay)
    server = PlainServer(model, give_up)
    worker = AgentLoopWorker(config, server)
    data = RLHFDataset(config.data.train_files, tokenizer, config.data)
    size, rollouts = config.data.train_batch_size, config.actor_rollout_ref.rollout
    assert len(data) == size * config.trainer.total_training_steps
    seen = []
    for step in range(config.trainer.total_training_steps):
        rows = DataProto.from_single_dict(collate_fn([data[step * size + place] for place in range(size)]))
        rows.non_tensor_batch["uid"] = np.array([f"{step}-{place}" for place in range(size)], dtype=object)
        rows = rows.repeat(rollouts.n, interleave=True)
        played = asyncio.run(worker.generate_sequences(rows))
        batch = played.batch
        first, last = (played.non_tensor_batch[f"{name}_global_steps"] for name in ("min", "max"))
        assert all(0 < a <= b for a, b in zip(first, last, strict=True)), "verl's trainer needs both"
        assert any(a < b for a, b in zip(first, last, strict=True)), "episodes have several messages"
        mask = batch["response_mask"]
        old = logprobs_of(model, batch, rollouts.temperature).detach()
        gap = float(((old - batch["rollout_log_probs"]) * mask).abs().max())
        played.batch["token_level_rewards"] = batch["rm_scores"]
        played = compute_advantage(played, "grpo", config=config.algorithm)
        advantages = played.batch["advantages"]
        actor.global_batch_info.update(dp_size=1, batch_num_tokens=None, global_batch_size=None, loss_scale_factor=None)
        logprobs = logprobs_of(model, batch, rollouts.temperature)
        loss, _ = get_policy_loss_fn("vanilla")(old, logprobs, advantages, mask, actor.loss_agg_mode, actor)
        reference = logprobs_of(frozen, batch, rollouts.temperature).detach()
        kl = kl_penalty(logprobs, reference, actor.kl_loss_type)
        (loss + actor.kl_loss_coef * (kl * mask).sum() / mask.sum()).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), actor.optim.clip_grad))
        optimizer.step()
        optimizer.zero_grad()
        seen.append(
            {
                "gap": gap,
                "norm": norm,
                "rewards": batch["rm_scores"].sum(-1).tolist(),
                "sampled": mask.sum(-1).tolist(),
                "advantages": float(advantages.abs().sum()),
                "uids": played.non_tensor_batch["uid"].tolist(),
            }
        )
    saved = Path(config.trainer.default_local_dir) / f"global_step_{len(seen)}" / "actor" / "huggingface"
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    (saved.parent / "seen.json").write_text(json.dumps(seen))
    (saved.parent / "config.yaml").write_text(OmegaConf.to_yaml(config))


if __name__ == "__main__":
    assert sys.argv[1:3] == ["-m", "verl.trainer.main_ppo"], sys.argv
    main(sys.argv[3:])
