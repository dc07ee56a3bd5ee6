"""The text at a run's end: one line per iteration, one task from weakness to effect, the words of both, commands."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote

from environments.registry import DEFAULT
from environments.trust import TRUST_VARIABLE
from graph.report.digest import (
    WIDTH,
    counts_words,
    kind_words,
    number_words,
    one_line,
)
from graph.report.effect import did_it_help
from graph.report.lineage import History, called
from graph.report.stories import Followed, first_story
from graph.report.story import LONG, task_story
from graph.report.summary import COMPACT_LABEL, Cost, Summary
from graph.report.tables import iterations_table
from graph.settings import RunSettings
from memory.run import RunDirectory, read_json
from training.grpo.record import RoundRecord

COLUMNS = 80
"""Width of the text in columns; commands are not broken."""
NAMED = 6
"""Tools that a line names."""


def closing(run: RunDirectory, settings: RunSettings, summaries: Sequence[Summary], before: int = 0) -> str:
    """Return the text at the end of a command, ending in a newline. Raises InputError for a damaged record.

    ``before``: so many of the iterations were done by earlier commands, which printed them: the last one's line is
    repeated, and where the command did none, all but that and the next commands is left out.
    """
    if not summaries:
        return ""
    lines = repr(iterations_table(summaries[max(0, before - 1) :])).splitlines()
    if before >= len(summaries):
        lines += ["", f"Nothing is left to do: {run.root} has its {number_words(len(summaries), 'iteration')}."]
        return "\n".join([*lines, *_next(run, settings, summaries, None)]) + "\n"
    history = History.read(run)
    story = first_story(history)
    labels = dict.fromkeys(label for one in summaries for label in one.labels)
    said = [did_it_help(history), "; ".join(labels)]
    if COMPACT_LABEL in labels:
        said.append(
            "The policy sees values as $1, $2, ..., and reads user turns worded as in its training, not what people "
            "write (docs/running.md has figures)."
        )
    said += [f"Iteration {one.iteration}: {words}" for one in summaries[before:] for words in one.warnings]
    lines += [line for text in said for line in _plain(text)]
    begun, admitted = summaries[0].tasks, sum(one.admitted for one in summaries)
    lines += [
        *_story(history, story),
        *gaps(history),
        *_legend(settings, summaries),
        "",
        "Where things are",
        f"  policy     {run.root / _policy(run, summaries)}",
        f"  tasks      {run.tasks_path} ({begun} at the start, {admitted} admitted)",
        f"  records    {run.iteration(summaries[-1].iteration).root} and its neighbours, JSON lines",
        f"  recipe     {run.settings_path}",
        *_next(run, settings, summaries, story),
    ]
    return "\n".join(lines) + "\n"


def _legend(settings: RunSettings, summaries: Sequence[Summary]) -> Iterator[str]:
    yield ""
    yield "Words of the table"
    yield from _said("tasks", "trained on in the iteration; admitted drafts join them for the next one")
    if refused := _total(one.refused for one in summaries):
        words = f"verified drafts; refused: {counts_words(refused.most_common())} (docs/glossary.md)"
        yield from _said("admitted", words)
    if (scored := summaries[-1].evaluation) is not None:
        words = f"before and after training, on {scored.after.n} tasks held out of it ({scored.after.group})"
        yield from _said("success", f"{words}; 95 %: for other start states and functions")
        for name, value in scored.after.metrics.items():
            if name != "success":
                yield from _said("", f"{name} {value:.3g} at the end")
    for number, (kind, meaning) in enumerate(kind_words(settings.signals).items()):
        yield from _said("" if number else "signals", f"{kind}: {meaning}")
    contexts = _total({"new": one.contexts.new, "known": one.contexts.known} for one in summaries)
    failed = _total(one.failed for one in summaries)
    words = f"{contexts['new']} weaknesses were explored, {contexts['known']} were known already"
    yield from _said("contexts", words + (f"; gave up: {counts_words(failed.most_common())}" if failed else ""))
    if any(one.cost.model_calls for one in summaries):
        cost = Cost.model_validate(_total(one.cost.model_dump(exclude={"stages"}) for one in summaries))
        yield from _said("cost", cost.words())


def _total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _said(word: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, COLUMNS, initial_indent=f"  {word:10} ", subsequent_indent=" " * 13, break_on_hyphens=False
    )


def _plain(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, break_on_hyphens=False)


def gaps(history: History) -> Iterator[str]:
    """Yield which of the tools that the tasks offer no task calls; ``coevolve show`` says what was tried of one."""
    tasks = history.tasks.values()
    used = {name for task in tasks for name in called(task.reference)}
    offered = dict.fromkeys(name for task in tasks for name in task.tools)
    if without := [name for name in offered if name not in used]:
        yield ""
        more = f" and {len(without) - NAMED} more" if len(without) > NAMED else ""
        words = f"{one_line(', '.join(without[:NAMED]), 4 * WIDTH)}{more} (coevolve show TOOL: what was tried)"
        yield from _plain(f"No task calls {len(without)} of the {len(offered)} tools: {words}")


def _story(history: History, story: Followed | None) -> Iterator[str]:
    yield ""
    yield "From weakness to effect"
    if story is None:
        yield from _plain(
            "No task can be followed yet: of none were it and its weak task rolled out after it was made."
        )
        return
    yield from _plain(
        f"The first new task {'about the tool of a wrong or missing call ' if story.mistake else ''}that has "
        "rollouts, as its weak task has since. The outcome plays no part in the choice. It shows how, not how much."
    )
    yield from _said("new task", story.task.id)
    for chapter in task_story(history, story.task):
        for number, row in enumerate(one for one in chapter.rows if one.short):
            yield from _said(row.label or ("" if number else chapter.name), one_line(row.line, LONG))


def _next(
    run: RunDirectory, settings: RunSettings, summaries: Sequence[Summary], story: Followed | None
) -> Iterator[str]:
    root, policy = quote(str(run.root)), quote(str(run.root / _policy(run, summaries)))
    scored, environment = settings.evaluation.scored, settings.environment
    if settings.evaluation.tasks is not None:
        what = f"--tasks {quote(settings.evaluation.tasks)}"
    else:
        what = f"--evaluation-set {scored}" if scored is not None else f"--tasks {quote(str(run.tasks_path))}"
    named = "" if environment.name == DEFAULT else f"--environment {quote(environment.name)} "
    options = [f" --option {quote(f'{key}={json.dumps(value)}')}" for key, value in environment.for_evaluation.items()]
    coevolve = _coevolve()
    # Of a run that --mcp began, no shell has the variable; without it a later command does not start its server.
    program = environment.program
    trusting = coevolve if program is None else f"{TRUST_VARIABLE}={quote(program.entry)} {coevolve}"
    scoring = f"{trusting} evaluate {named}{what}{''.join(options)}"
    yield ""
    yield "Next"
    yield f"  {coevolve} report {root}   # one HTML page: curves, tools, and every task from its weakness to its effect"
    if story is not None:
        yield f"  {coevolve} show {story.task.id} --run {root}   # the task above, step by step"
    yield f"  {trusting} studio --run {root}   # the run's graph in LangGraph Studio"
    yield f"  {trusting} evolve --run {root} --iterations {len(summaries) + 3} --resume   # three more iterations"
    stated = run.iteration(summaries[-1].iteration).evaluation_settings
    if stated.exists():  # its limits are the run's: without them a language model takes hours
        yield f"  {trusting} evaluate --settings {quote(str(stated))} --model {policy}   # its last score again"
    else:
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
