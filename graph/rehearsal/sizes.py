"""What a rehearsal changes (ours): a recipe's sizes, to toy ones, and what this machine does not have.

Sizes become smaller and nothing else changes: engine, rendering, loss, adapter and roles stay what they are. What the
machine lacks is left out, with the reason.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.chat.endpoint import resolve
from environments.base import InputError, Record
from graph.fit import config_of, in_gib
from graph.preflight import check_memory
from graph.serve import VLLM
from graph.settings import RunSettings, dotted
from memory.settings import TaskSettings
from training.device_memory import device_at_hand
from training.plan import shape_in_process_of_its_own
from training.rollout.policy import policy_folder

CALLS = 10
"""Requests to the endpoint of chat roles, retries included."""

GROUPS = 4
"""Tasks of a step, or as many more as give each process and update a group."""

MOST: Mapping[str, int] = {
    "iterations": 2,  # the second one begins with the first one's checkpoint and tasks
    "tasks.initial_count": 8,  # a round's, so that there are more patterns than rollouts of one: some are rare
    "tasks.repeats": 2,
    "training.steps": 2,
    "training.rollouts_per_task": 4,
    "training.max_new_tokens": 64,
    "training.max_tokens": 8192,  # the documentation of a benchmark's tools alone can take 6,000
    "training.max_actions": 10,
    "training.max_episode_steps": 10,
    "signals.last_steps": 2,
    "signals.rare_min_patterns": 2,
    "signals.rare_min_trajectories": 1,
    "signals.contexts_per_iteration": 3,  # one of each kind, by their shares
    "roles.exploration.rounds": 1,
    "roles.exploration.steps": 16,  # three of them may sign in to an app
    "roles.exploration.drafts_per_context": 2,
    "roles.exploration.compositions": 1,
    "roles.exploration.min_reference_calls": 1,
    "roles.exploration.max_reference_calls": 8,  # fewer than actions, or no rollout could succeed
    "evaluation.limit": 2,
    "evaluation.max_new_tokens": 64,
    "evaluation.max_tokens": 8192,
    "evaluation.max_episode_steps": 10,
}
"""The largest value of each size."""

UNLIMITED = ("training.max_episode_steps", "signals.contexts_per_iteration", "evaluation.limit")
"""Sizes that are limited also where the recipe has no limit."""

RARE = 100.0
"""Percent below which a pattern is rare: of so few rollouts none is below 5 % of the patterns."""

ASKED: Mapping[str, int] = {
    "signals.contexts_per_iteration": 1,
    "roles.exploration.steps": 2,
    "roles.exploration.drafts_per_context": 1,
    "roles.exploration.compositions": 0,
    "roles.validator_actions": 1,
}
"""Further sizes where a chat model is asked: two iterations then send ten requests at most, but for retries."""

LEARNT = 512
"""Tokens of an expert step: a few references of the embedded policy, one of a language model. After more of them all
rollouts of so few tasks succeed, and there is no signal."""

OTHER_SOURCES = {f"tasks.{name}": TaskSettings.model_fields[name].default for name in ("initial_count", "official")}
"""Settings of D_0 that a file of tasks has no use for."""

CPU_PARAMETERS = 3e8
"""The largest policy that is rehearsed with its own weights without a GPU: a step takes seconds with it."""

SCRIPTED = {"kind": "scripted"}


class Machine(Record):
    """What a rehearsal finds: GPUs, vLLM's environment, and why the chat roles cannot be asked, "" where they can."""

    gpus: int = 0
    vllm: bool = False
    silent: str = ""


def machine_at_hand(settings: RunSettings) -> Machine:
    """Return what a rehearsal finds here; a chat role whose endpoint or key is not there silences all of them."""
    gpus = 0
    if settings.policy.device != "cpu" and device_at_hand("auto") == "cuda":
        import torch

        gpus = torch.cuda.device_count()
    silent = ""
    try:
        for name, role in settings.roles.by_chat().items():
            resolve(role, name)
    except InputError as missing:
        silent = str(missing)
    return Machine(gpus=gpus, vllm=(VLLM / "bin" / "python").exists(), silent=silent)


def weights_left_out(settings: RunSettings, folder: Path) -> str:
    """Return why the policy's own weights are not rehearsed here, "" where they are."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    place = Path(policy_folder(settings.policy.path))
    if not place.is_dir():
        try:
            place = Path(snapshot_download(str(place), local_files_only=True))
        except LocalEntryNotFoundError:
            return "they are not in the hub's cache (hf download)"
    if not any(place.glob("*.safetensors")):
        return f"there are none in {place}"
    parameters = shape_in_process_of_its_own(config_of(settings), None).parameters
    if device_at_hand(settings.policy.device) == "cpu" and parameters > CPU_PARAMETERS:
        return f"without a GPU it takes more than minutes with {parameters / 1e9:.1f} billion parameters"
    # Two checkpoints with Adam's state, and the weights for servers.
    needed = 0 if settings.policy.lora is not None else parameters * 28
    if needed > (free := shutil.disk_usage(folder).free):
        return f"checkpoints take {in_gib(needed)} GiB and {folder.parent} has {in_gib(free)} (TMPDIR names another)"
    try:
        check_memory(settings)
    except InputError as refused:
        return str(refused)
    return ""


def toy(settings: RunSettings, machine: Machine) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings to change, by dotted key, and what the machine leaves out, with the reason.

    The policy's path and the addresses of servers are not among them.
    """
    stated = dotted(settings)
    asked = bool(settings.roles.by_chat()) and not machine.silent
    # Sizes of what the recipe does not have are refused as settings without an effect.
    without: tuple[str, ...] = ("evaluation.",) if settings.evaluation.scored is None else ()
    without += ("tasks.initial_count",) if settings.tasks.initial is not None else ()
    without += ("roles.validator_actions",) if settings.roles.validator is None else ()
    changes: dict[str, Any] = {"signals.rare_percent": RARE}
    for key, most in {**MOST, **(ASKED if asked else {})}.items():
        now = stated.get(key)
        if not key.startswith(without) and ((now is None and key in UNLIMITED) or (now is not None and now > most)):
            changes[key] = most
    if settings.training.expert is not None:
        passes = type(settings.training.expert).model_fields["passes"].default
        changes |= {"training.expert.tokens": LEARNT, "training.expert.passes": passes}
    if settings.tasks.admissions is not None:
        changes["tasks.admissions"] = list(settings.tasks.admissions[: MOST["iterations"]])
    left_out: dict[str, str] = {}
    if trackers := settings.training.report_to:
        changes["training.report_to"] = []
        left_out[f"tracker {', '.join(trackers)}"] = "toy figures are not sent to it"
    changes |= _placed(settings, machine, left_out) | _roles(settings, machine, left_out)
    return changes | _batches(settings, changes), left_out


def _placed(settings: RunSettings, machine: Machine, left_out: dict[str, str]) -> dict[str, Any]:
    """Return the changes of device, processes and engine."""
    changes: dict[str, Any] = {}
    if not machine.gpus:
        left_out["a GPU"] = "this machine has none"
        changes |= {"policy.device": "cpu"} if settings.policy.device == "cuda" else {}
    served = settings.sampling.engine == "vllm_server" and machine.vllm
    if settings.sampling.engine == "vllm_server" and not served:
        changes["sampling"] = {}
        left_out["vLLM servers"] = "vLLM is not installed here: run make vllm"
    if (launch := settings.training.launch) is None:
        return changes
    if machine.gpus == 1:
        left_out[f"{launch.processes} processes that train"] = "this machine has one GPU"
        return changes | {"training.launch": None}
    processes = min(launch.processes, machine.gpus or 2)
    if processes < launch.processes:
        why = f"{processes} trained: this machine has {machine.gpus or 'no'} GPUs"
        left_out[f"{launch.processes} processes that train"] = why
        changes["training.launch.processes"] = processes
    if launch.fsdp and not (machine.gpus and served):
        why = "without GPUs processes are started without it" if not machine.gpus else "it may need vLLM servers"
        left_out["weights divided by FSDP2"] = why
        changes["training.launch.fsdp"] = False
    return changes


def _roles(settings: RunSettings, machine: Machine, left_out: dict[str, str]) -> dict[str, Any]:
    """Return the changes of the chat roles: a budget, or rules in their place."""
    roles, chat = settings.roles, settings.roles.by_chat()
    if not chat:
        return {}
    if not machine.silent:
        changes: dict[str, Any] = {"roles.budget.calls": min(CALLS, roles.budget.calls or CALLS)}
        return changes | ({"roles.cache": None} if roles.cache is not None else {})
    left_out[f"chat model: {', '.join(chat)}"] = machine.silent
    changes = {f"roles.{name}": SCRIPTED for name in chat if name != "validator"}
    changes |= {"roles.chat": {}, "roles.validator": None, "roles.budget": {}}
    for key in ("cache", "concurrency", "validator_actions"):
        changes[f"roles.{key}"] = type(roles).model_fields[key].default
    kept = {"enabled": settings.verification.enabled, "max_calls": settings.verification.max_calls}
    return changes | {"verification": kept}


def _batches(settings: RunSettings, changes: Mapping[str, Any]) -> dict[str, int]:
    """Return tasks of a step that fill each update of each process, and a micro-batch that fills those rows."""
    training = settings.training
    processes = 1 if "training.launch" in changes else changes.get("training.launch.processes", training.processes)
    unit = processes * training.updates_per_step
    tasks = min(training.tasks_per_step, unit * math.ceil(GROUPS / unit))
    tasks -= tasks % unit
    found = {"training.tasks_per_step": tasks}
    if training.micro_batch is not None:
        rollouts = changes.get("training.rollouts_per_task", training.rollouts_per_task)
        found["training.micro_batch"] = math.gcd(training.micro_batch, tasks * rollouts // unit)
    return found


def options(changes: Mapping[str, Any]) -> list[str]:
    """Return the changes as the values of ``--set``, JSON behind each key."""
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]
