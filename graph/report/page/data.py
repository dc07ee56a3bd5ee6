"""The overview of a run as plain JSON values: figures by iteration, flow, nodes' digests, effect, settings, costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from agents.spending import read_requests
from environments.settings import EnvironmentSettings
from evaluation.outcomes import Score
from evaluation.statistics import t_interval
from graph.recipe import load_recipe
from graph.report.digest import (
    REASONS,
    counts_words,
    kind_words,
    one_line,
)
from graph.report.lineage import Chain, Group, History
from graph.report.mistakes import first_story
from graph.report.page.records import reason_of
from graph.report.summary import COMPACT_LABEL, PRIVATE, Summary, engine_rows
from graph.settings import RunSettings, changed
from memory.records import SignalKind
from memory.run import RunDirectory, read_json
from memory.tasks import task_set, tasks_at
from training.grpo.record import RoundRecord
from training.seal.report import round_rows

Json = dict[str, Any]

EFFECT_ROWS = (
    ("followed", "weak (marked by another signal than rare), and new tasks were made of it"),
    ("weak", "weak, and no new task was made of it"),
    ("rare", "a rare combination of calls alone"),
    ("none", "without any signal: the simplest control"),
)

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
    summaries = {
        number: read_json(path, Summary)
        for number in history.iterations
        if (path := run.iteration(number).summary).exists()
    }
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
        "effect": effect(history),
        "map": tool_map(history),
        "story": story and story.task.id,
        "settings": [[key, value, default] for key, (value, default) in changed(settings).items()],
        "spending": _spending(run),
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
        "tasks": len(tasks_at(history.tasks.values(), task_set(number, settings.evolution.concurrent))),
        "admitted": sum(len(chain.admitted) for chain in chains),
        "refused": dict(Counter(reason_of(one) for one in verifications if not one.accepted)),
        "signals": {kind: signals[kind] for kind in settings.signals.found},
        "evaluation": _evaluation(history.run, number),
        "success": fmean(results) if results else None,
        "groups": _groups(groups),
        "steps": [] if round_ is None else [one.success for one in round_.steps],
        "seconds": {} if summary is None else summary.seconds,
        "cost": [] if summary is None else summary.cost.words("\n").split("\n"),
        "sampled_tokens": sum(one.sampled_tokens for group in groups for one in group.rollouts),
        "warnings": [] if summary is None else list(summary.warnings),
        "facts": [] if summary is None else facts_of(summary),
    }


def facts_of(summary: Summary) -> list[list[str]]:
    """Return what else is known of a finished iteration: a name and words each."""
    rows = [
        ["turns stopped by", counts_words((spoken(reason), count) for reason, count in summary.stop_reasons.items())],
        ["failed", counts_words(summary.failed.items())],
        ["replays and agent", "" if summary.agreement is None else summary.agreement.words()],
        ["drafts made wrong", "" if summary.perturbed is None else summary.perturbed.words()],
        *([f"cost of {stage}", spent.words()] for stage, spent in summary.cost.stages.items()),
        ["cost per admitted task", "" if (each := summary.cost.per_admitted) is None else each.words()],
        ["stopped", f"{summary.stopped} is spent" if summary.stopped else ""],
        ["functions that references call", summary.functions_words],
    ]
    if summary.seal is not None:
        measured = summary.seal.measured
        rows += [
            [name.strip(), cell] for name, cell in round_rows(summary.seal.figures, measured.seal, measured.seal_share)
        ]
    rows += [[name.strip(), cell] for name, cell in engine_rows(summary)]
    return [[name, words] for name, words in rows if words not in ("", "none")]


def _reasons(history: History) -> dict[str, str]:
    """Return what the reasons mean for which drafts of the run were refused, in the order of the checks."""
    found = {
        reason_of(one.verification)
        for chain in history.chains.values()
        for one in chain.outcomes
        if one.verification is not None and not one.verification.accepted
    }
    return {reason: meaning for reason, meaning in REASONS.items() if reason in found}


def spoken(word: str) -> str:
    """Return a name of the records as words."""
    return word.replace("_", " ")


def _evaluation(run: RunDirectory, number: int) -> Json | None:
    """Return the scores before and after a round, with the interval to quote; None where none is recorded."""
    folder = run.iteration(number)
    found = {
        when: read_json(path, Score)
        for when, path in (("before", folder.evaluation_before), ("after", folder.evaluation_after))
        if path.exists()
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


def effect(history: History) -> Json:
    """Return mean success of tasks in one iteration and in the next one that rolled them out, by what marked them.

    A pair is a task and such two iterations. ``half`` is half of a 95 % interval of the mean change (Student's t, pairs
    taken as independent); None for a single pair. A weak task was chosen because it failed, so that it rises by
    regression to the mean alone: only the difference to tasks of the same weakness is evidence for the new tasks.
    """
    followed = {(chain.context.task_id, chain.iteration) for chain in history.chains.values() if chain.admitted}
    marked: dict[tuple[str, int], set[SignalKind]] = defaultdict(set)
    for one in history.signals.values():
        marked[one.task_id, one.iteration].add(one.kind)
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in EFFECT_ROWS}
    for task_id in history.groups:
        course = sorted(history.course(task_id).by_iteration.items())
        for (first, (before, _)), (_, (after, _)) in pairwise(course):
            kinds = marked.get((task_id, first), set())
            if kinds - {SignalKind.RARE}:
                name = "followed" if (task_id, first) in followed else "weak"
            else:
                name = "rare" if kinds else "none"
            pairs[name].append((before, after))
    rows = []
    for name, words in EFFECT_ROWS:
        found = pairs[name]
        changes = [after - before for before, after in found]
        interval = t_interval(changes)
        rows.append(
            {
                "name": name,
                "words": words,
                "pairs": len(found),
                "before": fmean(before for before, _ in found) if found else None,
                "after": fmean(after for _, after in found) if found else None,
                "change": fmean(changes) if changes else None,
                "half": None if interval is None else (interval[1] - interval[0]) / 2,
            }
        )
    return {"rows": rows, "new": _new_tasks(history)}


def tool_map(history: History) -> list[list[Any]]:
    """Return a row for each tool with a weakness, most first: its name, and a cell for each iteration with one.

    A cell is the iteration, its weaknesses, the tasks made of them, and of the weak tasks that a later iteration rolled
    out: their number, and their mean success in the iteration and in the next such one.
    """
    found: dict[str, dict[int, list[Chain]]] = defaultdict(lambda: defaultdict(list))
    for chain in history.chains.values():
        if chain.context.tool and chain.iteration is not None:
            found[one_line(chain.context.tool)][chain.iteration].append(chain)
    rows = []
    for tool, by_iteration in found.items():
        cells = []
        for number, chains in sorted(by_iteration.items()):
            pairs = []
            for task_id in sorted({chain.context.task_id for chain in chains}):
                course = history.course(task_id).by_iteration
                later = min((one for one in course if one > number), default=None)
                if number in course and later is not None:
                    pairs.append((course[number][0], course[later][0]))
            means: list[float | None] = [fmean(share) for share in zip(*pairs, strict=True)]
            means = means or [None, None]
            cells.append([number, len(chains), sum(len(chain.admitted) for chain in chains), len(pairs), *means])
        rows.append([tool, cells])
    return sorted(rows, key=lambda row: (-sum(cell[1] for cell in row[1]), row[0]))


def _new_tasks(history: History) -> Json:
    """Return mean success of evolved tasks in the first and in the last iteration that rolled them out."""
    courses = [
        sorted(history.course(task.id).by_iteration.items())
        for task in history.tasks.values()
        if task.admitted_at is not None
    ]
    twice = [(course[0][1][0], course[-1][1][0]) for course in courses if len(course) > 1]
    return {
        "tasks": len(courses),
        "drawn": sum(1 for course in courses if course),
        "twice": len(twice),
        "first": fmean(first for first, _ in twice) if twice else None,
        "last": fmean(last for _, last in twice) if twice else None,
    }


def _spending(run: RunDirectory) -> list[Json]:
    """Return the chat roles' requests added up by iteration, role and model; empty without chat roles."""
    found: dict[tuple[int | None, str, str], Counter[str]] = defaultdict(Counter)
    for one in read_requests(run.spending_path):
        counts = found[one.iteration, one.role, one.model]
        counts.update({"requests": 1, one.outcome: 1, "cached": int(one.cached), "calls": one.measured.calls})
        counts["prompt"] += one.measured.prompt_tokens
        counts["completion"] += one.measured.completion_tokens
        counts["micro"] += round(one.measured.money * 1e6)
        counts["milliseconds"] += round(one.measured.seconds * 1e3)
    return [
        {"iteration": iteration, "role": role, "model": one_line(model), **counts}
        for (iteration, role, model), counts in sorted(
            found.items(), key=lambda row: (-1 if row[0][0] is None else row[0][0], row[0][1:])
        )
    ]
