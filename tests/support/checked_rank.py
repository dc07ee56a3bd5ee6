"""A process of a round that afterwards shards its policy with torch's FSDP2 and checks what a sharded round relies on.

The first one writes what it found to the file that ``COEVOLVE_TEST_FOUND`` names. Where ``COEVOLVE_TEST_TROUBLE`` is
"RANK STEP", that process is killed right before it plays the rollouts of that step instead.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

FOUND = "COEVOLVE_TEST_FOUND"
TROUBLE = "COEVOLVE_TEST_TROUBLE"


def main() -> None:
    from training.grpo import group_rollouts, launch, round

    round.CHECKPOINT_STEPS = 1
    real, play = round.run_round, group_rollouts.GroupRollouts._play

    def troubled(self, at, *given):
        if [os.environ["RANK"], str(at)] == os.environ[TROUBLE].split():
            os.kill(os.getpid(), signal.SIGKILL)
        return play(self, at, *given)

    def checked(*given):
        from training.grpo import trl_run as module

        kept = []
        train = module.train
        module.train = lambda *arguments: kept.append(train(*arguments))
        try:
            return real(*given)
        finally:
            if kept:
                check(kept[0], given[-1])

    if TROUBLE in os.environ:
        group_rollouts.GroupRollouts._play = troubled
    else:
        round.run_round = checked
    launch.main()


def check(trainer, ranks) -> None:
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from trl.trainer.utils import add_fused_lm_head

    from training.grpo.ranks import whole_state
    from training.rollout.policy import load_policy

    def policy():
        model = load_policy(trainer.rollouts.policy.path, "cpu").model
        add_fused_lm_head(model, temperature=trainer.temperature)
        return model.train()

    plain, sharded = policy(), policy()
    mesh = init_device_mesh("cpu", (ranks.count,))
    for layer in sharded.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    shards = sum(weight.to_local().numel() for weight in sharded.parameters())

    found = dict(whole_state(sharded))
    whole = plain.state_dict()
    equal = ranks.index > 0 or (list(found) == list(whole) and all(torch.equal(found[n], whole[n]) for n in whole))

    written, expected = servers_weights(trainer, ranks, plain, sharded)

    # One distinct row on the first rank, all distinct on the second: 1 forward and 3 without padding.
    drawn = torch.randint(20, 400, (18, 24), generator=torch.Generator().manual_seed(5))
    ids = drawn[:1].repeat(18, 1) if ranks.first else drawn
    calls = []
    sharded.register_forward_pre_hook(lambda *_: calls.append(1))
    scored = []
    for model, ranks.sharded in ((plain, False), (sharded, True)):
        logps, _, _ = trainer._get_per_token_logps_and_entropies(model, ids, torch.ones_like(ids), 12)
        (logps * torch.arange(1.0, 19.0)[:, None]).sum().backward()
        scored.append(logps.detach())
    ranks.sharded = False
    off = 0.0
    for (_, one), (_, other) in zip(plain.named_parameters(), sharded.named_parameters(), strict=True):
        distributed.all_reduce(one.grad)
        gathered = other.grad.full_tensor()
        off = max(off, float((one.grad / ranks.count - gathered).abs().max() / one.grad.abs().max()))
    mine = {
        "state_equal": equal,
        "yielded": len(found),
        "written_equal": written,
        "expected_off": expected,
        "share": shards / sum(weight.numel() for weight in plain.parameters()),
        "forwards": len(calls),
        "logps_off": float((scored[0] - scored[1]).abs().max()),
        "gradients_off": off,
        "threads": torch.get_num_threads(),
    }
    gathered = ranks.gather(mine)
    if gathered is not None:
        Path(os.environ[FOUND]).write_text(json.dumps(gathered))


def servers_weights(trainer, ranks, plain, sharded) -> tuple[bool, float]:
    """Write and score for servers as a divided round does; return what differs from the whole model's."""
    import torch
    from safetensors.torch import load_file

    from training.grpo.ranks import whole_state
    from training.rollout.vllm_server import PolicyWeights

    policy, folder = trainer.rollouts.policy, Path(os.environ[FOUND]).parent
    divided = PolicyWeights(
        replace(policy, model=sharded),
        folder / "divided",
        adapter=False,
        gather=whole_state,
    )
    divided.prepare()
    if not ranks.first:
        return True, 0.0
    whole = PolicyWeights(replace(policy, model=plain), folder / "whole", adapter=False)
    whole.prepare()
    files = [load_file(one.write("step") / "model.safetensors") for one in (divided, whole)]
    equal = all(torch.equal(files[0][name], value) for name, value in files[1].items())
    off = max(abs(mine - its) for mine, its in zip(divided.expected, whole.expected, strict=True))
    return equal and len(files[0]) == len(files[1]), off


if __name__ == "__main__":
    main()
