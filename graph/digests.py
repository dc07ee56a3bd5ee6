"""Write what each node leaves in the state for people: a few lines of plain text, bounded in number and length.

No node reads a digest, and no record holds one: they change neither ids nor hashes, and a checkpoint without them is
resumed as ever. LangGraph Studio shows them beside the ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graph.records import Evolution, ExtractionRecord, Failure
from graph.report.digest import (
    counts_words,
    draft_words,
    number_words,
    one_line,
    signal_words,
    task_words,
    verification_words,
)
from memory.failures import DeduplicationResult
from memory.records import Draft, DraftVerification, Signal, Task, Trajectory

Digest = dict[str, list[str]]
"""Lines by the name of the node that left them."""

LINES = 6
"""Lines of a node's digest."""

LINE = 160
"""Characters of a line."""

NAME = 40
"""Characters that a line keeps of a weakness at least."""

BRANCHES = 40
"""Lines on branches that ended."""


def lines(rows: Iterable[str], most: int = LINES) -> list[str]:
    """Return at most ``most`` bounded lines; the last one counts those that were left out."""
    given = [one_line(row, LINE) for row in rows]
    return given if len(given) <= most else [*given[: most - 1], f"and {len(given) - most + 1} more"]


def joined(old: object, new: object) -> Digest:
    """Join two digests: a node's lines replace its former ones. Anything that is not a digest counts as an empty one.

    LangGraph calls this with what people may have edited, so it takes every value.
    """
    return {**_digest(old), **_digest(new)}


def _digest(given: object) -> Digest:
    if not isinstance(given, Mapping):
        return {}
    return {
        one_line(node, 40): lines(str(row) for row in rows)
        for node, rows in given.items()
        if isinstance(rows, list | tuple)
    }


def ended(old: object, new: object) -> list[str]:
    """Join the lines of branches that ended: the first BRANCHES are kept."""
    rows = [one_line(str(row), LINE) for given in (old, new) if isinstance(given, list | tuple) for row in given]
    return rows if len(rows) <= BRANCHES else [*rows[: BRANCHES - 1], "and more: see digest.update"]


def _counts(found: Mapping[Any, int]) -> str:
    return counts_words(
        sorted(((str(name), count) for name, count in found.items()), key=lambda one: (-one[1], one[0]))
    )


def of_extract(
    name: str,
    record: ExtractionRecord,
    trajectories: Sequence[Trajectory],
    chosen: Sequence[Signal],
    tasks: Mapping[str, Task],
) -> list[str]:
    """Return what ``extract`` found: the round in numbers, its signals by kind, and those that were chosen."""
    evaluated = [one for one in trajectories if one.outcome is not None]
    solved = sum(one.success for one in evaluated)
    of = len({one.task_id for one in trajectories})
    left, repeated = sum(record.left_out.values()), sum(record.repeated.values())
    return lines(
        [
            f"{name}: {len(trajectories)} rollouts of {number_words(of, 'task')}, "
            f"{solved} of {len(evaluated)} succeeded",
            f"signals: {_counts(record.signals)}; {len(record.chosen)} chosen, {left} beyond the limit, "
            f"{repeated} more of a task and kind that has one",
            *(signal_words(one, tasks.get(one.task_id), LINE) for one in chosen),
        ]
    )


def of_reflect(names: Sequence[str], failures: Sequence[Failure], of: int, unsignalled: int = 0) -> list[str]:
    """Return what ``reflect`` made: the contexts by name, ``unsignalled`` without a signal, and what gave up."""
    gave_up = [f"gave up, {one.cause}: {one.detail}" for one in failures]
    made = (
        f"{number_words(len(names) - unsignalled, 'context')} of {number_words(of, 'signal')}, {len(failures)} gave up"
    )
    if unsignalled:
        made += f"; {number_words(unsignalled, 'context')} without a signal"
    return lines([made, *gave_up[:2], *names])


def of_deduplicate(results: Sequence[DeduplicationResult], names: Mapping[str, str]) -> list[str]:
    """Return what memory said: which contexts are explored, and which were explored before."""
    rows = {status: [one for one in results if one.status == status] for status in ("new", "known")}
    known = [
        f"known: {names.get(one.context_id, one.context_id)}, as {one.nearest} ({one.cosine or 0:.2f})"
        for one in rows["known"]
    ]
    new = [f"new: {names.get(one.context_id, one.context_id)}" for one in rows["new"]]
    return lines([f"{len(rows['new'])} new, {len(rows['known'])} known", *known[:2], *new])


def of_abstract(drafts: Sequence[Draft]) -> list[str]:
    """Return the drafts, a line each."""
    return lines([number_words(len(drafts), "draft"), *(draft_words(one, LINE) for one in drafts)])


def of_verify(drafts: Sequence[Draft], verifications: Sequence[DraftVerification]) -> list[str]:
    """Return the verification results with their reasons, a line each."""
    by_id = {one.id: one for one in drafts}
    accepted = sum(one.accepted for one in verifications)
    return lines(
        [
            f"{accepted} of {number_words(len(verifications), 'draft')} accepted",
            *(
                f"'{task_words(by_id[one.draft_id], LINE // 2)}': {verification_words(one, LINE)}"
                for one in verifications
            ),
        ]
    )


def of_branch(name: str, verifications: Sequence[DraftVerification]) -> str:
    """Return one line on a branch that finished; a long name is cut before what verification said."""
    accepted = sum(one.accepted for one in verifications)
    refused = Counter(one.reason for one in verifications if one.reason is not None)
    words = f"{accepted} of {number_words(len(verifications), 'draft')} accepted"
    if refused:
        words += f", refused: {_counts(refused)}"
    return one_line(f"{one_line(name or 'branch', max(NAME, LINE - len(words) - 2))}: {words}", LINE)


def of_failure(name: str, failure: Failure) -> str:
    """Return one line on a branch that failed."""
    return one_line(f"{name or failure.id}: failed in {failure.node}, {failure.cause}: {failure.detail}", LINE)


def of_update(evolution: Evolution, tasks: Sequence[Task]) -> list[str]:
    """Return what an iteration's graph added: tasks, refusals and failures."""
    rows = [
        f"{len(evolution.admitted)} of {number_words(evolution.drafts, 'draft')} admitted as tasks",
        f"refused: {_counts(evolution.refused)}",
    ]
    if evolution.failures:
        rows.append(f"failed: {_counts(evolution.failures)}")
    if evolution.stopped is not None:
        rows.append(f"a budget is spent: {evolution.stopped}")
    return lines([*rows, *(f"new task: {task_words(task)}" for task in tasks)])
