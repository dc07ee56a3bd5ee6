"""What a run's devices must hold, whether they do, and which settings would fit: the plan of a recipe."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agents.chat.endpoint import destination
from environments.base import InputError, Record
from graph.report.forecast import Forecast, forecast
from graph.settings import RunSettings
from memory.jsonl import parse_json, read_whole
from training.model_shape import ModelShape, shape_of, shipped_config
from training.plan import GIB, Device, Launch, Memory, memory_of
from training.rollout.policy_path import policy_folder
from training.settings import LoraSettings

SHORTEST = 1024
"""Tokens of the shortest episodes that are advised (ours)."""

ADAPTERS_RATE = 1e-5
"""The learning rate that is advised with an adapter where that of all weights is lower (ours)."""


class RecipePlan(Record):
    """The plan of a recipe, or of all seeds of an arm.

    ``memory``: None where the policy's config.json is not here, and of rounds that another engine trains, which
    ``elsewhere`` names. ``gpus``: of the machine, which processes and servers
    share where they are more; None: each has its own. ``available``: bytes of each device, None where not known;
    ``fits`` then too. ``advice``: settings with which it would fit, of those that change least of the training.
    ``forecast``: of one run, None for an arm that is scored and not trained. ``destinations``: the address that each
    chat role asks, with the variable of its key, by role.
    """

    policy: str
    device: Device
    launch: Launch
    memory: Memory | None
    gpus: int | None
    available: int | None
    fits: bool | None
    advice: str | None
    forecast: Forecast | None
    seeds: int = 1
    elsewhere: str | None = None
    destinations: dict[str, str] = {}

    @property
    def fullest(self) -> int:
        """The bytes that a device must have. The plan needs its memory."""
        assert self.memory is not None
        return self.memory.fullest(self.device, self.gpus)


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
    launch = launch_of(settings)

    def needs(changed: RunSettings, shape: ModelShape) -> Memory:
        policy, training, sampling = changed.policy, changed.training, changed.sampling
        return memory_of(shape, policy, training, device=device, launch=launch, sampling=sampling)

    gpus = settings.plan.gpus if device == "cuda" else None
    memory = fits = advice = None
    elsewhere = settings.training.elsewhere
    if config is not None and elsewhere is None:
        shape = _shape(json.dumps(config), settings.policy.lora)
        memory = needs(settings, shape)
        fits = None if available is None else memory.fullest(device, gpus) <= available
        if fits is False and available is not None:
            ways = _ways_out(settings, shape, config, launch, device)
            enough = (words for words, changed, of in ways if needs(changed, of).fullest(device, gpus) <= available)
            advice = next(enough, None)
    return RecipePlan(
        policy=settings.policy.path,
        device=device,
        launch=launch,
        memory=memory,
        gpus=gpus,
        available=available,
        fits=fits,
        advice=advice,
        forecast=forecast(settings),
        elsewhere=None if elsewhere is None else elsewhere.engine,
        destinations={f"roles.{name}": str(destination(role, name)) for name, role in settings.roles.by_chat().items()},
    )


def launch_of(settings: RunSettings) -> Launch:
    """Return the processes that train, of ``training.launch``."""
    stated = settings.training.launch
    if stated is None:
        return Launch()
    return Launch(processes=stated.processes, sharding="fsdp" if stated.fsdp else "ddp")


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
        path = Path(named) / "config.json"
        if not Path(named).is_dir():
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(named, "config.json")
            if not isinstance(cached, str):
                return shipped_config(named)
            path = Path(cached)
    if not path.is_file():
        raise InputError(f"{path} is missing: give the policy's config.json with --config FILE")
    try:
        read = parse_json(read_whole(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise InputError(f"{path} is not a JSON object: give the policy's config.json with --config FILE")
    return read


@functools.cache
def _shape(config: str, lora: LoraSettings | None) -> ModelShape:
    """Return ``shape_of``, once for all arms of a study that train one policy alike: building a model takes seconds."""
    return shape_of(json.loads(config), lora)


def _ways_out(
    settings: RunSettings, shape: ModelShape, config: dict[str, Any], launch: Launch, device: Device
) -> Iterator[tuple[str, RunSettings, ModelShape]]:
    """Yield settings that need less memory, in words.

    First those that compute the same update, then an adapter, then shorter episodes.
    """
    training = settings.training
    rows = training.tasks_per_step * training.rollouts_per_task // training.updates_per_step // launch.processes
    now = training.micro_batch or rows
    batches = [now, *(size for size in range(now - 1, 0, -1) if rows % size == 0)]

    def tuned(words: str, policy: RunSettings, of: ModelShape) -> Iterator[tuple[str, RunSettings, ModelShape]]:
        for again in dict.fromkeys((training.gradient_checkpointing, True)):
            checkpointing = "training.gradient_checkpointing=true" if again != training.gradient_checkpointing else ""
            for size in batches:
                micro_batch = f"training.micro_batch={size}" if size != now else ""
                changed = training.model_copy(update={"micro_batch": size, "gradient_checkpointing": again})
                told = " ".join(filter(None, (words, checkpointing, micro_batch)))
                yield told, policy.model_copy(update={"training": changed}), of

    apart = settings.sampling.model_copy(update={"engine": "vllm_server"})
    places = [("", settings)]
    if device == "cuda" and settings.sampling.engine == "in_process":
        places.append(("sampling.engine=vllm_server", settings.model_copy(update={"sampling": apart})))
    for words, placed in places:
        yield from tuned(words, placed, shape)
    kept = [(words, placed, shape) for words, placed in places]
    if settings.policy.lora is None:
        lora: dict[str, object] = {"lora": LoraSettings()}
        adapter = f"policy.lora={{rank: {LoraSettings().rank}}}"
        if device == "cuda" and settings.policy.dtype != "bfloat16":
            lora["dtype"] = "bfloat16"
            adapter += " policy.dtype=bfloat16"
        if training.learning_rate < ADAPTERS_RATE:
            adapter += f" training.learning_rate={ADAPTERS_RATE}"
        adapted = shape_of(config, LoraSettings())
        for words, placed in places:
            changed = placed.model_copy(update={"policy": settings.policy.model_copy(update=lora)})
            kept.append((f"{adapter} {words}".strip(), changed, adapted))
            yield from tuned(*kept[-1])
    length = training.max_tokens
    while (length := length // 2) >= max(SHORTEST, training.max_new_tokens):
        shorter = training.model_copy(update={"max_tokens": length, "micro_batch": 1, "gradient_checkpointing": True})
        tuning = " ".join(
            f"training.{key}={str(value).lower()}"
            for key, value in (("max_tokens", length), ("micro_batch", 1), ("gradient_checkpointing", True))
            if getattr(training, key) != value
        )
        for words, placed, of in kept:
            yield f"{words} {tuning}".strip(), placed.model_copy(update={"training": shorter}), of


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
