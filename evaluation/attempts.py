"""Attempts each item, by default once with greedy decoding, and records the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from environments.base import Action, InputError, Observation, Outcome, ToolCall
from environments.benchmark import Limits
from environments.command import say
from environments.verification.canonical import hashed_call
from evaluation.outcomes import GREEDY, TaskOutcome
from memory.jsonl import derive_seed
from memory.records import Measured, StopReason, count_stops

if TYPE_CHECKING:
    from environments.base import Environment
    from evaluation.sets import Item
    from evaluation.settings import ScoringSettings
    from training.rollout.episodes import EpisodeLimits, EpisodeResult
    from training.rollout.policy import Policy
    from training.rollout.sampling import Sampler


MOST_CALLS = 1000
"""The calls of an attempt that its record holds, its first ones (ours)."""


class Attempts(NamedTuple):
    """The conditions of the attempts: the rendering's name, the decoding in words, notes, and what an endpoint cost."""

    outcomes: tuple[TaskOutcome, ...]
    rendering: str
    decoding: str
    notes: tuple[str, ...] = ()
    spent: Measured | None = None


def evaluate(
    items: Sequence[Item],
    environment: Environment,
    settings: ScoringSettings,
    budget: Limits,
    report: Callable[[int, int], None] = lambda done, successes: None,
) -> Attempts:
    """Load the model and attempt every item, as often as ``settings`` says.

    ``report`` gets the counts of attempts and successes after each. ``budget`` has the limits that ``settings`` leaves
    open. Raises InputError for an unknown model, an empty selection and tasks of another environment, EngineFailure for
    servers that fail.
    """
    from training.rollout.policy import check_policy_path

    check_items(items, environment)
    check_policy_path(settings.model)

    import torch

    from training.device_memory import dtype_sentence, known_dtype
    from training.rollout.engines import open_sampler
    from training.rollout.policy import load_policy

    torch.set_num_threads(settings.threads)
    if settings.dtype == "auto":
        say(str(dtype_sentence(settings.dtype, settings.device)))
        settings = settings.model_copy(update={"dtype": known_dtype(settings.dtype, settings.device)})
    policy = load_policy(settings.model, settings.device, settings.dtype, settings)
    limits = limits_for(policy, settings, budget)
    if settings.batch is None and settings.sampling.engine == "in_process":
        limits = limits.model_copy(update={"batch": min(limits.batch, rows_that_fit(policy, settings, limits))})
    sampler = open_sampler(
        settings.sampling,
        policy,
        Path(policy.path),
        bfloat16=settings.dtype == "bfloat16",
        adapter=policy.adapter,
        stored=True,
    )
    with closing(sampler):
        sampler.load_weights(0)
        sampling = settings.samples, settings.temperature
        outcomes = attempt(items, policy, sampler, environment, limits, limits.batch, report, *sampling)
    number = "one attempt" if settings.samples == 1 else f"{settings.samples} attempts"
    decoding = f"temperature {settings.temperature:g}, {number} a task" if settings.temperature else GREEDY
    return Attempts(outcomes, policy.rendering.name, decoding)


def rows_that_fit(policy: Policy, settings: ScoringSettings, limits: EpisodeLimits) -> int:
    """Return how many episodes of ``limits.max_tokens`` tokens, 1 at least, half of the free memory holds (ours)."""
    from training.device_memory import free_bytes
    from training.plan import sampled_row_bytes, shape_of

    shape = shape_of(policy.model.config.to_dict())
    width = 2 if settings.dtype == "bfloat16" else 4
    return max(1, free_bytes(policy.model.device.type) // 2 // sampled_row_bytes(shape, limits.max_tokens, width))


def check_items(items: Sequence[Item], environment: Environment) -> None:
    """Raise InputError for an empty selection, and for tasks of another environment."""
    if not items:
        raise InputError("nothing to evaluate: the selection holds no task")
    for item in items:
        if item.task.environment != environment.name:
            raise InputError(
                f"--environment {environment.name}: task {item.task.id} is of {item.task.environment}, not of "
                f"{environment.name}: name the environment of the tasks"
            )


def limits_for(policy: Policy, settings: ScoringSettings, budget: Limits) -> EpisodeLimits:
    """Return the limits of the policy's episodes: as stated, else ``budget``'s for the policy's rendering."""
    if policy.rendering.name == "compact":
        new_tokens, tokens = budget.compact_new_tokens, budget.compact_tokens
    else:
        new_tokens, tokens = budget.new_tokens, budget.tokens
    tokens = min(tokens, policy.positions or tokens)
    return episode_limits(settings, budget, new_tokens, tokens, settings.batch or budget.batch)


def episode_limits(
    settings: ScoringSettings, budget: Limits, new_tokens: int, tokens: int, batch: int
) -> EpisodeLimits:
    """Return the limits of the episodes: as stated, else as given here."""
    from training.rollout.episodes import EpisodeLimits

    return EpisodeLimits(
        max_new_tokens=settings.max_new_tokens or new_tokens,
        max_tokens=settings.max_tokens or tokens,
        max_actions=settings.max_actions or budget.actions,
        max_steps=settings.max_episode_steps,
        strict_messages=settings.strict_messages,
        batch=batch,
    )


def attempt(
    items: Sequence[Item],
    policy: Policy,
    sampler: Sampler,
    environment: Environment,
    limits: EpisodeLimits,
    batch: int,
    report: Callable[[int, int], None] = lambda done, successes: None,
    samples: int = 1,
    temperature: float = 0.0,
) -> tuple[TaskOutcome, ...]:
    """Attempt every item ``samples`` times, ``batch`` episodes at a time, in the given order; temperature 0 is greedy.

    The seed of an attempt is drawn from its task's id and its number. ``report`` gets the counts of
    attempts and successes after each.
    """
    from environments.base import recorded
    from training.rollout.episodes import EpisodeRequest, run_episodes

    environment = recorded(environment)
    outcomes: list[TaskOutcome] = []
    over: list[bool] = []

    def count(success: bool) -> None:
        over.append(success)
        report(len(over), sum(over))

    attempts = [(item, sample) for item in items for sample in range(samples)]
    for begin in range(0, len(attempts), batch):
        chunk = attempts[begin : begin + batch]
        requests = [
            EpisodeRequest(task=item.task, seed=derive_seed("evaluation", item.task.id, sample) if temperature else 0)
            for item, sample in chunk
        ]
        results = run_episodes(policy, sampler, environment, requests, limits, temperature=temperature, over=count)
        outcomes += [
            task_outcome(item, result).model_copy(update={"sample": sample})
            for (item, sample), result in zip(chunk, results, strict=True)
        ]
        say(f"evaluated {len(outcomes)} of {len(attempts)}")
    return tuple(outcomes)


def task_outcome(item: Item, result: EpisodeResult) -> TaskOutcome:
    """Return the outcome record of one finished attempt."""
    own = result.turns[item.task.played :]
    steps = [(step.action, step.observation) for turn in own for step in turn.steps]
    stops = count_stops(own)
    return outcome_of(item, steps, result.outcome, sum(result.mask), result.infrastructure_error, stops)


def outcome_of(
    item: Item,
    steps: Sequence[tuple[Action, Observation]],
    outcome: Outcome | None,
    sampled_tokens: int,
    fault: str | None,
    stop_reasons: Mapping[StopReason, int] | None = None,
) -> TaskOutcome:
    """Return the record of an attempt in which the agent took ``steps`` in its own turns.

    ``outcome`` is None where it could not be evaluated.
    """
    calls = sum(len(observation.calls) for _, observation in steps)
    success = outcome is not None and outcome.success
    wanted = item.reference_calls
    # A call of an unknown tool is answered without being run.
    refused = [(action,) if isinstance(action, ToolCall) else () for action, _ in steps]
    made = [call for (_, shown), own in zip(steps, refused, strict=True) for call in shown.calls or own]
    reference = [call for turn in item.task.reference[item.task.played :] for call in turn]
    return TaskOutcome(
        task_id=item.task.id,
        group=item.group,
        cluster=item.cluster,
        split=item.task.split,
        strata=item.strata,
        shape=tuple(call.name for call in reference),
        success=success,
        failure=outcome.failure if outcome else None,
        failed_turn=outcome.failed_turn if outcome else None,
        calls=calls,
        reference_calls=wanted,
        malformed=sum(observation.status == "malformed" for _, observation in steps),
        extra_calls=None if wanted is None else max(0, calls - wanted) if success else 0,
        sampled_tokens=sampled_tokens,
        stop_reasons=dict(stop_reasons or {}),
        infrastructure_error=fault,
        calls_made=tuple(map(hashed_call, made[:MOST_CALLS])),
        calls_wanted=tuple(map(hashed_call, reference)) if reference or wanted == 0 else None,
        partial=outcome.partial if outcome else None,
    )
