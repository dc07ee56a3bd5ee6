"""The forecast costs of a run: rollouts, tokens, hours and requests, from its settings and the rates of section plan.

Counts are exact where the settings fix them. What depends on how training goes is bounded ("at most"), unless the plan
states a mean.
"""

from __future__ import annotations

from agents.settings import requests_per_context
from environments.base import Record
from graph.settings import RunSettings


class Forecast(Record):
    """The costs of a run. None: not known without a rate of section plan that is missing.

    ``rollouts``: iterations x steps x tasks per step x K. ``sampled_tokens``: at most ``training.max_tokens`` each.
    ``gpu_hours``: rollouts x ``plan.gpu_seconds``; ``hours``: over the machine's GPUs. ``requests``: of chat roles, at
    most (``requests_per_context`` for every context). Where exploration makes D_0, as many contexts as tasks are
    counted for it, an assumption: some give several tasks and some none. ``prompt_tokens`` and ``completion_tokens``:
    requests x tokens of a request. ``roles_money``: the roles' tokens x their prices, the dearest of several roles.
    """

    rollouts: int
    sampled_tokens: int
    hours: float | None
    gpu_hours: float | None
    requests: int
    prompt_tokens: float | None
    completion_tokens: float | None
    roles_money: float | None


def forecast(settings: RunSettings) -> Forecast:
    """Return what a run with ``settings`` takes; ``Forecast`` has the formulas."""
    training, plan = settings.training, settings.plan
    per_iteration = training.steps * training.tasks_per_step * training.rollouts_per_task
    rollouts = settings.iterations * per_iteration
    gpu_hours = None if plan.gpu_seconds is None else rollouts * plan.gpu_seconds / 3600
    requests = _requests(settings, per_iteration)

    def of_requests(each: float | None) -> float | None:
        return 0.0 if not requests else None if each is None else requests * each

    prompt, completion = of_requests(plan.prompt_tokens), of_requests(plan.completion_tokens)
    return Forecast(
        rollouts=rollouts,
        sampled_tokens=rollouts * training.max_tokens,
        hours=None if gpu_hours is None else gpu_hours / _gpus(settings),
        gpu_hours=gpu_hours,
        requests=requests,
        prompt_tokens=prompt,
        completion_tokens=completion,
        roles_money=_of_roles(settings, prompt, completion),
    )


def _gpus(settings: RunSettings) -> int:
    """Return the GPUs of the machine: those that are stated, or one for each process and server."""
    sampling = settings.sampling
    servers = (len(sampling.servers) or 1) if sampling.engine != "in_process" else 0
    return settings.plan.gpus or settings.training.processes + servers


def _requests(settings: RunSettings, rollouts: int) -> int:
    """Return the requests of chat roles at most; a signal marks each rollout that is read at most once per kind."""
    roles, signals, limits = settings.roles, settings.signals, settings.roles.exploration
    validation = settings.verification
    validates = validation.enabled and validation.mode != "deterministic"

    def each(reflects: bool) -> int:
        return requests_per_context(
            roles.by_chat().keys(),
            reflects=reflects,
            rounds=limits.rounds,
            steps=limits.steps,
            drafts=limits.drafts_per_context,
            validator_steps=roles.validator_actions + 1 if validates else 0,  # one more by the judge
        )

    read = rollouts * (signals.last_steps or settings.training.steps) // settings.training.steps
    most = signals.contexts_per_iteration or read * len(signals.kinds)
    contexts = min(most, settings.plan.contexts or most)
    asked = round(settings.iterations * contexts * each(signals.contexts == "signals"))
    return asked + (each(False) * settings.tasks.initial_count if settings.tasks.initial is None else 0)


def _of_roles(settings: RunSettings, prompt: float | None, completion: float | None) -> float | None:
    """Return the price of the roles' tokens; None where an amount or a price that it needs is not known."""
    chat = settings.roles.by_chat().values()
    dearest = [
        max((price for one in chat if (price := getattr(one, key))), default=None)
        for key in ("price_prompt", "price_completion")
    ]
    terms = [(amount, price) for amount, price in zip((prompt, completion), dearest, strict=True) if chat]
    if any(amount is None or price is None for amount, price in terms):
        return None
    return sum((amount or 0.0) / 1e6 * (price or 0.0) for amount, price in terms)
