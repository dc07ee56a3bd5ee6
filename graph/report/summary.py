"""What one iteration did, as a record, as a line of JSON and as rows of a table."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from agents.chat.endpoint import model_of
from environments.base import Record
from environments.learning_interface.profile import SealFigures, TurnCause, TurnLabel
from environments.settings import BFCL
from graph.records import Evolution, PanelScore, StageSeconds
from graph.report.costs import Cost, cost_of
from graph.settings import RunSettings
from memory.records import SignalKind, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import load_tasks, tasks_at
from training.grpo.record import RECORD_FILE, TRAJECTORIES_FILE, RoundRecord, RoundSeconds
from training.rollout.policy import PolicyCard

if TYPE_CHECKING:
    from rich.table import Table

# The words that say which arm of a study a run is: what it leaves out, or puts in place of the full loop's part.


def arm_labels(settings: RunSettings, evolution: Evolution) -> list[str]:
    """A label for each deviation from the full loop in how tasks are made, and for SEAL; none for the full loop."""
    signals, verification = settings.signals, settings.verification
    labels = []
    if signals.contexts == "random":
        labels.append("random contexts")
    if signals.contexts == "unguided":
        labels.append("unguided exploration")
    left_out = [kind for kind in SignalKind if kind not in signals.kinds]
    if left_out:
        labels.append(f"without {' and '.join(left_out)} signals")
    if settings.training.seal is not None:
        labels.append("SEAL")
    if signals.novelty:
        labels.append("least explored contexts first")
    if not settings.memory.deduplicate:
        labels.append("without deduplication")
    if not verification.enabled:
        labels.append("verification off")
    if verification.perturbed:
        labels.append(f"{100 * verification.perturbed:g} % of drafts perturbed")
    if settings.tasks.admissions is not None:
        labels.append("tasks admitted by a quota")
    if evolution.shortfall:
        labels.append(f"iteration {evolution.iteration}: {evolution.shortfall} tasks short of its quota")
    return labels


# What SEAL did in the round of an iteration, as a part of its summary and as rows of its table.


class SealSummary(Record):
    """What SEAL saw and showed in the round, and the round's seconds by stage, its own among them."""

    figures: SealFigures
    measured: RoundSeconds


def seal_summary(done: RoundRecord) -> SealSummary | None:
    """SEAL's part of a round; None where it is off."""
    return None if done.seal is None else SealSummary(figures=done.seal, measured=done.measured)


def seal_rows(summary: SealSummary) -> Iterator[tuple[str, str]]:
    """Rows of the iteration's table: what turns became, what the interface was of use for, what all of it cost."""
    figures, errors = summary.figures, summary.figures.errors
    yield "SEAL: turns", _counts(figures.labels)
    yield "  causes", _counts(figures.causes)
    shown = (f"{label} in {n} of {figures.steps} steps" for label, n in figures.guidelines.items())
    yield "  guidelines", ", ".join(shown) or "none"
    yield "  mastered", _counts(figures.retired)
    for name, of, recovered, succeeded in (
        ("errors with a hint", errors.hinted, errors.hinted_recovered, errors.hinted_succeeded),
        ("without", errors.unhinted.errors, errors.unhinted.recovered, errors.unhinted.succeeded),
    ):
        told = f"{of}, {recovered / of:.0%} recovered from, {succeeded / of:.0%} in a success" if of else "none"
        yield f"  {name}", told
    measured = summary.measured
    yield "  cost", f"{measured.seal:.2f} s, {measured.seal_share:.2%} of the round"


def _counts(of: Mapping[TurnLabel, int] | Mapping[TurnCause, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in of.items()) or "none"


SUMMARY_FILE = "summary.json"
CAUSE = 300  # characters of a fault's cause
COMPACT_LABEL = "embedded policy with argument references ($k)"
COLUMNS = ("iteration", "tasks", "admitted", "refused", "signals", "contexts", "panel", "seconds", "cost")


class Contexts(Record):
    """Failure contexts: new to the memory, known to it, and signals that the budget left out."""

    new: int
    known: int
    left_out: int


class PanelChange(Record):
    """Success on the fixed panel, in [0, 1], by the policy that the round began with and the one that it made.

    ``interval``: 95 % of ``after``, with start states and functions resampled where they are known, else Wilson's; None
    in summaries of before it was there.
    """

    name: str
    n: int
    before: float
    after: float
    interval: tuple[float, float] | None = None


class Summary(Record):
    """One iteration. ``tasks`` were trained on, ``admitted`` came to them for the next one.

    ``failed``: reflections and branches that gave up, by cause. ``labels`` say what the figures are figures of.
    ``stopped``: the key of the budget that was spent at the iteration's end, None while there is some left. ``seal``:
    what SEAL did in the round, None where it is off. ``without_success``: what to do about a round in which no rollout
    succeeded, in words; None for any other. ``faulted``: what is known of rollouts that the environment ended, in
    words; None where there are none.
    """

    iteration: int
    tasks: int
    admitted: int
    refused: dict[str, int]
    signals: dict[SignalKind, int]
    contexts: Contexts
    panel: PanelChange | None
    seconds: dict[str, float]
    cost: Cost
    failed: dict[str, int] = {}
    labels: tuple[str, ...] = ()
    stopped: str | None = None
    seal: SealSummary | None = Field(default=None, exclude_if=operator.not_)
    without_success: str | None = Field(default=None, exclude_if=operator.not_)
    faulted: str | None = Field(default=None, exclude_if=operator.not_)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What somebody must hear of the iteration, in words."""
        return tuple(words for words in (self.without_success, self.faulted) if words)

    @property
    def made_nothing(self) -> bool:
        """Whether neither a task came of the iteration nor anything that a policy could learn from."""
        return self.admitted == 0 and self.without_success is not None


def summarise(run: RunDirectory, settings: RunSettings, iteration: int) -> Summary:
    """The summary of an iteration whose stages are all done, from the files that they wrote."""
    folder = run.iteration(iteration)
    evolution = read_json(folder / "evolution.json", Evolution)
    record = read_json(folder / RECORD_FILE, RoundRecord)
    return Summary(
        iteration=iteration,
        tasks=len(tasks_at(load_tasks(run), iteration)),
        admitted=len(evolution.admitted),
        refused=evolution.refused,
        signals={kind: evolution.signals.get(kind, 0) for kind in SignalKind},
        contexts=Contexts(new=evolution.new, known=evolution.known, left_out=evolution.left_out),
        panel=_panel(folder, settings),
        seconds=_seconds(folder / "seconds.json"),
        cost=cost_of(run, iteration, len(evolution.admitted)),
        failed=evolution.failures,
        labels=(*_labels(run, record, settings), *arm_labels(settings, evolution)),
        stopped=evolution.stopped,
        seal=seal_summary(record),
        without_success=_without_success(folder, settings) if record.success == 0 and not record.lent else None,
        faulted=_faulted(folder) if record.infrastructure_errors else None,
    )


def _faulted(folder: Path) -> str:
    """How many rollouts of a round the environment ended, on how many tasks, and why most often."""
    rollouts = read_jsonl(folder / TRAJECTORIES_FILE, Trajectory)
    faults = [(one.task_id, one.infrastructure_error) for one in rollouts if one.infrastructure_error is not None]
    tasks = Counter(task for task, _ in faults)
    (often, times), (cause, alike) = tasks.most_common(1)[0], Counter(cause for _, cause in faults).most_common(1)[0]
    return (
        f"{len(faults)} of {len(rollouts)} rollouts, of {len(tasks)} tasks, ended in a fault of the environment and "
        f"count in no rate ({times} of them of {often}). Look into it where they recur: the commonest cause "
        f"({alike} times) is {' '.join(cause.split())[:CAUSE]}"
    )


def _without_success(folder: Path, settings: RunSettings) -> str:
    """What the rollouts of a round without any success have in common, and what may help."""
    rollouts = [one for one in read_jsonl(folder / TRAJECTORIES_FILE, Trajectory) if one.infrastructure_error is None]
    mute = sum(not one.calls() for one in rollouts)
    training = settings.training
    if 2 * mute > len(rollouts):
        advice = (
            "choose a policy that was trained to call these tools, or give its messages more room "
            f"(training.max_new_tokens is {training.max_new_tokens})"
        )
    else:
        lend = "" if training.lend_reference != "none" else "lend references (training.lend_reference: supervised), "
        advice = f"{lend}start from a policy that solves some of the tasks, or give episodes more room "
        advice += f"(training.max_tokens is {training.max_tokens}, max_actions {training.max_actions})"
    return (
        f"none of the {len(rollouts)} rollouts of this round succeeded ({mute} made no call that can be read), so that "
        f"the loop has nothing to work on. To change that, {advice}. What the policy did is in "
        f"iterations/{folder.name}/{TRAJECTORIES_FILE}, for example in lines 1 and {len(rollouts)}"
    )


def _seconds(path: Path) -> dict[str, float]:
    """Of the stages that ended in peace: one killed right after it wrote its result has no entry."""
    return read_json(path, StageSeconds).seconds if path.exists() else {}


def _panel(folder: Path, settings: RunSettings) -> PanelChange | None:
    if settings.evaluation.scored is None:
        return None
    before = read_json(folder / "panel_before.json", PanelScore)
    after = read_json(folder / "panel_after.json", PanelScore)
    return PanelChange(
        name=after.name,
        n=after.n,
        before=before.success,
        after=after.success,
        interval=after.shared_interval or after.interval,
    )


def _labels(run: RunDirectory, record: RoundRecord, settings: RunSettings) -> tuple[str, ...]:
    chat = settings.roles.chat()
    # A baseline's contexts are made without a reflector.
    asked = ("reflector",) if settings.signals.contexts == "signals" else ()
    scripted = [name for name in (*asked, "explorer", "abstractor") if name not in chat]
    labels = []
    if scripted:
        labels.append("scripted roles" + (f": {', '.join(scripted)}" if chat else ""))
    if chat:
        models = sorted({model_of(role, name) for name, role in chat.items()})
        labels.append(f"chat roles on {', '.join(models)}")
    card = run.root / record.policy / "coevolve.json"
    if card.is_file() and read_json(card, PolicyCard).rendering == "compact":
        labels.append(COMPACT_LABEL)
    if settings.environment.is_own:
        labels.append(f"own environment {settings.environment.name}")
    if settings.environment.name != BFCL and settings.evaluation.scored is None:
        labels.append("no task is held out")
    if settings.evaluation.limit is not None and settings.evaluation.scored is not None:
        labels.append(f"panel: its first {settings.evaluation.limit} tasks only")
    return tuple(labels)


def iteration_table(summary: Summary) -> Table:
    """One iteration, a row a figure."""
    from rich.table import Table

    table = Table(title=f"iteration {summary.iteration}", show_header=False, caption=_caption([summary]))
    for name, cell in zip(COLUMNS[1:], _row(summary, ", ")[1:], strict=True):
        table.add_row(name, cell)
    for stage, spent in summary.cost.stages.items():
        table.add_row(f"  {stage}", spent.words())
    if summary.cost.per_admitted is not None:
        table.add_row("  per admitted", summary.cost.per_admitted.words())
    if summary.stopped:
        table.add_row("stopped", f"{summary.stopped} is spent")
    if summary.without_success:
        table.add_row("no success", summary.without_success)
    if summary.faulted:
        table.add_row("faults", summary.faulted)
    for name, cell in seal_rows(summary.seal) if summary.seal else ():
        table.add_row(name, cell)
    return table


def summary_table(summaries: Sequence[Summary]) -> Table:
    """All iterations, a row each."""
    from rich.table import Table

    table = Table(title="summary", show_lines=True, caption=_caption(summaries))
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for summary in summaries:
        table.add_row(*_row(summary, "\n"))
    return table


def _caption(summaries: Sequence[Summary]) -> str | None:
    return "; ".join(dict.fromkeys(label for summary in summaries for label in summary.labels)) or None


def _scored(panel: PanelChange, separator: str) -> str:
    interval = f"95 %: {panel.interval[0]:.2f}-{panel.interval[1]:.2f}{separator}" if panel.interval else ""
    return f"{panel.before:.3f} -> {panel.after:.3f}{separator}{interval}{panel.name}, n={panel.n}"


def _row(summary: Summary, separator: str) -> tuple[str, ...]:
    def counts(of: Mapping[str, int] | Mapping[SignalKind, int]) -> str:
        return separator.join(f"{count} {name}" for name, count in of.items())

    panel, contexts = summary.panel, summary.contexts
    followed = {"new": contexts.new, "known": contexts.known, "left out": contexts.left_out}
    followed |= {f"failed: {cause}": count for cause, count in summary.failed.items()}
    return (
        str(summary.iteration),
        str(summary.tasks),
        str(summary.admitted),
        counts(summary.refused) or "none",
        counts(summary.signals),
        counts(followed),
        _scored(panel, separator) if panel else "not scored",
        separator.join(f"{seconds:.1f} {stage}" for stage, seconds in summary.seconds.items()),
        summary.cost.words(separator) or "none",
    )
