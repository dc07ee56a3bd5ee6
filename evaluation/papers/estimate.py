"""Estimates the cost of a study before it is run, from counts in its recipe and rates that were measured.

Every figure has its formula (``FORMULAS``). The counts are exact where the recipe fixes them; what depends on how
training goes, such as the number of signals, is taken from a rate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from pydantic import BaseModel

from agents.settings import ExplorationSettings, RolesSettings, requests_per_context
from environments.base import Record
from environments.registry import DEFAULT
from evaluation.papers.catalogue import MeasuredRates, Preparation, RecordedRates, StudyPlan, Tree, value_of
from memory.settings import TaskSettings
from memory.strict_yaml import read_recipe
from training.settings import PolicySettings, TrainingSettings
from training.signal_settings import SignalSettings

FORMULAS = {
    "rollouts": "iterations x training.steps x tasks_per_step x rollouts_per_task, of each trained arm and seed",
    "attempts": "tasks of the evaluation sets (of each only the first 'limit'), of each arm and seed, and, where runs "
    "score themselves (evaluation.set), its tasks x (iterations + 1)",
    "gpu_hours": "(rollouts + attempts) x GPU-seconds per rollout x (parameters / parameters of the measured model)",
    "requests": "contexts x (1 reflection + rounds x steps of exploration + 1 abstraction + drafts x steps of a "
    "validating agent), the roles that a chat model plays; contexts: iterations x contexts per iteration of a trained "
    "arm, and tasks of D_0 / tasks per context without the reflection",
    "chat_tokens": "requests x tokens per request, prompts and completions apart",
    "gpu_gib": "parameters x 18 bytes (weights, gradients, AdamW in float32, reference policy), or x 2.2 bytes with "
    "LoRA, and a fifth for activations",
    "money": "GPU hours, prompt tokens and completion tokens times the prices that were given",
}
"""How each figure is computed (ours)."""

_BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![\w])")


class Rates(MeasuredRates):
    """The rates of an estimate: those of the user where given, the recorded ones otherwise. Prices may be unknown."""

    price_gpu_hour: float | None = None
    price_prompt: float | None = None
    price_completion: float | None = None

    @classmethod
    def recorded(cls, rates: RecordedRates, **changes: Any) -> Rates:  # noqa: ANN401 - fields of this record
        """Return the recorded rates with ``changes``."""
        shared = {name: getattr(rates, name) for name in MeasuredRates.model_fields}
        return cls.model_validate(shared | changes)


class ArmLoad(Record):
    """The estimated cost of one arm, all its seeds together.

    ``gpu_hours`` and ``gpu_gib`` are None where the model's name does not say its size or the environment has no
    recorded rate. ``gpu_gib``: memory of all GPUs together.
    """

    runs: int
    rollouts: int
    attempts: int
    gpu_hours: float | None
    gpu_gib: float | None
    requests: int


class Estimate(ArmLoad):
    """The estimated cost of a study, all arms and seeds together; ``FORMULAS`` says how each figure is computed.

    ``gpu_gib`` is the largest arm's. ``money`` is None without the prices that its terms need.
    """

    prompt_tokens: float
    completion_tokens: float
    money: float | None


def estimate(
    plan: StudyPlan,
    sets: Sequence[str],
    tasks_of: Callable[[str, str], int],
    rates: Rates,
    prepare: Sequence[Preparation] = (),
) -> Estimate:
    """Return the estimate of a study that scores on ``sets``; ``tasks_of`` counts the tasks of (environment, set).

    Raises InputError for a base recipe that is missing.
    """
    loads = []
    for arm in plan.arms:
        tree = plan.settings_of(arm)
        counts = [tasks_of(environment_of(tree), name) for name in sets]
        attempts = sum(min(count, plan.limit or count) for count in counts)
        own = value_of(tree, "evaluation.set")
        if own is not None and not arm.untrained:
            count = tasks_of(environment_of(tree), own)
            attempts += min(count, value_of(tree, "evaluation.limit") or count) * (
                int(value_of(tree, "iterations")) + 1
            )
        loads.append(_load(tree, arm.seeds, arm.untrained, attempts, rates))
    requests = sum(one.requests for one in loads) + sum(_preparation(one, rates) for one in prepare)
    prompt, completion = requests * rates.prompt_tokens, requests * rates.completion_tokens
    hours = _sum([one.gpu_hours for one in loads])
    return Estimate(
        runs=sum(one.runs for one in loads),
        rollouts=sum(one.rollouts for one in loads),
        attempts=sum(one.attempts for one in loads),
        gpu_hours=hours,
        gpu_gib=max((one.gpu_gib for one in loads if one.gpu_gib is not None), default=None),
        requests=requests,
        prompt_tokens=prompt,
        completion_tokens=completion,
        money=money(hours or 0.0, prompt, completion, rates),
    )


def money(gpu_hours: float, prompt: float, completion: float, rates: Rates) -> float | None:
    """Return the price of GPU hours and tokens; None where a price that is needed is not known."""
    terms = (
        (gpu_hours, rates.price_gpu_hour, 1.0),
        (prompt, rates.price_prompt, 1e6),
        (completion, rates.price_completion, 1e6),
    )
    needed = [(amount, price, per) for amount, price, per in terms if amount]
    if any(price is None for _, price, _ in needed):
        return None
    return sum(amount / per * (price or 0.0) for amount, price, per in needed)


def _load(tree: Tree, seeds: int, untrained: bool, attempts: int, rates: Rates) -> ArmLoad:
    size = billions_of(policy_of(tree))
    rollouts = 0 if untrained else seeds * rollouts_of(tree)
    attempts *= seeds
    seconds = rates.gpu_seconds_per_rollout.get(environment_of(tree))
    on_gpu = value_of(tree, "policy.device") == "cuda"
    hours = None
    if not on_gpu:
        hours = 0.0
    elif size is not None and seconds is not None:
        hours = (rollouts + attempts) * seconds * (size / rates.billions) / 3600
    return ArmLoad(
        runs=0 if untrained else seeds,
        rollouts=rollouts,
        attempts=attempts,
        gpu_hours=hours,
        gpu_gib=gpu_gib(tree) if on_gpu else None,
        requests=0 if untrained else seeds * _requests(tree, rates),
    )


def rollouts_of(tree: Tree) -> int:
    """Return the rollouts of one run."""
    product = int(value_of(tree, "iterations", 1))
    for name in ("steps", "tasks_per_step", "rollouts_per_task"):
        product *= int(_setting(tree, f"training.{name}", TrainingSettings))
    return product


def gpu_gib(tree: Tree) -> float | None:
    """Return the GPU memory that training takes at least; None where the model's name does not say its size."""
    size = billions_of(policy_of(tree))
    if size is None:
        return None
    bytes_each = 18.0 if value_of(tree, "policy.lora") is None else 2.2
    return size * 1e9 * bytes_each * 1.2 / 2**30


def billions_of(policy: str) -> float | None:
    """Return a model's parameters in billions, as its name says them; all experts of a mixture count.

    >>> billions_of("Qwen/Qwen2.5-7B-Instruct"), billions_of("Qwen/Qwen3-30B-A3B"), billions_of("recipes/starter")
    (7.0, 30.0, None)
    """
    found = _BILLIONS.search(policy.rpartition("/")[2])
    return float(found[1]) if found else None


def environment_of(tree: Tree) -> str:
    """Return the name of a run's environment."""
    return str(value_of(tree, "environment.name", DEFAULT))


def policy_of(tree: Tree) -> str:
    """Return the initial policy of a run."""
    return str(_setting(tree, "policy.path", PolicySettings))


def _setting(tree: Tree, key: str, section: type[BaseModel]) -> Any:  # noqa: ANN401 - any setting
    """Return a setting by its dotted key, the default of its section where the recipe leaves it out."""
    return value_of(tree, key, section.model_fields[key.rpartition(".")[2]].default)


def _requests(tree: Tree, rates: Rates) -> int:
    """Return the requests of one run's chat roles: its evolutions, and D_0 where exploration makes it."""
    per_iteration = _setting(tree, "signals.contexts_per_iteration", SignalSettings)
    contexts = rates.signals_per_evolution if per_iteration is None else float(per_iteration)
    reflects = value_of(tree, "signals.contexts", "signals") == "signals"
    evolved = ceil(int(value_of(tree, "iterations", 1)) * contexts) * _per_context(tree, reflects)
    if value_of(tree, "tasks.initial") is not None:
        return evolved
    return evolved + _first(tree, int(_setting(tree, "tasks.initial_count", TaskSettings)), rates)


def _preparation(one: Preparation, rates: Rates) -> int:
    return _first(read_recipe(one.recipe), one.count, rates)


def _first(tree: Tree, count: int, rates: Rates) -> int:
    return ceil(count / rates.tasks_per_signal) * _per_context(tree, reflects=False)


def _per_context(tree: Tree, reflects: bool) -> int:
    def exploration(name: str) -> int:
        return int(_setting(tree, f"roles.exploration.{name}", ExplorationSettings))

    roles = ("reflector", "explorer", "abstractor", "validator")
    verified = value_of(tree, "verification.enabled", True)
    return requests_per_context(
        [name for name in roles if value_of(tree, f"roles.{name}.kind") == "chat"],
        reflects=reflects,
        rounds=exploration("rounds"),
        steps=exploration("steps"),
        drafts=exploration("drafts_per_context"),
        validator_steps=int(_setting(tree, "roles.validator_actions", RolesSettings)) if verified else 0,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
