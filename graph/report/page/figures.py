"""The figures of a run's page, the values of its template: charts, numbers, effect, map of tools, settings, words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from environments.settings import EnvironmentSettings
from evaluation.outcomes import Score
from graph.report.closing import iterations_table
from graph.report.digest import REASONS, kind_words, one_line, result_of, spoken, task_words
from graph.report.effect import did_it_help, finished_iterations, tool_map, weak_tasks
from graph.report.lineage import Group, History
from graph.report.mistakes import first_story
from graph.report.page.charts import Series, iterations_chart
from graph.report.summary import PRIVATE, Summary
from graph.settings import changed, load_recipe
from memory.jsonl import leaves
from memory.records import SignalKind
from memory.run import RunDirectory, read_json
from training.grpo.record import RoundRecord

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


def stage_name(iteration: int | None) -> str:
    """Return what the page calls a stage: an iteration's number, or D_0."""
    return "D\u2080" if iteration is None else str(iteration)


def overview(history: History) -> Json:
    """Return the values of the template, without the records. Raises InputError for a damaged record."""
    settings = load_recipe(history.run.settings_path)
    summaries = {one.iteration: one for one in finished_iterations(history)}
    rows = [_iteration(history, number, summaries.get(number)) for number in history.iterations]
    labels = list(summaries[max(summaries)].labels) if summaries else []
    unpublishable = _unpublishable(settings.environment, labels if summaries else None)
    story = first_story(history)
    tools = sorted({one_line(name) for task in history.tasks.values() for name in task.tools})
    return {
        "name": one_line(history.run.root.resolve().name),
        "environment": settings.environment.name,
        "labels": labels,
        "unpublishable": unpublishable,
        "notices": _notices(list(summaries.values()), max(settings.iterations, len(rows)), unpublishable),
        "verdict": did_it_help(history),
        "iterations": rows,
        "charts": _charts(rows),
        "numbers": iterations_table(list(summaries.values())),
        "effect": weak_tasks(history),
        "story": story and {"id": story.task.id, "words": task_words(story.task)},
        "numbered": history.iterations,
        "map": tool_map(history),
        "stages": [(name, name) for name in map(stage_name, (None, *history.iterations))],
        "tools": [(name, name) for name in tools],
        "settings": [(key, _value(value), _value(default)) for key, (value, default) in changed(settings).items()],
        "costs": [
            (number, facts_of(one, read_json(history.run.iteration(number).round, RoundRecord)))
            for number, one in summaries.items()
        ],
        "terms": TERMS,
        "kinds": kind_words(settings.signals),
        "reasons": _reasons(history),
        "seal": settings.training.seal is not None,
    }


def _unpublishable(environment: EnvironmentSettings, labels: Sequence[str] | None) -> str | None:
    """Return why the page must not be published; a benchmark of the user's own, which is not imported here, in
    ``labels`` of an iteration (None before the first)."""
    if not environment.is_own:
        return environment.benchmark.unpublishable
    if labels is None:
        return f"No iteration has recorded yet whether {environment.name} allows it"
    return next((label.removeprefix(PRIVATE) for label in labels if label.startswith(PRIVATE)), None)


def _notices(summaries: Sequence[Summary], asked: int, unpublishable: str | None) -> list[str]:
    said = [f"Not for publication: this page holds tasks and rollouts. {unpublishable}."] if unpublishable else []
    if (done := len(summaries)) < asked:
        said.append(f"{done} of {asked} iterations are done: the page shows the records as they were when it was made.")
    return said + [f"Iteration {one.iteration}: {words}." for one in summaries for words in one.warnings]


def _iteration(history: History, number: int, summary: Summary | None) -> Json:
    groups, chains = history.groups_in(number), history.chains_in(number)
    verifications = [one.verification for chain in chains for one in chain.outcomes if one.verification is not None]
    results = [result for group in groups for result in group.results]
    signals = Counter(one.kind for one in history.signals.values() if one.iteration == number)
    return {
        "iteration": number,
        "admitted": sum(len(chain.admitted) for chain in chains),
        "refused": dict(Counter(result_of(one) for one in verifications if not one.accepted)),
        "signals": {kind: signals[kind] for kind in SignalKind},
        "evaluation": _evaluation(history.run, number),
        "success": fmean(results) if results else None,
        "groups": _groups(groups),
        "seconds": {} if summary is None else summary.seconds,
    }


def facts_of(summary: Summary, round_: RoundRecord | None = None) -> dict[str, str]:
    """Return what else a finished iteration's records say, by name: stops, failures, costs, SEAL, the engine."""
    names = ("stop_reasons", "failed", "cost", "stopped", "functions", "functions_offered", "seal")
    told = summary.model_dump(mode="json", include={*names, "measured"})
    if round_ is not None and round_.gap is not None:
        told["sampler_and_trainer_differ_by_nats"] = round_.gap.model_dump(mode="json")
    found = {spoken(" ".join(keys)): value for keys, value in leaves(told) if value not in (None, 0, {}, [])}
    return {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in found.items()}


def _evaluation(run: RunDirectory, number: int) -> dict[str, Score]:
    """Return the scores before and after a round, and the lookup's, as far as they are recorded."""
    folder = run.iteration(number)
    paths = {when: folder.evaluation(when).score for when in ("before", "after", "lookup")}
    return {when: read_json(path, Score) for when, path in paths.items() if path.exists()}


def _groups(groups: Sequence[Group]) -> Json:
    """Count the groups by what their results are; only mixed ones carry a reward signal (section 2)."""
    counts: Counter[str] = Counter()
    for group in groups:
        results = group.results
        counts[
            "mixed" if group.carries_signal else "faulted" if not results else "solved" if results[0] else "none"
        ] += 1
    return {"all": len(groups), **{name: counts[name] for name in ("none", "mixed", "solved", "faulted")}}


def _charts(rows: Sequence[Json]) -> list[str]:
    """Draw each figure by iteration, as far as there are iterations; held-out scores begin before the first round."""
    if not rows:
        return []
    names = [str(row["iteration"]) for row in rows]

    def each(name: str, values: Sequence[float | None]) -> Series:
        return Series(name, tuple(values))

    def counts(key: str) -> list[Series]:
        found = dict.fromkeys(name for row in rows for name in row[key])
        return [each(spoken(name), [row[key].get(name, 0) for row in rows]) for name in found]

    charts = []
    scores = [rows[0]["evaluation"].get("before"), *(row["evaluation"].get("after") for row in rows)]
    if any(scores):
        lookups = [None, *(row["evaluation"].get("lookup") for row in rows)]
        low, high = ([one and one.widest[side] for one in scores] for side in (0, 1))
        policy = Series("policy, 95 %", tuple(one and one.success for one in scores), tuple(low), tuple(high))
        lines = [policy, each("lookup over the training tasks, no model", [one and one.success for one in lookups])]
        charts.append(iterations_chart("Success on held-out tasks", ["start", *names], lines=lines, top=1.0))
    success = [each("mean of the rollouts", [row["success"] for row in rows])]
    charts.append(iterations_chart("Success of training rollouts, of tasks that change", names, lines=success, top=1.0))
    made = [each("admitted", [row["admitted"] for row in rows]), *counts("refused")]
    charts.append(iterations_chart("Drafts by verification result", names, bars=made))
    kinds = {"none": "all fail", "mixed": "mixed: GRPO learns from these", "solved": "all succeed"}
    groups = [each(words, [row["groups"][kind] for row in rows]) for kind, words in kinds.items()]
    charts.append(iterations_chart("Groups by reward signal", names, bars=groups))
    charts.append(iterations_chart("Signals by kind", names, bars=counts("signals")))
    charts.append(iterations_chart("Wall seconds by stage", names, bars=counts("seconds")))
    return charts


def _reasons(history: History) -> dict[str, str]:
    outcomes = (one for chain in history.chains.values() for one in chain.outcomes)
    found = {result_of(one.verification) for one in outcomes if one.verification and not one.verification.accepted}
    return {spoken(reason): meaning for reason, meaning in REASONS.items() if reason in found}


def _value(value: object) -> str:
    return "none" if value is None else str(value)
