"""Shows the records of one chain as tables: rollout, context, exploration, verified drafts; and the iterations."""

from __future__ import annotations

from itertools import zip_longest

from graph.report.digest import (
    call_words,
    calls_words,
    context_words,
    draft_words,
    exploration_words,
    signal_words,
    task_words,
    verification_words,
)
from graph.report.lineage import Chain, History
from graph.report.run_charts import ancestry, finished_iterations
from graph.report.tables import Table, table
from memory.failures import DeduplicationResult
from memory.records import FailureContext, Task, Trajectory

__all__ = [
    "context_table",
    "costs_table",
    "deduplication_table",
    "drafts_table",
    "exploration_table",
    "iterations_table",
    "lineage_table",
    "rollout_table",
]


def rollout_table(task: Task, trajectory: Trajectory) -> Table:
    """Show each user turn of a rollout: the reference's calls beside those of the rollout and their answers."""
    rows: list[tuple[object, ...]] = []
    for number, (turn, reference) in enumerate(zip_longest(trajectory.turns, task.reference), start=1):
        text = turn.text if turn is not None else task.turns[number - 1]
        rows.append((number, f"The user says: {text}", "", ""))
        for expected, step in zip_longest(reference or (), turn.steps if turn is not None else ()):
            done = "" if step is None else call_words(step.action)
            answer = "" if step is None else step.observation.text
            rows.append((number, "" if expected is None else call_words(expected), done, answer))
    outcome = trajectory.outcome
    result = trajectory.infrastructure_error or (outcome and (outcome.failure or "success")) or "not evaluated"
    return table(("turn", "reference", "rollout", "the environment answered"), rows, f"outcome: {result}", width=400)


def context_table(context: FailureContext) -> Table:
    """Show what the reflector wrote: where, how and why it went wrong, and what is to be explored."""
    rows = (
        ("where", f"user turn {context.where[0] + 1}, action {context.where[1] + 1}"),
        ("cause", f"{context.cause or 'none'}{f' of {context.tool}' if context.tool else ''}"),
        ("how", context.how),
        ("why", context.why),
        ("explore", ", ".join(context.explore)),
        ("signature", context.signature()),
    )
    return table(("field", "the reflector wrote"), rows)


def deduplication_table(result: DeduplicationResult | None) -> Table:
    """Show whether the failure memory knew a context, and which of its contexts was the nearest."""
    if result is None:
        return table(("status", "nearest in memory", "cosine"), [("not asked", "", "")])
    return table(
        ("status", "nearest in memory", "cosine"),
        [(result.status, result.nearest or "nothing with this signature", result.cosine)],
    )


def exploration_table(chain: Chain, limit: int = 12) -> Table:
    """Show the first actions of an exploration, with what the environment answered and whether its state changed."""
    rows = [
        (one.run, call_words(one.action), one.observation.text, "yes" if one.changed else "")
        for one in chain.interactions[:limit]
    ]
    caption = f"the first {len(rows)} of {len(chain.interactions)} actions"
    return table(("episode", "action", "the environment answered", "changed the state"), rows, caption, width=90)


def drafts_table(chain: Chain) -> Table:
    """Show the drafts of a chain, what verification said of each, and the task that it became."""
    rows = [
        (
            " / ".join(one.draft.turns),
            calls_words((call for turn in one.draft.reference for call in turn), 160),
            verification_words(one.verification),
            one.task.id if one.task is not None else "",
        )
        for one in chain.outcomes
    ]
    return table(("user says", "reference", "verification", "became"), rows)


def iterations_table(history: History) -> Table:
    """Show one row per finished iteration: tasks, signals, contexts, verification, and success on held-out tasks."""
    rows = [
        (
            one.iteration,
            one.tasks,
            ", ".join(f"{count} {kind}" for kind, count in one.signals.items()),
            f"{one.contexts.new} new, {one.contexts.known} known",
            one.admitted,
            ", ".join(f"{count} {reason}" for reason, count in one.refused.items()) or "none",
            "not scored" if one.evaluation is None else one.evaluation.words(),
        )
        for one in finished_iterations(history)
    ]
    return table(("iteration", "tasks", "signals", "contexts", "admitted", "refused", "held-out success"), rows)


def costs_table(history: History) -> Table:
    """Show what each finished iteration took: seconds by stage, environment calls, tokens, and those per new task."""
    rows = []
    for one in finished_iterations(history):
        per_task = one.cost.per_admitted
        rows.append(
            (
                one.iteration,
                ", ".join(f"{seconds:.1f} {stage}" for stage, seconds in one.seconds.items()),
                one.cost.environment_calls,
                one.cost.sampled_tokens,
                f"{one.cost.model_calls} calls, {one.cost.prompt_tokens + one.cost.completion_tokens} tokens",
                "no model asked" if per_task is None else per_task.words(),
            )
        )
    columns = ("iteration", "seconds", "environment calls", "sampled tokens", "chat roles", "chat roles per new task")
    return table(columns, rows)


def lineage_table(history: History, task_id: str) -> Table:
    """Show every step that led to a task, one line each: from the first weak task through all generations."""
    rows: list[tuple[object, object, object]] = []
    chains = ancestry(history, task_id)
    for number, chain in enumerate(chains, start=1):
        after = chains[number].context.task_id if number < len(chains) else task_id
        outcome = next(one for one in chain.outcomes if one.task is not None and one.task.id == after)
        rows.append((number, "weak task", "not in the run" if chain.weak is None else task_words(chain.weak, 160)))
        if chain.signal is not None:
            rows.append((number, "signal", signal_words(chain.signal, None, 160)))
        rows += [
            (number, "context", context_words(chain.context, 160)),
            (number, "exploration", exploration_words(chain.interactions, 160)),
            (number, "draft", draft_words(outcome.draft, 160)),
            (number, "verification", verification_words(outcome.verification, 160)),
            (number, "new task", f"{after}, of iteration {chain.iteration}"),
        ]
    return table(("generation", "step", "record"), rows)
