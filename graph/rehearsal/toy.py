"""What a rehearsal changes (ours): a recipe's sizes, to toy ones, what this machine does not have, and a large policy.

    python -m graph.rehearsal.toy RECIPE TASKS FOLDER [KEY=VALUE ...]

Sizes become smaller and nothing else changes: engine, rendering, loss, adapter and roles stay what they are. What the
machine lacks is left out, with the reason. A policy whose weights are left out is replaced by a tiny model of its
architecture, with its tokenizer and chat template. The vocabulary stays, so that tokens, prompts and the output layer
are the model's own; layers, heads and widths become small. A compact attention head has 32 dimensions, the fewest that
vLLM's kernels take. A random model solves nothing, and without a success there is no signal: so it learns the
references of TASKS. Import late what needs torch.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agents.chat.endpoint import resolve
from agents.settings import RoleSettings
from environments.base import InputError, Record
from environments.command import exit_statuses
from graph.fit import check_memory, config_of, in_gib
from graph.serve import VLLM
from graph.settings import RunSettings, dotted, load_recipe
from memory.files import whole_folder
from memory.tasks import TaskSettings
from training.device_memory import device_at_hand
from training.plan import shape_in_process_of_its_own
from training.rollout.policy import SMALL, fetched, policy_folder

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
"""Tokens of an expert step of the embedded policy: a few references. After more of them all rollouts of so few tasks
succeed, and there is no signal."""

TAUGHT = 3072
"""Tokens of an expert step of a language model's own weights: some passes over four short tasks."""

OTHER_SOURCES = {f"tasks.{name}": TaskSettings.model_fields[name].default for name in ("initial_count", "official")}
"""Settings of D_0 that a file of tasks has no use for."""

CPU_PARAMETERS = 3e8
"""The largest policy that is rehearsed with its own weights without a GPU: a step takes seconds with it."""


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
    changes = {"roles.chat": {}, "roles.budget": {}}
    for key in (*chat, "cache", "concurrency", "validator_actions"):
        default = type(roles).model_fields[key].default
        changes[f"roles.{key}"] = default.model_dump() if isinstance(default, RoleSettings) else default
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


SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
KEY_VALUE_HEADS = 2

WEIGHTS = "model.safetensors"

COURSES: tuple[Mapping[str, Any], ...] = (
    {"learning_rate": 0.01, "passes": 60, "documentation": "lines", "tools_shown": 1},
    {"learning_rate": 0.005, "passes": 12},
)
"""How it learns (ours): from prompts of a few hundred tokens, which is cheap, then from the recipe's own."""


def make_stand_in(config: Mapping[str, Any], source: str, folder: Path) -> None:
    """Write a random stand-in of the model with this ``config.json`` into ``folder``, which is new.

    Of a ``source`` on the hub the small files are fetched into the cache. Raises InputError where they cannot be, and
    for an architecture that cannot be built.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from training.plan import building, library_config

    small = fetched(source)
    with building(f"policy.path: {source}"):
        read = library_config(config)
        shared = getattr(read, "num_key_value_heads", None)
        grouped = shared not in (None, read.num_attention_heads)
        for key, size in SIZES.items():
            if isinstance(now := getattr(read, key, None), int):
                setattr(read, key, min(now, size))
        if shared is not None:
            read.num_key_value_heads = min(KEY_VALUE_HEADS, shared) if grouped else read.num_attention_heads
        if getattr(read, "layer_types", None):
            read.layer_types = read.layer_types[: read.num_hidden_layers]
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(read)  # type: ignore[no-untyped-call]
    with whole_folder(folder) as partial:
        model.to(torch.float32).save_pretrained(partial)
        # Behind it, because it writes a generation_config.json of its own: stop tokens are the model's.
        for file in {file for pattern in SMALL for file in small.glob(pattern)}:
            if file.name != "config.json" and not file.name.endswith(".index.json"):
                shutil.copyfile(file, partial / file.name)


def teach(model: Path, tasks: Path, settings: RunSettings) -> None:
    """Learn the references of ``tasks`` with the recipe's prompts. Raises InputError where none can be learnt."""
    from training.start_rows import StartSettings
    from training.warm_start import warm_start

    name, own = settings.environment.name, settings.environment.options
    kept = {"max_tokens": settings.training.max_tokens, "device": settings.policy.device}
    for course in COURSES:
        course_settings = StartSettings(**kept | settings.policy.given_options | dict(course))
        with TemporaryDirectory(dir=model.parent) as made:
            out = Path(made) / "taught"
            warm_start(str(model), [tasks], out, course_settings, name, options=own)
            # The weights alone: the prompts of the first course are not the recipe's.
            (out / WEIGHTS).replace(model / WEIGHTS)


def main(recipe: str, tasks: str, folder: str, *given: str) -> None:
    """Make it and teach it, for a command that does not import torch itself."""
    with exit_statuses():
        settings = load_recipe(Path(recipe), given)
        make_stand_in(config_of(settings), policy_folder(settings.policy.path), Path(folder))
        teach(Path(folder), Path(tasks), settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
