"""Checks everything that a run will need, before anything is written or paid.

That is the environment, evaluation set, keys of the roles, files and policy of a recipe, without loading weights and
within a second or two. A run that passes can still fail later, on another machine or another day.
"""

from __future__ import annotations

from pathlib import Path

from agents.chat.endpoint import resolve
from environments.base import InputError
from environments.declared import look
from environments.registry import benchmark_of, is_import_path
from environments.terminal import say
from evaluation.settings import check_evaluation
from graph.fit import config_of, in_gib
from graph.settings import RunSettings, check_benchmark, check_starts
from graph.tracking import check_trackers
from memory.settings import OFFICIAL
from training.device_memory import device_at_hand, memory_at_hand
from training.plan import memory_of, shape_in_process_of_its_own
from training.rollout.policy import policy_folder
from training.settings import ElsewhereSettings, PolicySettings


def check_run(settings: RunSettings, *, trains: bool = True, opens_own: bool = True) -> None:
    """Raise InputError that names the first key for which a run with ``settings`` would fail.

    ``trains`` is False where no policy is needed, to make D_0 alone. ``opens_own`` is False where no code that the
    settings name may run: an environment of the user's is then looked at, and what needs it open is not checked.
    """
    environment = None
    if opens_own or not settings.environment.is_own:
        environment = settings.environment.open()
        check_benchmark(settings, f"environment {settings.environment.name}", benchmark_of(environment))
    elif is_import_path(settings.environment.name):
        look(settings.environment.name)
    for name, role in settings.roles.by_chat().items():
        resolve(role, name)
    _check_tasks(settings.tasks.initial)
    check_evaluation(settings.evaluation, environment)
    if trains:
        from training.preflight import check_policy
        from training.rollout.engines import check_engine

        if environment is not None:
            check_starts(settings.signals, environment)
        check_policy(settings.policy, settings.training, settings.sampling, settings.evaluation.max_tokens)
        check_engine(settings.sampling, settings.policy, settings.training)
        if settings.training.elsewhere is None:
            check_memory(settings)
        else:
            check_elsewhere(settings.training.elsewhere, settings.policy)
        check_trackers(settings.training.report_to)


def check_elsewhere(elsewhere: ElsewhereSettings, policy: PolicySettings) -> None:
    """Raise InputError where the engine of ``training.elsewhere`` cannot be started, or not with this policy."""
    if elsewhere.engine == "verl" and not Path(elsewhere.python).exists():
        raise InputError(f"training.elsewhere.python: there is no {elsewhere.python}: run make verl")
    if elsewhere.engine == "verl" and policy.lora is not None:
        raise InputError("training.elsewhere: verl trains all weights here: set policy.lora to null")


def _check_tasks(initial: str | None) -> None:
    if initial in (None, OFFICIAL) or Path(initial).is_file():
        return
    raise InputError(f"tasks.initial: {initial} cannot be read, it does not exist: name a file of tasks")


PLANNED_TO_MEASURED = (0.87, 1.24)
"""The lowest and the highest ratio of planned to measured memory that is allowed for (ours).

Five set-ups on CPU were between 0.93 and 1.14 (docs/scale.md). The range is wider, because the largest of these models
had 44 M parameters. The plan counts the highest point of a step, with every rollout at its token limit. So a recipe is
refused only for what it needs with the shortest rollouts and with the plan too high by as much as that.
"""

SMALL = 1000
"""Weights that are smaller than the memory at hand by this factor are not counted: that takes seconds."""


def check_memory(settings: RunSettings) -> None:
    """Raise InputError for a policy that cannot be trained here, and warn of one that may not fit.

    Nothing is downloaded and no weights are read. Servers are not checked, unless ``plan.gpus`` says that they are on
    this machine.
    """
    training = settings.training
    device = device_at_hand(settings.policy.device)
    available = memory_at_hand(device)
    weights = sum(file.stat().st_size for file in Path(policy_folder(settings.policy.path)).glob("*.safetensors"))
    if available is None or 0 < weights * SMALL < available:
        return
    shape = shape_in_process_of_its_own(config_of(settings), settings.policy.lora)

    def bytes_for(**rollouts: int) -> int:
        changed = training.model_copy(update=rollouts)
        memory = memory_of(shape, settings.policy, changed, device=device, sampling=settings.sampling)
        here = memory.devices if settings.plan.gpus is not None else memory.devices[:1]
        return memory.model_copy(update={"devices": here}).fullest(device, settings.plan.gpus)

    low, high = PLANNED_TO_MEASURED
    where = "this machine" if device == "cpu" else "a GPU of this machine"
    one_of_each = training.updates_per_step * training.processes
    least = bytes_for(max_tokens=1, tasks_per_step=one_of_each, rollouts_per_task=1) / high
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
