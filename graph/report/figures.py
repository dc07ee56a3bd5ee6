"""The figures of a run's page, the values of its template: charts, numbers, effect, map of tools, settings, words.

Charts are SVG, by iteration. Their colours are classes of the page's style, light or dark as the page is. There is no
plotting library: its pictures would need inline styles, which the page's policy forbids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from statistics import fmean
from typing import Any, NamedTuple

from environments.settings import EnvironmentSettings
from evaluation.outcomes import Score
from graph.report.digest import REASONS, kind_words, one_line, result_of, spoken, task_words, written_words
from graph.report.effect import did_it_help, finished_iterations, tool_map, weak_tasks
from graph.report.lineage import History
from graph.report.stories import first_story, tools_of
from graph.report.summary import PRIVATE, Summary
from graph.report.tables import iterations_table
from graph.settings import changed, load_recipe
from memory.jsonl import leaves
from memory.records import SignalKind
from memory.run import read_json
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
    "draft": "a proposed task: a start state, user turns, and the calls that solve it",
    "reference": "the calls that solve a task",
    "accepted, admitted": "a draft that verification found right; added to the tasks of the next iteration",
    "D\u2080": "the first tasks, made by exploration without a guide",
}
"""The words of the page that its own text does not explain."""
KINDS_OF_GROUPS: dict[tuple[bool, ...], str] = {
    (): "faulted",
    (False,): "none",
    (True,): "solved",
    (False, True): "mixed",
}
"""Groups by what their results are; only mixed ones carry a reward signal (section 2)."""


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
    tools = sorted(map(one_line, tools_of(history)))
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
        "worded": written_words((one.draft, one.verification) for one in history.drafted),
        "numbered": history.iterations,
        "map": tool_map(history),
        "stages": [(name, name) for name in map(stage_name, (None, *history.iterations))],
        "tools": [(name, name) for name in tools],
        "settings": [
            (key, *("none" if one is None else str(one) for one in both)) for key, both in changed(settings).items()
        ],
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
    reward = Counter(KINDS_OF_GROUPS[tuple(sorted({*group.results}))] for group in groups)
    signals = Counter(one.kind for one in history.signals.values() if one.iteration == number)
    scores = {name: history.run.iteration(number).evaluation(name).score for name in ("before", "after", "lookup")}
    return {
        "iteration": number,
        "admitted": sum(len(chain.admitted) for chain in chains),
        "refused": dict(Counter(result_of(one) for one in verifications if not one.accepted)),
        "signals": {kind: signals[kind] for kind in SignalKind},
        "evaluation": {name: read_json(path, Score) for name, path in scores.items() if path.exists()},
        "success": fmean(results) if results else None,
        "groups": {"all": len(groups), **{name: reward[name] for name in KINDS_OF_GROUPS.values()}},
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


def _charts(rows: Sequence[Json]) -> list[str]:
    """Draw each figure by iteration, as far as there are iterations; held-out scores begin before the first round."""
    if not rows:
        return []
    names = [str(row["iteration"]) for row in rows]

    def counts(key: str) -> list[Series]:
        found = dict.fromkeys(name for row in rows for name in row[key])
        return [Series(spoken(name), [row[key].get(name, 0) for row in rows]) for name in found]

    charts = []
    scores = [rows[0]["evaluation"].get("before"), *(row["evaluation"].get("after") for row in rows)]
    if any(scores):
        lookups = [None, *(row["evaluation"].get("lookup") for row in rows)]
        low, high = ([one and one.widest[side] for one in scores] for side in (0, 1))
        policy = Series("policy, 95 %", [one and one.success for one in scores], low, high)
        lines = [policy, Series("lookup over the training tasks, no model", [one and one.success for one in lookups])]
        charts.append(iterations_chart("Success on held-out tasks", ["start", *names], lines=lines, top=1.0))
    success = [Series("mean of the rollouts", [row["success"] for row in rows])]
    made = [Series("admitted", [row["admitted"] for row in rows]), *counts("refused")]
    kinds = {"none": "all fail", "mixed": "mixed: GRPO learns from these", "solved": "all succeed"}
    groups = [Series(words, [row["groups"][kind] for row in rows]) for kind, words in kinds.items()]
    return [
        *charts,
        iterations_chart("Success of training rollouts, of tasks that change", names, lines=success, top=1.0),
        iterations_chart("Drafts by verification result", names, bars=made),
        iterations_chart("Groups by reward signal", names, bars=groups),
        iterations_chart("Signals by kind", names, bars=counts("signals")),
        iterations_chart("Wall seconds by stage", names, bars=counts("seconds")),
    ]


def _reasons(history: History) -> dict[str, str]:
    outcomes = (one for chain in history.chains.values() for one in chain.outcomes)
    found = {result_of(one.verification) for one in outcomes if one.verification and not one.verification.accepted}
    return {spoken(reason): meaning for reason, meaning in REASONS.items() if reason in found}


WIDE, HIGH, LEFT, TOP = 380, 190, 46, 34
"""Size of a picture without its legend, and where the axes begin, in pixels."""
COLOURS = 7
"""Classes ``c0`` to ``c6`` of the page's style: the colours of Okabe and Ito, for readers with any colour vision."""
_NAMES = 12  # of places on the x axis


class Series(NamedTuple):
    """One figure at each place of the x axis, None where it is not known; ``low`` and ``high`` bound its interval."""

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


def iterations_chart(
    title: str, names: Sequence[str], *, lines: Sequence[Series] = (), bars: Sequence[Series] = (), top: float = 0.0
) -> str:
    """Return the picture of figures by iteration; ``top`` ends the axis, of shares of 1. Series of zeros are left out.

    ``names`` are those of the places on the x axis.
    """
    shown = [one for one in (*lines, *bars) if any(one.values)]
    heights = [sum(one.values[place] or 0 for one in bars) for place in range(len(names))]
    marks = ticks(top or max(*heights, *(value or 0 for one in lines for value in one.values), 1.0))
    slot = (WIDE - LEFT - 10) / len(names)

    def y(value: float) -> float:
        return HIGH - value / marks[-1] * (HIGH - TOP)

    middles = [LEFT + slot * (place + 0.5) for place in range(len(names))]
    parts = [_text(10, 20, title, "label")]
    for mark in marks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDE - 10}"/>')
        parts.append(_text(LEFT - 6, y(mark) + 4, f"{mark:.0%}" if top else f"{mark:g}", "end"))
    for x, name in list(zip(middles, names, strict=True))[:: ceil(len(names) / _NAMES)]:
        parts.append(_text(x, HIGH + 16, name, "middle"))
    base = [0.0] * len(names)
    for number, one in enumerate(shown):
        places = [(place, value) for place, value in enumerate(one.values) if value is not None]
        drawn, row = [], HIGH + 36 + 16 * number
        if one in bars:
            for place, value in places:
                x, foot = middles[place] - 0.35 * slot, y(base[place])
                drawn.append(_bar(x, y(base[place] + value), 0.7 * slot, foot, f"{one.name}: {value:g}"))
                base[place] += value
        else:
            for place, _ in places if one.low else ():
                low, high = y(one.low[place] or 0), y(one.high[place] or 0)
                drawn.append(f'<path class="interval" d="M{middles[place]:.1f} {low:.1f}V{high:.1f}"/>')
            points = " ".join(f"{middles[place]:.1f},{y(value):.1f}" for place, value in places)
            drawn.append(f'<polyline points="{points}"/>')
            for place, value in places:
                at = f'cx="{middles[place]:.1f}" cy="{y(value):.1f}" r="3"'
                drawn.append(f"<circle {at}><title>{escape(one.name)}: {value:.1%}</title></circle>")
        drawn.append(_bar(LEFT, row - 9, 10, row + 1))
        parts += [f'<g class="c{number % COLOURS}">', *drawn, "</g>", _text(LEFT + 16, row, one.name)]
    size = f'viewBox="0 0 {WIDE} {HIGH + 36 + 16 * len(shown)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    return "\n".join([head, *parts, "</svg>", ""])


def _bar(x: float, top: float, width: float, bottom: float, title: str = "") -> str:
    size = f'width="{width:.1f}" height="{bottom - top:.1f}"'
    return f'<rect x="{x:.1f}" y="{top:.1f}" {size}><title>{escape(title)}</title></rect>'


def _text(x: float, y: float, words: str, role: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{role}">{escape(words)}</text>'


def ticks(high: float) -> tuple[float, ...]:
    """Return about four round numbers, evenly spaced, from 0 to at least ``high``, a number above 0."""
    rough = high / 4
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return tuple(round(number * step, 10) for number in range(ceil(high / step - 1e-9) + 1))
