"""Checks, before anything is written or paid, that a round fits into the memory of the devices at hand.

The plan of ``coevolve plan`` is a count at the highest point of a step, with every rollout at its token limit. How long
rollouts will be is not known, and the count has been 0.87 to 1.24 of what was measured (docs/scale.md). So a recipe is
refused only for what it needs with the shortest rollouts and with the plan too high by as much as it ever was, and a
line on stderr warns of one that may not fit with the longest. All of this is our choice.
"""

from __future__ import annotations

from environments.base import InputError
from environments.terminal import say
from graph.plan import config_of, engine_of, in_gib, launch_of, needed, plan_of
from graph.settings import RunSettings
from training.device_memory import device_at_hand, memory_at_hand
from training.grpo.launch import offloads
from training.model_shape import ModelShape, has_formula, shape_of
from training.plan import Launch, Memory, memory_of

__all__ = ["PLANNED_TO_MEASURED", "check_memory"]

PLANNED_TO_MEASURED = (0.87, 1.24)
"""The lowest and the highest ratio of a planned to a measured memory; on CPU, five set-ups (docs/scale.md)."""


def check_memory(settings: RunSettings) -> None:
    """Raise InputError for a policy that cannot be trained here, and warn of one that may not fit.

    Nothing is downloaded and no weights are read. Not checked are models of families whose parameters have no formula,
    because counting them would build the model; a launch that offloads, because the plan does not know what stays on a
    device; and servers that other commands started, on devices of their own.
    """
    if settings.training.launch is not None and offloads(settings.training.launch):
        return
    device = device_at_hand(settings.policy.device)
    available = memory_at_hand(device)
    shape = _shape(settings)
    if available is None or shape is None:
        return
    launch, engine = launch_of(settings), engine_of(settings)
    policy, training = settings.policy, settings.training

    def bytes_for(**rollouts: int) -> int:
        memory = memory_of(shape, policy, training, device=device, launch=launch, engine=engine, **rollouts)
        return needed(_here(memory, launch), device)

    low, high = PLANNED_TO_MEASURED
    where = "this machine" if device == "cpu" else "a GPU of this machine"
    least = bytes_for(tokens=1, rows_at_once=1) / high
    if least > available:
        plan = plan_of(settings, shape, device=device, available=available, launch=launch, engine=engine)
        settings_alone = [way for way in plan.advice if "--" not in way]  # the others are options of coevolve plan
        advice = f"set {settings_alone[0]}" if settings_alone else "choose a smaller policy or a larger machine"
        raise InputError(
            f"policy.path: {settings.policy.path} cannot be trained here: even with the shortest rollouts a round "
            f"needs {in_gib(least)} GiB and {where} has {in_gib(available)}: {advice} (coevolve plan shows each part)"
        )
    planned = bytes_for()
    if planned / low > available:
        say(
            f"warning: {settings.policy.path} may not fit: with every rollout at training.max_tokens "
            f"({settings.training.max_tokens}) a round needs {in_gib(planned / high)} to {in_gib(planned / low)} GiB "
            f"and {where} has {in_gib(available)}: coevolve plan says what needs less",
        )


def _shape(settings: RunSettings) -> ModelShape | None:
    """Return the policy's shape, None where only the library knows it."""
    config = config_of(settings, None)
    if not has_formula(config):
        return None
    try:
        return shape_of(config)
    except InputError:  # a configuration that leaves a size to the library's default
        return None


def _here(memory: Memory, launch: Launch) -> Memory:
    """Return what of ``memory`` is needed on this machine: its processes."""
    here = [memory.devices[0].model_copy(update={"count": launch.processes})]
    return memory.model_copy(update={"devices": tuple(here)})
