"""Words for one record in one line: a signal, a context, an exploration, a draft, a verification result, an admission.

Studio, the closing text, `coevolve show` and the page say the same of the same record. What agents, tools and models
wrote is foreign text: it becomes one line without control characters, cut to a width. The functions ``of_...`` write
what each node leaves in the state for people; no node reads them, and no record holds them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from environments.base import MalformedCall, ToolCall
from environments.command import printable
from memory.failures import DeduplicationResult
from memory.records import (
    KINDS,
    Cause,
    Draft,
    DraftVerification,
    FailureContext,
    Interaction,
    Signal,
    Task,
    Trajectory,
    Unsignalled,
    Writing,
)
from memory.run_files import Evolution, ExtractionRecord, Failure
from training.signals import SignalSettings

WIDTH = 110
"""Characters of a foreign text."""

COVERAGE = "a tool, or two one after the other, that no task or few tasks exercise; no rollout is behind it"
"""The meaning of a context from coverage (ours)."""

NEED = "a tool that few tasks exercise and at whose calls rollouts fail, or that none was asked for"
"""Its meaning with ``signals.coverage_by: need`` (ours)."""

REASONS = {
    "empty_reference": "its reference has no call",
    "too_long": "its reference has more calls than the settings allow",
    "unknown_tool": "a call of its reference names a tool that is not there",
    "bad_arguments": "a call of its reference has an unknown, missing or wrong argument",
    "empty_turn": "a user turn of it has no text, or no call though nothing that its calls need is missing",
    "sealed": "it equals a held-out task, or has its start and its calls",
    "duplicate": "the task set has it already",
    "foreign_text": "a user turn of it has markup or invisible characters, or repeats what the environment says",
    "cannot_open": "the environment does not accept its start state",
    "error_result": "a call of its reference fails",
    "unstable_state": "the state after its reference cannot be compared",
    "nondeterministic": "two replays of it differ",
    "no_effect": "a user turn of it changes nothing and returns nothing informative",
    "not_solved": "its reference does not solve it",
    "unmet_request": "a user turn of it asks for something that no call does",
    "trivial_policy": "an agent that does not read it solves it",
    "superfluous_call": "a call of its reference can be left out",
    "ungrounded_argument": "a value of its reference can be found nowhere",
    "unasked_call": "a user turn of it does not ask for a call, and no later call needs it",
    "misread": "a language model that reads it does not find the calls that it is to ask for",
    "agent": "an agent that carried it out neither completed it nor earned a reward",
    "not_validated": "the agent that carries it out could not be evaluated",
    "over_quota": "the iteration admits no more",
}
"""The meaning of the reasons of a refused draft; ``environments.verification.verify.Refusal`` defines them."""


CAUSES = {
    Cause.MALFORMED: "malformed call",
    Cause.UNSTABLE: "unstable use",
    Cause.STOPPED_EARLY: "early stop, for want",
}
"""Causes whose own name does not read well before ``of TOOL``."""


def kind_words(settings: SignalSettings) -> dict[str, str]:
    """Return what the kinds of signals and contexts mean that a run with these settings has."""
    meanings: dict[str, str] = {kind.value: one.meaning for kind, one in KINDS.items()}
    if settings.contexts != "coverage":
        return meanings
    return {**meanings, Unsignalled.COVERAGE: COVERAGE if settings.coverage_by == "tasks" else NEED}


def one_line(text: str, width: int = WIDTH) -> str:
    """Return a foreign text as one line of at most ``width`` characters, without control characters."""
    plain = printable(text[: width + 1])
    return plain if len(plain) <= width else plain[: width - 3] + "..."


def call_words(call: ToolCall | MalformedCall) -> str:
    """Return a call as Python would write it, a program in its arguments over several lines.

    Of a call that could not be read: its text.
    """
    if isinstance(call, MalformedCall):
        return call.text
    values = (
        f"{name}=\n{value}\n" if isinstance(value, str) and "\n" in value else f"{name}={value!r}"
        for name, value in call.arguments.items()
    )
    return f"{call.name}({', '.join(values)})"


def calls_words(calls: Iterable[ToolCall], width: int = WIDTH) -> str:
    """Return calls in one line."""
    return one_line(", ".join(map(call_words, calls)), width)


def task_words(task: Task | Draft, width: int = WIDTH) -> str:
    """Return what the user says in the agent's turns, joined by a slash."""
    return one_line(" / ".join(task.turns[task.played :]), width)


def signal_words(signal: Signal, task: Task | None = None, width: int = WIDTH) -> str:
    """Return a signal with its numbers, and its task: ``boundary, 5 of 8 rollouts succeed: erase the log``."""
    words = str(signal.kind)
    if signal.group is not None:
        words += f", {signal.group[0]} of its group's {signal.group[1]} rollouts succeed"
    if signal.recent is not None:
        words += f", {signal.recent[0]} of the last {signal.recent[1]} before them did"
    if signal.pattern:
        words += f", the calls {' '.join(signal.pattern)} (seen {signal.count} times)"
    if task is not None:
        words += f": {' / '.join(task.turns[task.played :])}"
    return one_line(words, width)


def named_weakness(
    context: FailureContext, signal: Signal | None = None, task: Task | None = None, width: int = WIDTH
) -> str:
    """Return a weakness by kind, cause and tool: ``boundary: wrong call of du``.

    Signal and task add numbers and words: ``boundary 5/8 on 'erase the log': wrong call of du``.
    """
    numbers = ""
    if signal is not None and signal.recent is not None:
        numbers = f" after {signal.recent[0]}/{signal.recent[1]}"
    elif signal is not None and signal.group is not None:
        numbers = f" {signal.group[0]}/{signal.group[1]}"
    about = "" if task is None else f" on '{task_words(task, width // 2)}'"
    if context.kind is Unsignalled.COVERAGE:
        how = " then ".join(context.focus_pattern)
    elif context.cause is None:
        how = context.tool or ", ".join(context.classes)
    else:
        how = CAUSES.get(context.cause, spoken(context.cause)) + (f" of {context.tool}" if context.tool else "")
    return one_line(f"{context.kind or 'unguided'}{numbers}{about}: {how}", width)


def exploration_words(interactions: Sequence[Interaction], width: int = WIDTH) -> str:
    """Return counts of an exploration: actions, episodes, changes, refusals, and its tools by frequency."""
    if not interactions:
        return "nothing was explored"
    runs = len({one.run for one in interactions})
    changed = sum(one.changed for one in interactions)
    failed = sum(one.observation.failed for one in interactions)
    tools = Counter(call.name for one in interactions for call in one.observation.calls)
    words = f"{len(interactions)} actions in {number_words(runs, 'episode')}"
    words += f", {changed} changed the state, {failed} failed"
    shown = ", ".join(f"{name} {count}" for name, count in tools.most_common(6))
    return one_line(f"{words}: {shown}" if shown else words, width)


def draft_words(draft: Draft, width: int = WIDTH) -> str:
    """Return a draft's text and its reference."""
    calls = ", ".join(call_words(call) for turn in draft.reference for call in turn)
    grade = f"{draft.difficulty}: " if draft.difficulty is not None else ""
    return one_line(f"{grade}{' / '.join(draft.turns)} -> {calls}", width)


def writing_words(writing: Writing) -> str:
    """Return how a language model worded a draft: of how many, and how well it is read back."""
    usable = number_words(writing.wordings, "usable wording")
    if writing.margin is None:
        read = "the calls exactly" if writing.round_trip else f"other calls: {writing.read}"
        return f"by a language model, the last of {usable}; from these words it reads {read}"
    read = "exactly the calls (which" if writing.round_trip else "other calls (the right ones"
    likelier = math.exp(min(writing.margin, _LARGEST_MARGIN))
    return (
        f"by a language model, the best of {usable} out of {writing.drawn}; "
        f"from these words a second model writes {read} become {likelier:.3g} times as likely per token)"
    )


def writing_figures(writing: Writing) -> str:
    """Return the other figures of a draft's wording; empty for words of an endpoint, which gives none."""
    if writing.margin is None or writing.realism is None or writing.difference is None:
        return ""
    return (
        f"in nats per token: the words add {writing.margin:.2f} to the calls for the reader; the calls have "
        f"{writing.realism:.2f} for the writer; teaching it added {writing.difference:.2f} to the words"
    )


def written_words(drafts: Iterable[tuple[Draft, DraftVerification | None]]) -> str:
    """Return one line on the drafts whose calls a language model worded; an empty one where there are none."""
    worded = [(draft.writing, result_of(result)) for draft, result in drafts if draft.writing is not None]
    if not worded:
        return ""
    exact, misread = sum(one.round_trip for one, _ in worded), sum(result == "misread" for _, result in worded)
    return (
        f"of {number_words(len(worded), 'draft')} whose calls a language model worded, "
        f"{exact / len(worded):.0%} are read back exactly, {misread} refused as misread"
    )


def result_of(verification: DraftVerification | None) -> str:
    """Return what became of a draft in a word: ``accepted``, ``not verified``, or the reason of its refusal."""
    if verification is None:
        return "not verified"
    return "accepted" if verification.accepted else one_line(verification.reason or "refused")


def verification_words(verification: DraftVerification | None, width: int = WIDTH) -> str:
    """Return ``accepted``, or the reason of a refusal and what it means."""
    result = result_of(verification)
    if verification is None or verification.accepted:
        return result
    return one_line(f"refused, {result}: {verification.detail or REASONS.get(result, '')}".rstrip(": "), width)


def spoken(word: str) -> str:
    """Return a name of the records as words."""
    return word.replace("_", " ")


def number_words(count: int, noun: str) -> str:
    """Return ``1 draft`` or ``2 drafts``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def counts_words(counts: Iterable[tuple[str, int]]) -> str:
    """Return ``3 duplicate, 1 not_solved``; ``none`` for no counts."""
    return ", ".join(f"{count} {name}" for name, count in counts if count) or "none"


_LARGEST_MARGIN = 20.0  # nats, of which the exponential has nine digits

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


def lines(rows: Iterable[str]) -> list[str]:
    """Return at most LINES bounded lines; the last one counts those that were left out."""
    given = [one_line(row, LINE) for row in rows]
    return given if len(given) <= LINES else [*given[: LINES - 1], f"and {len(given) - LINES + 1} more"]


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
    signals = counts_words(Counter(record.signals).most_common())
    return lines(
        [
            f"{name}: {len(trajectories)} rollouts of {number_words(of, 'task')}, "
            f"{solved} of {len(evaluated)} succeeded",
            f"signals: {signals}; {len(record.chosen)} chosen, {left} beyond the limit, {repeated} more of a task and "
            "kind that has one",
            *(signal_words(one, tasks.get(one.task_id), LINE) for one in chosen),
        ]
    )


def of_reflect(names: Sequence[str], failures: Sequence[Failure], of: int, unsignalled: int = 0) -> list[str]:
    """Return what ``reflect`` made: the contexts by name, ``unsignalled`` without a signal, and what gave up."""
    signalled = number_words(len(names) - unsignalled, "context")
    made = f"{signalled} of {number_words(of, 'signal')}, {len(failures)} gave up"
    made += f"; {number_words(unsignalled, 'context')} without a signal" if unsignalled else ""
    return lines([made, *(f"gave up, {one.cause}: {one.detail}" for one in failures[:2]), *names])


def of_deduplicate(results: Sequence[DeduplicationResult], names: Mapping[str, str]) -> list[str]:
    """Return what memory said: which contexts are explored, and which were explored before."""
    known = [one for one in results if one.status == "known"]
    new = [f"new: {names.get(one.context_id, one.context_id)}" for one in results if one.status == "new"]
    before = (
        f"known: {names.get(one.context_id, one.context_id)}, as {one.nearest} ({one.cosine or 0:.2f})"
        for one in known[:2]
    )
    return lines([f"{len(new)} new, {len(known)} known", *before, *new])


def of_abstract(drafts: Sequence[Draft]) -> list[str]:
    """Return the drafts, a line each."""
    return lines([number_words(len(drafts), "draft"), *(draft_words(one, LINE) for one in drafts)])


def of_verify(drafts: Sequence[Draft], verifications: Sequence[DraftVerification]) -> list[str]:
    """Return the verification results with their reasons, a line each."""
    words = {one.id: task_words(one, LINE // 2) for one in drafts}
    results = (f"'{words[one.draft_id]}': {verification_words(one, LINE)}" for one in verifications)
    return lines([_accepted(verifications), *results])


def _accepted(verifications: Sequence[DraftVerification]) -> str:
    accepted = sum(one.accepted for one in verifications)
    return f"{accepted} of {number_words(len(verifications), 'draft')} accepted"


def of_branch(name: str, verifications: Sequence[DraftVerification]) -> str:
    """Return one line on a branch that finished; a long name is cut before what verification said."""
    refused = Counter(one.reason for one in verifications if one.reason is not None)
    words = _accepted(verifications)
    if refused:
        words += f", refused: {counts_words(refused.most_common())}"
    return one_line(f"{one_line(name or 'branch', max(NAME, LINE - len(words) - 2))}: {words}", LINE)


def of_failure(name: str, failure: Failure) -> str:
    """Return one line on a branch that failed."""
    return one_line(f"{name or failure.id}: failed in {failure.node}, {failure.cause}: {failure.detail}", LINE)


def of_update(evolution: Evolution, tasks: Sequence[Task]) -> list[str]:
    """Return what an iteration's graph added: tasks, refusals and failures."""
    rows = [
        f"{len(evolution.admitted)} of {number_words(evolution.drafts, 'draft')} admitted as tasks",
        f"refused: {counts_words(Counter(evolution.refused).most_common())}",
    ]
    if evolution.failures:
        rows.append(f"failed: {counts_words(Counter(evolution.failures).most_common())}")
    if evolution.stopped is not None:
        rows.append(f"a budget is spent: {evolution.stopped}")
    return lines([*rows, *(f"new task: {task_words(task)}" for task in tasks)])
