"""Checks, before anything is written or paid, that a round fits into the memory of the devices at hand.

The plan of ``coevolve plan`` is a count at the highest point of a step, with every rollout at its token limit. How long
rollouts will be is not known, and the count has been 0.87 to 1.24 of what was measured (docs/scale.md). So a recipe is
refused only for what it needs with the shortest rollouts and with the plan too high by as much as it ever was, and a
line on stderr warns of one that may not fit with the longest. All of this is our choice.
"""

from __future__ import annotations

from pathlib import Path

from environments.base import InputError
from environments.terminal import say
from graph.plan import config_of, in_gib, launch_of
from graph.settings import RunSettings
from training.device_memory import device_at_hand, memory_at_hand
from training.grpo.launch import offloads
from training.model_shape import shape_in_process_of_its_own
from training.plan import memory_of
from training.rollout.policy_path import policy_folder

__all__ = ["PLANNED_TO_MEASURED", "check_memory"]

PLANNED_TO_MEASURED = (0.87, 1.24)
"""The lowest and the highest ratio of a planned to a measured memory; on CPU, five set-ups (docs/scale.md)."""

SMALL = 1000
"""Weights that are smaller than the memory at hand by this factor are not counted: that takes seconds."""


def check_memory(settings: RunSettings) -> None:
    """Raise InputError for a policy that cannot be trained here, and warn of one that may not fit.

    Nothing is downloaded and no weights are read. Not checked are a launch that offloads, because the plan does not
    know what stays on a device; and servers, on devices of their own.
    """
    training = settings.training
    if training.launch is not None and offloads(training.launch):
        return
    device = device_at_hand(settings.policy.device)
    available = memory_at_hand(device)
    weights = sum(file.stat().st_size for file in Path(policy_folder(settings.policy.path)).glob("*.safetensors"))
    if available is None or 0 < weights * SMALL < available:
        return
    shape = shape_in_process_of_its_own(config_of(settings), settings.policy.lora)
    sampling = settings.sampling

    def bytes_for(**rollouts: int) -> int:
        memory = memory_of(
            shape, settings.policy, training, device=device, launch=launch_of(settings), sampling=sampling, **rollouts
        )
        # The trainer's own; servers are elsewhere.
        return memory.model_copy(update={"devices": memory.devices[:1]}).fullest(device)

    low, high = PLANNED_TO_MEASURED
    where = "this machine" if device == "cpu" else "a GPU of this machine"
    least = bytes_for(tokens=1, rows_at_once=1) / high
    if least > available:
        raise InputError(
            f"policy.path: {settings.policy.path} cannot be trained here: even with the shortest rollouts a round "
            f"needs {in_gib(least)} GiB and {where} has {in_gib(available)}: choose a smaller policy or train a LoRA "
            "adapter (coevolve plan shows each part and what would fit)"
        )
    planned = bytes_for()
    if planned / low > available:
        say(
            f"warning: {settings.policy.path} may not fit: with every rollout at training.max_tokens "
            f"({training.max_tokens}) a round needs {in_gib(planned / high)} to {in_gib(planned / low)} GiB "
            f"and {where} has {in_gib(available)}: coevolve plan says what needs less",
        )
