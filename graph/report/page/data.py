"""The overview of a run as plain JSON values: figures by iteration, flow, nodes' digests, effect, settings, costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from environments.settings import EnvironmentSettings
from evaluation.outcomes import Score
from graph.recipe import load_recipe
from graph.report.digest import (
    REASONS,
    counts_words,
    kind_words,
    one_line,
    result_of,
    spoken,
)
from graph.report.effect import did_it_help, effect, finished_iterations, tool_map
from graph.report.lineage import Group, History
from graph.report.mistakes import first_story
from graph.report.summary import COMPACT_LABEL, PRIVATE, Summary, engine_rows
from graph.settings import RunSettings, changed
from memory.records import SignalKind
from memory.run import RunDirectory, read_json
from memory.tasks import tasks_at
from training.grpo.record import RoundRecord
from training.seal.diagnosis import SealFigures, TurnLabel

Json = dict[str, Any]

TERMS = {
    "rollout": "one attempt of the agent at one task",
    "group": "the rollouts of one task in one training step; GRPO compares each with the group's mean",
    "reward signal": "what a group gives training: none where all of its rollouts succeed, or all fail",
    "held out": "tasks that no iteration trains on; the 95 % interval is for other start states and functions, where "
    "the evaluation records them",
    "signal": "a mark on a rollout that shows a weakness",
    "context": "one weakness described for exploration: where it failed, how, why, what to explore",
    "new, known": "whether the failure memory had the context already; a known one is not explored again",
    "left out": "signals that no context was made of: beyond the number that an iteration follows, or of a task that "
    "another one of the same kind stands for",
    "draft": "a proposed task: a start state, user turns, and the calls that solve it",
    "reference": "the calls that solve a task",
    "accepted, admitted": "a draft that verification found right; added to the tasks of the next iteration",
    "D\u2080": "the first tasks, made by exploration without a guide",
}
"""The words of the page that its own text does not explain."""

POINTERS = "the embedded policy sees a value as $1 to $9 and names it; its recorded calls carry the value"
"""What argument references are."""


def _unpublishable(environment: EnvironmentSettings, labels: Sequence[str] | None) -> str | None:
    """Return why the page must not be published; a benchmark of the user's own, which is not imported here, in
    ``labels`` of an iteration (None before the first)."""
    if not environment.is_own:
        return environment.benchmark.unpublishable
    if labels is None:
        return f"No iteration has recorded yet whether {environment.name} allows it"
    return next((label.removeprefix(PRIVATE) for label in labels if label.startswith(PRIVATE)), None)


def overview(history: History) -> Json:
    """Return everything that the page shows at once. Raises InputError for a damaged record."""
    run = history.run
    settings = load_recipe(run.settings_path)
    summaries = {one.iteration: one for one in finished_iterations(history)}
    newest = max(summaries, default=None)
    story = first_story(history)
    labels = [] if newest is None else list(summaries[newest].labels)
    return {
        "name": one_line(run.root.resolve().name),
        "environment": settings.environment.name,
        "unpublishable": _unpublishable(settings.environment, labels if summaries else None),
        "labels": labels,
        "goes_on": len(summaries) < max(settings.iterations, len(history.iterations)),
        "asked": settings.iterations,
        "counts": {
            "tasks": len(history.tasks),
            "contexts": len(history.chains),
            "signals": len(history.signals),
            "rollouts": len(history.rollouts),
        },
        "iterations": [_iteration(history, settings, number, summaries.get(number)) for number in history.iterations],
        "seeded": bool(history.chains_in(None)),
        "verdict": did_it_help(history),
        "effect": effect(history),
        "map": tool_map(history),
        "story": story and story.task.id,
        "settings": [[key, value, default] for key, (value, default) in changed(settings).items()],
        "words": {
            "terms": TERMS | ({"argument references ($k)": POINTERS} if COMPACT_LABEL in labels else {}),
            "kinds": kind_words(settings.signals),
            "reasons": _reasons(history),
        },
        "seal": settings.training.seal is not None,
    }


def _iteration(history: History, settings: RunSettings, number: int, summary: Summary | None) -> Json:
    folder = history.run.iteration(number)
    groups, chains = history.groups_in(number), history.chains_in(number)
    verifications = [one.verification for chain in chains for one in chain.outcomes if one.verification is not None]
    results = [result for group in groups for result in group.results]
    round_ = read_json(folder.round, RoundRecord) if folder.round.exists() else None
    signals = Counter(one.kind for one in history.signals.values() if one.iteration == number)
    return {
        "iteration": number,
        "finished": summary is not None,
        "tasks": len(tasks_at(history.tasks.values(), number)),
        "admitted": sum(len(chain.admitted) for chain in chains),
        "refused": dict(Counter(result_of(one) for one in verifications if not one.accepted)),
        "signals": {kind: signals[kind] for kind in SignalKind},
        "evaluation": _evaluation(history.run, number),
        "success": fmean(results) if results else None,
        "groups": _groups(groups),
        "steps": [] if round_ is None else [one.success for one in round_.steps],
        "seconds": {} if summary is None else summary.seconds,
        "cost": [] if summary is None else summary.cost.words("\n").split("\n"),
        "sampled_tokens": sum(one.sampled_tokens for group in groups for one in group.rollouts),
        "warnings": [] if summary is None else list(summary.warnings),
        "facts": [] if summary is None else [*facts_of(summary), *_gap(round_)],
    }


def facts_of(summary: Summary) -> list[list[str]]:
    """Return what else is known of a finished iteration: a name and words each."""
    rows = [
        ["turns stopped by", counts_words((spoken(reason), count) for reason, count in summary.stop_reasons.items())],
        ["failed", counts_words(summary.failed.items())],
        ["replays and agent", "" if summary.agreement is None else summary.agreement.words()],
        *([f"cost of {stage}", spent.words()] for stage, spent in summary.cost.stages.items()),
        ["cost per admitted task", "" if (each := summary.cost.per_admitted) is None else each.words()],
        ["stopped", f"{summary.stopped} is spent" if summary.stopped else ""],
        ["functions that references call", summary.functions_words],
    ]
    if summary.seal is not None:
        measured = summary.seal.measured
        rows += [
            [name.strip(), cell] for name, cell in _seal_rows(summary.seal.figures, measured.seal, measured.seal_share)
        ]
    rows += [[name.strip(), cell] for name, cell in engine_rows(summary)]
    return [[name, words] for name, words in rows if words not in ("", "none")]


def _gap(round_: RoundRecord | None) -> list[list[str]]:
    """Return how far the sampler's log-probabilities were from the trainer's: a name and words, where it is known."""
    if round_ is None or (gap := round_.gap) is None:
        return []
    return [["sampler and trainer", f"differ by {gap.mean:.1e} nats per token, at most {gap.largest:.1e}"]]


def _reasons(history: History) -> dict[str, str]:
    found = {
        result_of(one.verification)
        for chain in history.chains.values()
        for one in chain.outcomes
        if one.verification is not None and not one.verification.accepted
    }
    return {reason: meaning for reason, meaning in REASONS.items() if reason in found}


def _evaluation(run: RunDirectory, number: int) -> Json | None:
    """Return the scores before and after a round, and the lookup's; None where none is recorded."""
    folder = run.iteration(number)
    found = {
        when: read_json(path, Score)
        for when in ("before", "after", "lookup")
        if (path := folder.evaluation(when).score).exists()
    }
    return {
        when: {
            "success": score.success,
            "interval": list(score.widest),
            "n": score.n,
            "group": score.group,
        }
        for when, score in found.items()
    } or None


def _groups(groups: Sequence[Group]) -> Json:
    """Count the groups by what their results are; only mixed ones carry a reward signal (section 2)."""
    counts: Counter[str] = Counter()
    for group in groups:
        results = group.results
        counts[
            "mixed" if group.carries_signal else "faulted" if not results else "solved" if results[0] else "none"
        ] += 1
    return {"all": len(groups), **{name: counts[name] for name in ("none", "mixed", "solved", "faulted")}}


def _seal_rows(figures: SealFigures, seconds: float, share: float) -> Iterator[tuple[str, str]]:
    """Yield name and cell of each row on SEAL in one round, of which it took ``seconds`` and that ``share``."""

    def counts(of: Mapping[TurnLabel, int]) -> str:
        return ", ".join(f"{count} {name}" for name, count in of.items()) or "none"

    yield "SEAL: turns", counts(figures.labels)
    shown = (f"{label} in {n} of {figures.steps} steps" for label, n in figures.guidelines.items())
    yield "  guidelines", ", ".join(shown) or "none"
    yield "  mastered", counts(figures.retired)
    yield "  cost", f"{seconds:.2f} s, {share:.2%} of the round"
