"""The text at a run's end: paths, one task from weakness to effect, a glossary, and the next commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from statistics import fmean

from environments.base import Record
from environments.registry import DEFAULT
from graph.report.digest import (
    REASONS,
    WIDTH,
    calls_words,
    kind_words,
    one_line,
    signal_words,
    task_words,
    weakness_words,
)
from graph.report.summary import Summary
from graph.settings import RunSettings
from memory.records import FailureContext, Signal, SignalKind, Task
from memory.run import RunDirectory, read_existing, read_json
from memory.tasks import load_tasks
from training.grpo.record import RoundRecord
from training.signals import GroupScore

WORDS = {
    "tasks": "trained on in the iteration; admitted: verified drafts that join them for the next one",
    "contexts": "weaknesses to explore around: new, known to the failure memory, left out of the iteration's budget",
    "evaluation": "success before and after training on tasks held out of it; 95 %: for other start states, functions",
    "seconds, cost": "of the iteration, by stage",
}


class Story(Record):
    """One admitted task with its cause and its effect.

    ``scores`` are those of groups by iteration: success in [0, 1], of the weak task and of the admitted one.
    """

    weak: Task
    signal: Signal
    context: FailureContext
    admitted: Task
    weak_scores: dict[int, float]
    admitted_scores: dict[int, float]


def closing(run: RunDirectory, settings: RunSettings, summaries: Sequence[Summary]) -> str:
    """Return the text after the last table, ending in a newline. Raises InputError for a damaged record."""
    if not summaries:
        return ""
    story = find_story(run, len(summaries))
    lines = [
        *_places(run, summaries),
        *_story(story),
        *_words(settings, summaries),
        *_next(run, settings, summaries, story),
    ]
    return "\n".join(lines) + "\n"


def find_story(run: RunDirectory, iterations: int) -> Story | None:
    """Return the first admitted task that was rolled out later, and whose weak task was rolled out again later.

    Forgetting and boundary come before rare; the outcome plays no part in the choice. None without one.
    """
    tasks = load_tasks(run)
    by_id = {task.id: task for task in tasks}
    scores = {i: read_existing(run.iteration(i).scores, GroupScore) for i in range(iterations)}
    found: list[Story] = []
    for number in range(iterations):
        folder = run.iteration(number)
        signals = {one.id: one for one in read_existing(folder.signals, Signal)}
        contexts = {one.id: one for one in read_existing(folder.contexts, FailureContext)}
        for task in (task for task in tasks if task.admitted_at == number):
            context = next((contexts[parent] for parent in task.parents if parent in contexts), None)
            signal = signals.get(context.signal_id) if context is not None else None
            if context is None or signal is None or signal.task_id not in by_id:
                continue
            story = Story(
                weak=by_id[signal.task_id],
                signal=signal,
                context=context,
                admitted=task,
                weak_scores=_by_iteration(scores, signal.task_id),
                admitted_scores=_by_iteration(scores, task.id),
            )
            if story.admitted_scores and max(story.weak_scores, default=number) > number:
                if signal.kind is not SignalKind.RARE:
                    return story
                found.append(story)
    return found[0] if found else None


def _by_iteration(scores: dict[int, list[GroupScore]], task_id: str) -> dict[int, float]:
    means = {i: [one.mean for one in groups if one.task_id == task_id] for i, groups in scores.items()}
    return {i: fmean(found) for i, found in means.items() if found}


def _places(run: RunDirectory, summaries: Sequence[Summary]) -> Iterator[str]:
    policy = run.root / _policy(run, summaries)
    begun, admitted = summaries[0].tasks, sum(one.admitted for one in summaries)
    yield "Where things are"
    yield f"  policy     {policy}"
    yield f"  tasks      {run.tasks_path} ({begun} at the start, {admitted} admitted)"
    folder = run.iteration(summaries[-1].iteration).root
    yield f"  records    {folder} and its neighbours: trajectories, signals, contexts,"
    yield "             interactions, drafts, verdicts, one JSON object per line; settings.yaml is the whole recipe"


def _story(story: Story | None) -> Iterator[str]:
    if story is None:
        return
    signal, context = story.signal, story.context
    yield ""
    yield "From weakness to effect (the first task that can be followed; one task shows how, not how much)"
    yield f"  task       {story.weak.id}: {task_words(story.weak)}"
    yield f"  signal     iteration {signal.iteration}: {signal_words(signal, width=2 * WIDTH)}"
    if context.how:
        yield f"  rollout    {one_line(context.how)}"
    explored = f"; explore {', '.join(context.explore[:4])}" if context.explore else ""
    yield f"  context    {weakness_words(context)}{one_line(explored)}"
    yield f"  new task   {story.admitted.id}: {task_words(story.admitted)}"
    yield f"  reference  {calls_words(call for turn in story.admitted.reference for call in turn)}"
    yield f"  effect     success by iteration, old task: {_course(story.weak_scores)}"
    yield f"             new task: {_course(story.admitted_scores)}"


def _words(settings: RunSettings, summaries: Sequence[Summary]) -> Iterator[str]:
    yield ""
    yield "Words of the table"
    tasks, *others = WORDS.items()
    for word, meaning in (tasks, *kind_words(settings.signals).items(), *others):
        if word != "evaluation" or any(one.evaluation for one in summaries):
            yield f"  {word:13} {meaning}"
    for reason in dict.fromkeys(reason for one in summaries for reason in one.refused):
        yield f"  refused: {reason}: {REASONS.get(reason, 'see docs/glossary.md')}"
    if any("argument references" in label for one in summaries for label in one.labels):
        yield "  argument references ($k): the embedded policy reads values as $1, $2, ..., its calls carry them"


def _next(run: RunDirectory, settings: RunSettings, summaries: Sequence[Summary], story: Story | None) -> Iterator[str]:
    root, policy = quote(str(run.root)), quote(str(run.root / _policy(run, summaries)))
    scored = settings.evaluation.scored
    if settings.evaluation.tasks is not None:
        what = f"--tasks {quote(settings.evaluation.tasks)}"
    else:
        what = f"--evaluation-set {scored}" if scored is not None else f"--tasks {quote(str(run.tasks_path))}"
    environment = settings.environment
    named = "" if environment.name == DEFAULT else f"--environment {quote(environment.name)} "
    options = [f" --option {quote(f'{key}={json.dumps(value)}')}" for key, value in environment.for_evaluation.items()]
    coevolve = _coevolve()
    scoring = f"{coevolve} evaluate {named}{what}{''.join(options)}"
    yield ""
    yield "Next"
    yield f"  {coevolve} report {root}   # one HTML page: curves, flow, and every task from its weakness to its effect"
    if story is not None:
        yield f"  {coevolve} show {story.admitted.id} --run {root}   # the task above, step by step"
    yield f"  {coevolve} studio --run {root}   # the run's graph in LangGraph Studio"
    yield f"  {coevolve} evolve --run {root} --iterations {len(summaries) + 3} --resume   # three more iterations"
    yield f"  {scoring} --model {policy}"
    if scored is not None:  # of its own training tasks a lookup knows everything
        yield f"  {scoring} --model lookup --train {quote(str(run.tasks_path))}   # what the tasks say without a model"
    yield "  notebooks/01_one_iteration.ipynb   # follows one failure through every step"


def _coevolve() -> str:
    """Return the command beside this interpreter, relative to the working directory where it is below it."""
    beside, here = Path(sys.executable).with_name("coevolve"), Path.cwd()
    if not beside.exists():
        return "python -m graph.command"
    return quote(str(beside.relative_to(here))) if beside.is_relative_to(here) else "coevolve"


def _policy(run: RunDirectory, summaries: Sequence[Summary]) -> str:
    return read_json(run.iteration(summaries[-1].iteration).round, RoundRecord).policy


def _course(scores: dict[int, float]) -> str:
    return ", ".join(f"{score:.0%} ({iteration})" for iteration, score in sorted(scores.items()))
