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
    context_words,
    counts_words,
    draft_words,
    exploration_words,
    kind_words,
    one_line,
    signal_words,
    task_words,
    verification_words,
    weakness_words,
)
from graph.report.lineage import Group, History
from graph.report.mistakes import first_story
from graph.report.page.records import reason_of
from graph.report.summary import COMPACT_LABEL, PRIVATE, Summary, engine_rows
from graph.settings import RunSettings, changed, dotted
from memory.records import SignalKind
from memory.run import RunDirectory, read_json
from memory.tasks import tasks_at
from training.grpo.record import RoundRecord
from training.seal.report import round_rows

Json = dict[str, Any]

LINES = 5
"""Lines of a node's digest (ours)."""

NODES = {
    "extract": "marks rollouts that show a weakness",
    "reflect": "says how and why each of the followed ones failed",
    "deduplicate": "asks the failure memory whether it knows the weakness",
    "explore": "acts around each new weakness in the real environment",
    "abstract": "makes drafts of tasks from paths that were really walked",
    "verify": "replays every draft and refuses what does not hold",
    "update": "admits the accepted ones to the next task set",
}
"""The nodes of an iteration's graph and what each is for."""

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
        "seed": {"flow": _flow(history, None), "nodes": _nodes(history, None)},
        "effect": effect(history),
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
        "tasks": len(tasks_at(history.tasks.values(), number)),
        "admitted": sum(len(chain.admitted) for chain in chains),
        "refused": dict(Counter(reason_of(one) for one in verifications if not one.accepted)),
        "signals": {kind: signals[kind] for kind in SignalKind},
        "evaluation": _evaluation(history.run, number),
        "success": fmean(results) if results else None,
        "groups": _groups(groups),
        "steps": [] if round_ is None else [one.success for one in round_.steps],
        "seconds": {} if summary is None else summary.seconds,
        "cost": [] if summary is None else summary.cost.words("\n").split("\n"),
        "sampled_tokens": sum(one.sampled_tokens for group in groups for one in group.rollouts),
        "warnings": [] if summary is None else list(summary.warnings),
        "facts": [] if summary is None else facts_of(summary),
        "flow": _flow(history, number),
        "nodes": _nodes(history, number),
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


def _flow(history: History, number: int | None) -> list[list[Any]]:
    """Return the edges of an iteration's flow: from, to, count; a node is ``COLUMN:NAME``.

    D_0 begins at contexts: an edge from nowhere, "", says how many there are. Signals beyond the followed ones, further
    ones of a task and kind among them, end in ``left out``.
    """
    edges: Counter[tuple[str, str]] = Counter()
    chains = history.chains_in(number)
    if number is not None:
        signals = Counter(str(one.kind) for one in history.signals.values() if one.iteration == number)
        followed = Counter(str(chain.signal.kind) for chain in chains if chain.signal is not None)
        for kind in SignalKind:
            edges[f"signals:{kind}", "contexts:left out"] += max(0, signals[kind] - followed[kind])
    for chain in chains:
        status = "new" if chain.deduplication is None else chain.deduplication.status
        source = f"contexts:{status}"
        if chain.signal is not None:
            edges[f"signals:{chain.signal.kind}", source] += 1
        elif number is not None:
            edges["signals:no signal", source] += 1
        else:
            edges["", source] += 1
        if chain.failure is not None:
            edges[source, "drafts:branch failed"] += 1
        elif status == "new" and not chain.outcomes:
            edges[source, "drafts:none made"] += 1
        for one in chain.outcomes:
            edges[source, "drafts:drafts"] += 1
            if one.verification is None:
                edges["drafts:drafts", "verifications:not verified"] += 1
                continue
            verification = "accepted" if one.verification.accepted else reason_of(one.verification)
            edges["drafts:drafts", f"verifications:{verification}"] += 1
            if one.verification.accepted:
                edges["verifications:accepted", "tasks:admitted" if one.task is not None else "tasks:not admitted"] += 1
    return [[source, target, count] for (source, target), count in edges.items() if count]


def _nodes(history: History, number: int | None) -> list[Json]:
    """Return the nodes of an iteration's graph with a digest each: lines, with the kind and id of their record."""
    chains = history.chains_in(number)
    outcomes = [one for chain in chains for one in chain.outcomes]
    new = [chain for chain in chains if chain.deduplication is None or chain.deduplication.status == "new"]
    known = [chain for chain in chains if chain.deduplication is not None and chain.deduplication.status == "known"]
    signals = Counter(
        str(one.kind) for one in history.signals.values() if number is not None and one.iteration == number
    )
    refused = [one for one in outcomes if one.verification is not None and not one.verification.accepted]
    reasons = Counter(reason_of(one.verification) for one in refused if one.verification is not None)
    admitted = [one.task for one in outcomes if one.task is not None]
    explored = sum(len(chain.interactions) for chain in chains)
    drafted = Counter(str(one.draft.difficulty) for one in outcomes if one.draft.difficulty is not None)
    lines: dict[str, tuple[str, list[list[str]]]] = {
        "extract": (
            f"{sum(signals.values())} signals" + (f": {counts_words(signals.items())}" if signals else ""),
            [
                [signal_words(one.signal, one.weak), "context", one.context.id]
                for one in chains
                if one.signal is not None
            ],
        ),
        "reflect": (
            f"{len(chains)} contexts",
            [[context_words(one.context), "context", one.context.id] for one in chains],
        ),
        "deduplicate": (
            f"{len(new)} new, {len(known)} known",
            [[f"known: {weakness_words(one.context)}", "context", one.context.id] for one in known],
        ),
        "explore": (
            f"{explored:,} actions in {sum(1 for one in new if one.interactions)} branches",
            [
                [f"{weakness_words(one.context, 50)}: {exploration_words(one.interactions)}", "context", one.context.id]
                for one in new
                if one.interactions
            ],
        ),
        "abstract": (
            f"{len(outcomes)} drafts" + (f", {counts_words(drafted.items())}" if drafted else ""),
            [[draft_words(one.draft), "context", one.draft.context_id] for one in outcomes],
        ),
        "verify": (
            f"{len(outcomes) - len(refused)} accepted, {len(refused)} refused"
            + (f": {counts_words((spoken(reason), count) for reason, count in reasons.items())}" if reasons else ""),
            [
                [
                    f"{verification_words(one.verification)} ({task_words(one.draft, 60)})",
                    "context",
                    one.draft.context_id,
                ]
                for one in refused
            ],
        ),
        "update": (
            f"{len(admitted)} tasks admitted",
            [[task_words(task), "task", task.id] for task in admitted],
        ),
    }
    begun = (
        NODES if number is not None else [name for name in NODES if name not in ("extract", "reflect", "deduplicate")]
    )
    return [
        {
            "name": name,
            "for": NODES[name],
            "count": lines[name][0],
            "of": len(lines[name][1]),
            "lines": lines[name][1][:LINES],
        }
        for name in begun
    ]


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


def differing_settings(one: RunSettings, other: RunSettings) -> list[list[Any]]:
    """Return key and both values of each setting in which two runs differ."""
    left, right = dotted(one), dotted(other)
    return [[key, left.get(key), right.get(key)] for key in sorted({*left, *right}) if left.get(key) != right.get(key)]


def _spending(run: RunDirectory) -> list[Json]:
    """Return the chat roles' requests added up by iteration, role and model; empty without chat roles."""
    found: dict[tuple[int | None, str, str], Counter[str]] = defaultdict(Counter)
    for one in read_requests(run.spending_path):
        counts = found[one.iteration, one.role, one.model]
        counts.update({"requests": 1, one.outcome: 1, "calls": one.measured.calls})
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
