"""The forecast costs of a run: rollouts, tokens, hours, requests and money, from its settings and from measured rates.

Counts are exact where the settings fix them. What depends on how training goes is bounded ("at most"), or taken from a
run that was measured before: its round records hold seconds and sampled tokens, its ledger requests and their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from agents.settings import requests_per_context
from agents.spending import read_requests
from environments.base import InputError, Record
from graph.records import Evolution, StageSeconds
from graph.settings import RunSettings
from memory.run import RunDirectory, read_json
from training.grpo.record import RoundRecord

ONCE = ("seed", "evaluation before")
"""Stages that a run has once; every other one is done in each iteration."""


class RunRates(Record):
    """Rates of a run: given by the user, or measured in another run. None: not known.

    ``tokens_per_second``: sampled tokens over all seconds of a round, loading and optimisation included.
    ``tokens_per_rollout``: sampled tokens. ``seconds_once`` and ``seconds_each``: of stages other than training, in the
    whole run and in each iteration. ``contexts``: explored in one iteration. ``prompt_tokens`` and
    ``completion_tokens``: of one request of a chat role. ``price_per_hour``: of all devices together.
    """

    tokens_per_second: float | None = None
    tokens_per_rollout: float | None = None
    seconds_once: float = 0.0
    seconds_each: float = 0.0
    contexts: float | None = None
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    price_per_hour: float | None = None


NO_RATES = RunRates()


class Forecast(Record):
    """The costs of a run. None: not known without a rate that is missing.

    ``rollouts``: iterations x steps x tasks per step x K. ``sampled_tokens``: rollouts x tokens of a rollout, measured
    or ``training.max_tokens`` (then ``bounded``: at most). ``hours``: sampled tokens / tokens per second, and the
    seconds of the other stages (``bounded_hours`` as the tokens); without that rate rollouts x ``plan.gpu_seconds``,
    over the machine's GPUs. ``gpu_hours``: hours x GPUs, None on CPU. ``requests``: of chat roles, at most
    (``requests_per_context`` for every context). Where exploration makes D_0, as many contexts as tasks are counted for
    it, an assumption: some give several tasks and some none. ``prompt_tokens`` and ``completion_tokens``: requests x
    tokens of a request. ``roles_money``: the roles' tokens x their prices, the dearest of several roles. ``money``:
    that, and hours x price of an hour.
    """

    rollouts: int
    sampled_tokens: float
    bounded: bool
    hours: float | None
    bounded_hours: bool
    gpu_hours: float | None
    requests: int
    prompt_tokens: float | None
    completion_tokens: float | None
    roles_money: float | None
    money: float | None


def measured_rates(run: RunDirectory) -> RunRates:
    """Return the rates of a run's finished rounds. Raises InputError when it has none."""
    rounds: list[RoundRecord] = []
    each, once = list[float](), 0.0
    contexts: list[int] = []
    while (folder := run.iteration(len(rounds))).round.exists():
        rounds.append(read_json(folder.round, RoundRecord))
        spent = read_json(folder.seconds, StageSeconds).seconds if folder.seconds.exists() else {}
        once += sum(spent.get(name, 0.0) for name in ONCE)
        if folder.evolution.exists():
            contexts.append(read_json(folder.evolution, Evolution).new)
            each.append(sum(seconds for name, seconds in spent.items() if name not in (*ONCE, "train")))
    if not rounds:
        raise InputError(f"--measured {run.root}: this run has no finished round to take rates from")
    asked = [one.measured for one in read_requests(run.spending_path) if one.measured.calls]
    spent_on = [one.measured for one in rounds]
    seconds = sum(one.load + one.rollouts + one.optimisation + one.save + one.seal for one in spent_on)
    tokens = sum(one.sampled_tokens for one in rounds)
    return RunRates(
        tokens_per_second=tokens / seconds if seconds else None,
        tokens_per_rollout=tokens / sum(step.rollouts for one in rounds for step in one.steps),
        seconds_once=once,
        seconds_each=_mean(each) or 0.0,
        contexts=_mean(contexts),
        prompt_tokens=_mean([one.prompt_tokens for one in asked]),
        completion_tokens=_mean([one.completion_tokens for one in asked]),
    )


def forecast(settings: RunSettings, rates: RunRates = NO_RATES) -> Forecast:
    """Return what a run with ``settings`` takes at those rates; ``Forecast`` has the formulas."""
    training = settings.training
    per_iteration = training.steps * training.tasks_per_step * training.rollouts_per_task
    rollouts = settings.iterations * per_iteration
    tokens = rollouts * (rates.tokens_per_rollout or training.max_tokens)
    plan, gpus = settings.plan, _gpus(settings)
    hours = gpu_hours = None
    if rates.tokens_per_second is not None:
        others = rates.seconds_once + settings.iterations * rates.seconds_each
        hours = (tokens / rates.tokens_per_second + others) / 3600
        gpu_hours = hours * gpus if settings.policy.device == "cuda" else None
    elif plan.gpu_seconds is not None:
        gpu_hours = rollouts * plan.gpu_seconds / 3600
        hours = gpu_hours / gpus
    requests = _requests(settings, rates, per_iteration)

    def of_requests(each: float | None) -> float | None:
        return 0.0 if not requests else None if each is None else requests * each

    prompt = of_requests(rates.prompt_tokens or plan.prompt_tokens)
    completion = of_requests(rates.completion_tokens or plan.completion_tokens)
    roles_money = _of_roles(settings, prompt, completion)
    devices = None if hours is None or rates.price_per_hour is None else hours * rates.price_per_hour
    return Forecast(
        rollouts=rollouts,
        sampled_tokens=tokens,
        bounded=rates.tokens_per_rollout is None,
        hours=hours,
        bounded_hours=rates.tokens_per_second is not None and rates.tokens_per_rollout is None,
        gpu_hours=gpu_hours,
        requests=requests,
        prompt_tokens=prompt,
        completion_tokens=completion,
        roles_money=roles_money,
        money=None if devices is None or roles_money is None else devices + roles_money,
    )


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _gpus(settings: RunSettings) -> int:
    """Return the GPUs of the machine: those that are stated, or one for each process and server."""
    sampling = settings.sampling
    servers = (len(sampling.servers) or 1) if sampling.engine != "in_process" else 0
    return settings.plan.gpus or settings.training.processes + servers


def _requests(settings: RunSettings, rates: RunRates, rollouts: int) -> int:
    """Return the requests of chat roles at most; a signal marks each rollout that is read at most once per kind."""
    roles, signals, limits = settings.roles, settings.signals, settings.roles.exploration
    validation = settings.verification
    validates = validation.enabled and validation.mode != "deterministic"
    actions = roles.validator_actions + (validation.completion == "judge")

    def each(reflects: bool) -> int:
        return requests_per_context(
            roles.by_chat().keys(),
            reflects=reflects,
            rounds=limits.rounds,
            steps=limits.steps,
            drafts=limits.drafts_per_context,
            validator_steps=actions if validates else 0,
        )

    read = rollouts * (signals.last_steps or settings.training.steps) // settings.training.steps
    most = signals.contexts_per_iteration or read * len(signals.kinds)
    contexts = min(most, rates.contexts or settings.plan.contexts or most)
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
