"""Attempts at tasks: a model is loaded, tries each item once, greedily, and what became of it is told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from environments.base import InputError, Observation, Outcome, Record
from environments.benchmark import Limits
from environments.verification.fingerprints import call_sequence
from evaluation.outcomes import TaskOutcome

if TYPE_CHECKING:
    from environments.base import Environment
    from evaluation.panels import Item
    from training.rollout.episodes import EpisodeLimits, EpisodeResult
    from training.rollout.policy import Policy


class Decoding(Record):
    """Which model, and how it is asked; token limits that are None follow the model's rendering and ``budget``.

    ``thinking`` is ``enable_thinking`` of the model's chat template; None leaves it as the policy was trained with.
    """

    model: str
    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    threads: int
    max_actions: int
    max_new_tokens: int | None
    max_tokens: int | None
    batch: int
    thinking: bool | None = None
    budget: Limits = Limits()


def evaluate(
    items: Sequence[Item],
    environment: Environment,
    decoding: Decoding,
    report: Callable[[int, int], None] = lambda done, successes: None,
) -> tuple[tuple[TaskOutcome, ...], Policy]:
    """Load the model and attempt every item; ``report`` is told after each how many are done and were solved.

    Raises InputError for an unknown model, an empty selection and tasks of another environment.
    """
    from training.rollout.policy_path import check_policy_path

    if not items:
        raise InputError("nothing to evaluate: the selection holds no task")
    for item in items:
        if item.task.environment != environment.name:
            raise InputError(
                f"--environment {environment.name}: task {item.task.id} is of {item.task.environment}, not of "
                f"{environment.name}: name the environment of the tasks"
            )

    check_policy_path(decoding.model)

    import torch

    from training.rollout.policy import load_policy

    torch.set_num_threads(decoding.threads)
    policy = load_policy(decoding.model, decoding.device, decoding.dtype, decoding.thinking)
    return attempt(items, policy, environment, limits_for(policy, decoding), decoding.batch, report), policy


def limits_for(policy: Policy, decoding: Decoding) -> EpisodeLimits:
    """Where the policy's episodes are cut off."""
    from training.rollout.episodes import EpisodeLimits

    budget = decoding.budget
    if policy.rendering.name == "compact":
        new_tokens, tokens = budget.compact_new_tokens, budget.compact_tokens
    else:
        new_tokens, tokens = budget.new_tokens, budget.tokens
    return EpisodeLimits(
        max_new_tokens=decoding.max_new_tokens or new_tokens,
        max_tokens=decoding.max_tokens or min(tokens, policy.positions or tokens),
        max_actions=decoding.max_actions,
    )


def attempt(
    items: Sequence[Item],
    policy: Policy,
    environment: Environment,
    limits: EpisodeLimits,
    batch: int,
    report: Callable[[int, int], None] = lambda done, successes: None,
) -> tuple[TaskOutcome, ...]:
    """Attempt every item once, greedily, ``batch`` episodes at a time, in the given order.

    ``report`` is told after each how many are done and were solved.
    """
    from environments.base import recorded
    from training.rollout.episodes import EpisodeRequest, run_episodes

    environment = recorded(environment)
    outcomes: list[TaskOutcome] = []
    over: list[bool] = []

    def count(success: bool) -> None:
        over.append(success)
        report(len(over), sum(over))

    for begin in range(0, len(items), batch):
        chunk = items[begin : begin + batch]
        requests = [EpisodeRequest(task=item.task, seed=0) for item in chunk]
        results = run_episodes(policy, environment, requests, limits, temperature=0.0, over=count)
        outcomes += [judge(item, result) for item, result in zip(chunk, results, strict=True)]
        print(f"evaluated {len(outcomes)} of {len(items)}", file=sys.stderr, flush=True)
    return tuple(outcomes)


def judge(item: Item, result: EpisodeResult) -> TaskOutcome:
    """The outcome record of one finished attempt."""
    observations = [step.observation for turn in result.turns for step in turn.steps]
    return outcome_of(item, observations, result.outcome, sum(result.mask), result.infrastructure_error)


def outcome_of(
    item: Item, observations: Sequence[Observation], outcome: Outcome | None, sampled_tokens: int, fault: str | None
) -> TaskOutcome:
    """The record of an attempt that was answered like this; ``outcome`` is None where it could not be judged."""
    calls = sum(len(observation.calls) for observation in observations)
    success = outcome is not None and outcome.success
    wanted = item.reference_calls
    return TaskOutcome(
        task_id=item.task.id,
        group=item.group,
        cluster=item.cluster,
        split=item.task.split,
        strata=item.strata,
        shape=call_sequence(item.task),
        success=success,
        failure=outcome.failure if outcome else None,
        failed_turn=outcome.failed_turn if outcome else None,
        calls=calls,
        reference_calls=wanted,
        malformed=sum(observation.status == "malformed" for observation in observations),
        extra_calls=None if wanted is None else max(0, calls - wanted) if success else 0,
        sampled_tokens=sampled_tokens,
        infrastructure_error=fault,
    )
