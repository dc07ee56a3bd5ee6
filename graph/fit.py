"""The plan of a recipe: what its devices must hold, whether they do, which settings would fit, and what the run costs.

Counts are exact where the settings fix them. What depends on how training goes is bounded ("at most"), unless section
plan states a mean.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from agents.chat.endpoint import destination
from environments.base import InputError, Record
from environments.command import say
from graph.settings import RunSettings
from training.device_memory import device_at_hand, memory_at_hand
from training.plan import (
    GIB,
    Device,
    Memory,
    ModelShape,
    memory_of,
    shape_in_process_of_its_own,
    shape_of,
    shipped_config,
)
from training.policy_files import CONFIG, read_config
from training.rollout.policy import policy_folder
from training.settings import LoraSettings

SHORTEST = 1024
"""Tokens of the shortest episodes that are advised (ours)."""

ADAPTERS_RATE = 1e-5
"""The learning rate that is advised with an adapter where that of all weights is lower (ours)."""


class Forecast(Record):
    """The costs of a run. None: not known without a rate of section plan that is missing.

    ``rollouts``: iterations x steps x tasks per step x K, with every resample at most. ``sampled_tokens``: at most
    ``training.max_tokens`` each. ``gpu_hours``: rollouts x ``plan.gpu_seconds``; ``hours``: over the machine's GPUs.
    ``requests``: of chat roles, at most, without retries. Where exploration makes D_0, as many contexts as tasks are
    counted for it, an assumption: some give several tasks and some none. ``prompt_tokens`` and
    ``completion_tokens``: requests x tokens of a request. ``roles_money``: the roles' tokens x their prices, the
    dearest of several roles.
    """

    rollouts: int
    sampled_tokens: int
    hours: float | None
    gpu_hours: float | None
    requests: int
    prompt_tokens: float | None
    completion_tokens: float | None
    roles_money: float | None


class RecipePlan(Record):
    """The plan of a recipe, or of all seeds of an arm.

    ``memory``: None where the policy's config.json is not here, and of rounds that another engine trains, which
    ``elsewhere`` names. ``gpus``: of the machine, which processes and servers share where they are more; None: each has
    its own. ``available``: bytes of each device, None where not known. ``advice``: settings with which it would fit, of
    those that change least of the training. ``forecast``: of one run, None for an arm that is scored and not trained.
    ``destinations``: the address that each chat role asks, with the variable of its key, by role. ``gpu_seconds``: the
    stated rate of a rollout.
    """

    policy: str
    device: Device
    memory: Memory | None
    gpus: int | None
    available: int | None
    advice: str | None
    forecast: Forecast | None
    seeds: int = 1
    elsewhere: str | None = None
    destinations: dict[str, str] = {}
    gpu_seconds: float | None = None

    @property
    def fullest(self) -> int:
        """The bytes that a device must have. The plan needs its memory."""
        assert self.memory is not None
        return self.memory.fullest(self.device, self.gpus)

    @property
    def fits(self) -> bool | None:
        """Whether the devices hold it, None where either is not known."""
        return None if self.memory is None or self.available is None else self.fullest <= self.available


def plan_of(
    settings: RunSettings,
    config: dict[str, Any] | None,
    *,
    device: Device,
    available: int | None,
) -> RecipePlan:
    """Return the plan of a run whose policy has that config.json, on devices of ``available`` bytes each.

    On a machine without a GPU all processes share one memory: their needs are added, as those of processes and servers
    that share a GPU (``plan.gpus``).
    """

    def needs(changed: RunSettings) -> Memory:
        shape = _shape(json.dumps(config), changed.policy.lora)
        return memory_of(shape, changed.policy, changed.training, device=device, sampling=changed.sampling)

    elsewhere = settings.training.elsewhere
    made = RecipePlan(
        policy=settings.policy.path,
        device=device,
        memory=None if config is None or elsewhere is not None else needs(settings),
        gpus=settings.plan.gpus if device == "cuda" else None,
        available=available,
        advice=None,
        forecast=forecast(settings),
        elsewhere=None if elsewhere is None else elsewhere.engine,
        gpu_seconds=settings.plan.gpu_seconds,
        destinations={f"roles.{name}": str(destination(role, name)) for name, role in settings.roles.by_chat().items()},
    )
    if made.fits is not False:
        return made
    for changes in _ways_out(settings, device):
        if made.model_copy(update={"memory": needs(_changed(settings, changes))}).fits:
            return made.model_copy(update={"advice": " ".join(f"{key}={_said(new)}" for key, new in changes.items())})
    return made


def config_of(settings: RunSettings, given: Path | None = None) -> dict[str, Any]:
    """Return the policy's config.json; nothing is downloaded.

    Of a model of the hub it is the ``given`` one, the cached one, or what ships of it (``training/backbones.json``).
    Raises InputError for a folder without one, and for a model of which there is none of these.
    """
    found = config_here(settings, given)
    if found is None:
        raise InputError(
            f"policy.path: {settings.policy.path} is not in the hub's cache, and nothing is downloaded here: give its "
            "config.json with --config FILE"
        )
    return found


def config_here(settings: RunSettings, given: Path | None) -> dict[str, Any] | None:
    """Return like ``config_of``; None for a model of the hub that is not here and not ``given``."""
    path = given
    if path is None:
        named = policy_folder(settings.policy.path)
        path = Path(named) / CONFIG
        if not Path(named).is_dir():
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(named, CONFIG)
            if not isinstance(cached, str):
                return shipped_config(named)
            path = Path(cached)
    if not path.is_file():
        raise InputError(f"{path} is missing: give the policy's config.json with --config FILE")
    return read_config(path)[1]


@functools.cache
def _shape(config: str, lora: LoraSettings | None) -> ModelShape:
    """Return ``shape_of``, once for all arms of a study that train one policy alike: building a model takes seconds."""
    return shape_of(json.loads(config), lora)


def _ways_out(settings: RunSettings, device: Device) -> Iterator[dict[str, Any]]:
    """Yield settings that need less memory, by dotted key.

    First those that compute the same update, then an adapter, then shorter episodes.
    """
    policy, training = settings.policy, settings.training
    rows = training.tasks_per_step * training.rollouts_per_task // training.updates_per_step // training.processes
    adapter: dict[str, Any] = {"policy.lora": LoraSettings()}
    if device == "cuda" and policy.known_dtype != "bfloat16":
        adapter["policy.dtype"] = "bfloat16"
    if training.learning_rate < ADAPTERS_RATE:
        adapter["training.learning_rate"] = ADAPTERS_RATE
    ways: list[list[dict[str, Any]]] = [[{}], [{}], [{}], [{}]]
    kinds, engines, tuned, sizes = ways
    if policy.lora is None:
        kinds.append(adapter)
    if device == "cuda" and settings.sampling.engine == "in_process":
        engines.append({"sampling.engine": "vllm_server"})
    if not training.gradient_checkpointing:
        tuned.append({"training.gradient_checkpointing": True})
    smaller = range((training.micro_batch or rows) - 1, 0, -1)
    sizes += [{"training.micro_batch": size} for size in smaller if rows % size == 0]
    for kind, engine, recompute, size in product(*ways):
        yield kind | engine | recompute | size
    length = training.max_tokens
    while (length := length // 2) >= max(SHORTEST, training.max_new_tokens):
        for kind, engine in product(kinds, engines):
            yield kind | engine | {"training.max_tokens": length} | sizes[-1] | tuned[-1]


def _changed(settings: RunSettings, changes: dict[str, Any]) -> RunSettings:
    for key, value in changes.items():
        section, _, name = key.partition(".")
        settings = settings.model_copy(update={section: getattr(settings, section).model_copy(update={name: value})})
    return settings


def _said(value: Any) -> str:  # noqa: ANN401 - the value of any setting
    if isinstance(value, LoraSettings):
        return f"{{rank: {value.rank}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def refusal(plan: RecipePlan, recipe: str) -> str:
    assert plan.available is not None
    assert plan.memory is not None
    devices = plan.memory.devices
    worst = max(devices, key=lambda need: need.peak * (need.count if plan.device == "cpu" else 1))
    several = f" in {worst.count} processes" if plan.device == "cpu" and worst.count > 1 else ""
    who, needed = f"the {worst.name} needs", in_gib(worst.peak)
    if plan.gpus is not None and sum(need.count for need in devices) > plan.gpus:
        both = " and ".join(f"{need.count} x {need.name}" for need in devices)
        who, needed = f"{both} on {plan.gpus} GPU{'s' * (plan.gpus > 1)} need", in_gib(plan.fullest)
        several = " on one" if plan.gpus > 1 else ""
    way = f"set {plan.advice}" if plan.advice else "choose a smaller policy or a larger device, or more of them"
    return f"{recipe}: {plan.policy} does not fit: {who} {needed} GiB{several} of {in_gib(plan.available)}: {way}"


def in_gib(size: float) -> str:
    """Return bytes as a number of GiB."""
    return f"{size / GIB:.2f}" if size < 10 * GIB else f"{size / GIB:.1f}"


def forecast(settings: RunSettings) -> Forecast:
    """Return what a run with ``settings`` takes; ``Forecast`` has the formulas."""
    training, plan = settings.training, settings.plan
    per_iteration = training.steps * training.tasks_per_step * training.rollouts_per_task * (1 + training.resamples)
    rollouts = settings.iterations * per_iteration
    gpu_hours = None if plan.gpu_seconds is None else rollouts * plan.gpu_seconds / 3600
    served = settings.sampling.engine != "in_process"  # each process and server has a GPU where none are stated
    gpus = plan.gpus or training.processes + (len(settings.sampling.servers) or 1) * served
    requests = _requests(settings, per_iteration)

    def of_requests(each: float | None) -> float | None:
        return 0.0 if not requests else None if each is None else requests * each

    prompt, completion = of_requests(plan.prompt_tokens), of_requests(plan.completion_tokens)
    return Forecast(
        rollouts=rollouts,
        sampled_tokens=rollouts * training.max_tokens,
        hours=None if gpu_hours is None else gpu_hours / gpus,
        gpu_hours=gpu_hours,
        requests=requests,
        prompt_tokens=prompt,
        completion_tokens=completion,
        roles_money=_of_roles(settings, prompt, completion),
    )


def _requests(settings: RunSettings, rollouts: int) -> int:
    """Return the requests of chat roles at most; a signal marks each rollout that is read at most once per kind."""
    roles, signals, limits = settings.roles, settings.signals, settings.roles.exploration
    validation = settings.verification
    validates = validation.enabled and validation.mode != "deterministic"

    def each(reflects: bool) -> int:
        """Return the requests of one context's roles at most, without retries."""
        counts = {
            "reflector": int(reflects),
            "explorer": limits.rounds * limits.steps,
            "abstractor": limits.abstractor_questions(),
            "validator": limits.drafts_per_context * (roles.validator_actions + 1) if validates else 0,  # and the judge
        }
        return sum(counts[role] for role in roles.by_chat())

    read = rollouts * (signals.last_steps or settings.training.steps) // settings.training.steps
    most = signals.contexts_per_iteration or read * len(signals.kinds)
    contexts = min(most, settings.plan.contexts or most)
    asked = round(settings.iterations * contexts * each(signals.contexts == "signals"))
    return asked + (each(False) * settings.tasks.initial_count if settings.tasks.initial is None else 0)


def _of_roles(settings: RunSettings, prompt: float | None, completion: float | None) -> float | None:
    """Return the price of the roles' tokens; None where an amount or a price that it needs is not known."""
    money, chat = 0.0, settings.roles.by_chat().values()
    for amount, key in ((prompt, "price_prompt"), (completion, "price_completion")) if chat else ():
        dearest = max((price for one in chat if (price := getattr(one, key))), default=None)
        if amount is None or dearest is None:
            return None
        money += amount / 1e6 * dearest
    return money


PLANNED_TO_MEASURED = (0.87, 1.24)
"""The lowest and the highest ratio of planned to measured memory that is allowed for (ours).

Seven set-ups on CPU were between 0.90 and 1.19 (docs/scale.md). The range is wider, because the largest of these
models had 34 M parameters. One with checkpointing was at 1.28: a layer's backward pass is counted for the 64 rollouts
of its micro-batch, and computed for eight at a time. The plan counts the highest point of a step, with every rollout at
its token limit. So a recipe is refused only for what it needs with the shortest rollouts, where activations hardly
count, and with the plan too high by as much as that.
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
