"""Evaluates a model that an OpenAI-compatible endpoint serves: its limits, its costs, and going on after a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agents.spending import Ledger
from environments.base import Environment
from environments.terminal import say
from evaluation.settings import ScoringSettings

if TYPE_CHECKING:
    from evaluation.attempts import Attempts
    from evaluation.outcomes import TaskOutcome
    from evaluation.selection import Selected
    from memory.records import Measured

RENDERING = "endpoint"
"""The rendering in a report."""
EVERY = 10
"""Attempts between two lines of progress on stderr."""


def evaluate_served(
    settings: ScoringSettings,
    selected: Selected,
    environment: Environment,
    output: Path | None,
    resume: bool,
    report: Callable[[int, int], None] = lambda done, successes: None,
) -> Attempts:
    """Attempt the selected tasks, without those that ``output`` has of an evaluation that ``resume`` continues.

    ``report`` gets the counts of attempts and successes after each. Raises InputError like ``attempt_served`` and for
    files that do not fit; BudgetReached and RepeatedFailure, after which the outcomes so far are in ``output``.
    """
    from agents.chat.tool_calling import ToolCallingModel
    from evaluation.attempts import Attempts, check_items, episode_limits
    from evaluation.kept import KeptOutcomes
    from evaluation.selection import written
    from evaluation.served import attempt_served

    check_items(selected.items, environment)
    endpoint = settings.endpoint()
    stated = settings.model_copy(update={"model": endpoint.model, "base_url": endpoint.base_url})
    kept = KeptOutcomes(output, stated, resume)
    ledger = Ledger(kept.spending, settings.budget, prefix="--budget-")
    model = ToolCallingModel(endpoint, settings.as_role(endpoint.model), ledger, settings.concurrency)
    missing = kept.missing(selected.items)
    done, successes = len(selected.items) - len(missing), kept.successes(selected.items)

    def over(outcome: TaskOutcome) -> None:
        nonlocal done, successes
        (published,) = written([outcome], selected.benchmark)
        kept.add(outcome, published)
        done, successes = done + 1, successes + outcome.success
        report(done, successes)
        if done % EVERY == 0 or done == len(selected.items):
            say(f"evaluated {done} of {len(selected.items)}")

    budget = selected.benchmark.limits
    batch = settings.batch or min(budget.batch, settings.concurrency)
    limits = episode_limits(settings, budget, budget.new_tokens, budget.tokens, batch)
    seen = asyncio.run(attempt_served(missing, model, environment, limits, over))
    notes = [_costs(ledger.spent())]
    notes += [f"{seen.refusals} replies were refusals, which end the user turn"] if seen.refusals else []
    if seen.uncounted:
        notes.append(f"{seen.uncounted} replies did not report their tokens: --max-tokens was not kept there")
    decoding = (
        "the endpoint's own temperature" if settings.temperature is None else f"temperature {settings.temperature:g}"
    )
    decoding += ", one attempt a task"
    return Attempts(kept.of(selected.items), RENDERING, decoding, tuple(notes), ledger.spent())


def _costs(spent: Measured) -> str:
    money = f", {spent.money:.4f} in the unit of the prices" if spent.money else ""
    tokens = f"{spent.prompt_tokens:,} prompt and {spent.completion_tokens:,} completion tokens"
    return f"{spent.calls:,} requests, {tokens}{money}"
