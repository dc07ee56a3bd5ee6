"""The toy sizes of a rehearsal (ours): a recipe's settings that are changed, by the recipe and by the machine.

Sizes become smaller and nothing else changes: engine, rendering, loss, adapter and roles stay what they are. What the
machine lacks is left out, and a row says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from environments.base import Record
from graph.settings import RunSettings, dotted
from memory.settings import TaskSettings

CALLS = 10
"""Requests to the endpoint of chat roles, retries included."""

MOST: Mapping[str, int] = {
    "iterations": 2,  # the second one begins with the first one's checkpoint and tasks
    "tasks.initial_count": 8,
    "tasks.repeats": 2,
    "training.steps": 2,
    "training.rollouts_per_task": 4,
    "training.max_new_tokens": 64,
    "training.max_tokens": 8192,  # the documentation of a benchmark's tools alone can take 6,000
    "training.max_actions": 10,
    "training.max_episode_steps": 10,
    "signals.last_steps": 2,
    "signals.rare_min_patterns": 2,
    "signals.contexts_per_iteration": 2,
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

RARE = 50.0
"""Percent below which a pattern is rare, or more: of few patterns none that recurs is below 5 %."""

ASKED: Mapping[str, int] = {
    "signals.contexts_per_iteration": 1,
    "roles.exploration.steps": 2,
    "roles.exploration.drafts_per_context": 1,
    "roles.exploration.compositions": 0,
    "roles.validator_actions": 1,
}
"""Further sizes where a chat model is asked: two iterations then send ten requests at most, but for retries."""

LEARNT = 4096
"""Tokens of an expert step."""

GROUPS = 4
"""Tasks of a step, or as many more as give each process and update a group."""

OTHER_SOURCES = {f"tasks.{name}": TaskSettings.model_fields[name].default for name in ("initial_count", "official")}
"""Settings of D_0 that a file of tasks has no use for."""

LEARNT_TASKS = 4
"""Tasks that a stand-in learns (ours): so few that a tiny model writes each of their references now and then."""

SHORT_CALLS = 2
"""Calls of such a task at most (ours)."""

COURSES = (
    ("--learning-rate", "0.01", "--passes", "60", "--documentation", "lines", "--tools-shown", "1"),
    ("--learning-rate", "0.005", "--passes", "12"),
)
"""How it learns them (ours): from prompts of a few hundred tokens, which is cheap, then from the recipe's own."""

SCRIPTED = {"kind": "scripted"}


class Machine(Record):
    """What a rehearsal finds: GPUs, vLLM's environment, and why the chat roles cannot be asked, "" where they can."""

    gpus: int = 0
    vllm: bool = False
    silent: str = ""


class Exercise(Record):
    """One thing that was exercised, ``how``; or why it was not, where there is a ``reason``."""

    what: str
    how: str = ""
    reason: str = ""


def toy(settings: RunSettings, machine: Machine) -> tuple[dict[str, Any], list[Exercise]]:
    """Return the settings to change, by dotted key, and a row for each thing that the machine leaves out.

    The policy's path and the addresses of servers are not among them.
    """
    stated = dotted(settings)
    changes: dict[str, Any] = {}
    rows: list[Exercise] = []
    asked = bool(settings.roles.by_chat()) and not machine.silent
    # Sizes of what the recipe does not have are refused as settings without an effect.
    without: tuple[str, ...] = ("evaluation.",) if settings.evaluation.scored is None else ()
    without += ("tasks.initial_count",) if settings.tasks.initial is not None else ()
    without += ("roles.validator_actions",) if settings.roles.validator is None else ()
    for key, most in {**MOST, **(ASKED if asked else {})}.items():
        now = stated.get(key)
        if not key.startswith(without) and ((now is None and key in UNLIMITED) or (now is not None and now > most)):
            changes[key] = most
    changes["signals.rare_percent"] = max(RARE, settings.signals.rare_percent)
    if settings.training.expert is not None:
        passes = type(settings.training.expert).model_fields["passes"].default
        changes |= {"training.expert.tokens": LEARNT, "training.expert.passes": passes}
    if settings.tasks.admissions is not None:
        changes["tasks.admissions"] = list(settings.tasks.admissions[: MOST["iterations"]])
    for one in (_placed, _asked):
        more, left_out = one(settings, machine)
        changes |= more
        rows += left_out
    if trackers := settings.training.report_to:
        changes["training.report_to"] = []
        rows.append(Exercise(what=f"tracker {', '.join(trackers)}", reason="toy figures are not sent to it"))
    return changes | _batches(settings, changes), rows


def _placed(settings: RunSettings, machine: Machine) -> tuple[dict[str, Any], list[Exercise]]:
    """Return the changes of device, processes and engine."""
    changes: dict[str, Any] = {}
    rows = [] if machine.gpus else [Exercise(what="a GPU", reason="this machine has none")]
    if settings.policy.device == "cuda" and not machine.gpus:
        changes["policy.device"] = "cpu"
    served = settings.sampling.engine == "vllm_server" and machine.vllm
    if settings.sampling.engine == "vllm_server" and not served:
        changes["sampling"] = {}
        rows.append(Exercise(what="vLLM servers", reason="vLLM is not installed here: run make vllm"))
    launch = settings.training.launch
    if launch is None:
        return changes, rows
    if machine.gpus == 1:
        rows.append(Exercise(what=f"{launch.processes} processes that train", reason="this machine has one GPU"))
        return changes | {"training.launch": None}, rows
    processes = min(launch.processes, machine.gpus or 2)
    if processes < launch.processes:
        why = f"{processes} trained: this machine has {machine.gpus or 'no'} GPUs"
        rows.append(Exercise(what=f"{launch.processes} processes that train", reason=why))
        changes["training.launch.processes"] = processes
    if launch.fsdp and not (machine.gpus and served):
        why = "without GPUs processes are started without it" if not machine.gpus else "it may need vLLM servers"
        rows.append(Exercise(what="weights divided by FSDP2", reason=why))
        changes["training.launch.fsdp"] = False
    return changes, rows


def _asked(settings: RunSettings, machine: Machine) -> tuple[dict[str, Any], list[Exercise]]:
    """Return the changes of the chat roles: a budget, or rules in their place."""
    roles, chat = settings.roles, settings.roles.by_chat()
    if not chat:
        return {}, []
    if not machine.silent:
        changes: dict[str, Any] = {"roles.budget.calls": min(CALLS, roles.budget.calls or CALLS)}
        return changes | ({"roles.cache": None} if roles.cache is not None else {}), []
    changes = {f"roles.{name}": SCRIPTED for name in chat if name != "validator"}
    changes |= {"roles.chat": {}, "roles.validator": None, "roles.budget": {}}
    for key in ("cache", "concurrency", "validator_actions"):
        changes[f"roles.{key}"] = type(roles).model_fields[key].default
    kept = {"enabled": settings.verification.enabled, "max_calls": settings.verification.max_calls}
    return changes | {"verification": kept}, [Exercise(what=f"chat model: {', '.join(chat)}", reason=machine.silent)]


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


def learning(settings: RunSettings, tasks: str) -> list[str]:
    """Return the options of ``training.warm_start`` for a stand-in, but for model, folder and course."""
    shown = settings.policy.given_options
    given = ["--environment", settings.environment.name, "--tasks", tasks, "--device", settings.policy.device]
    given += ["--max-tokens", str(settings.training.max_tokens)]
    for key, value in settings.environment.options.items():
        given += ["--option", f"{key}={json.dumps(value)}"]
    if (thinking := shown.pop("thinking", None)) is not None:
        given.append("--thinking" if thinking else "--no-thinking")
    return [*given, *(word for name, value in shown.items() for word in (f"--{name.replace('_', '-')}", str(value)))]


def options(changes: Mapping[str, Any]) -> Sequence[str]:
    """Return the changes as the values of ``--set``, JSON behind each key."""
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]
