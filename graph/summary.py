"""What one iteration did, as a record, as a line of JSON and as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from environments.base import Record
from graph.records import Evolution, PanelScore, PolicyCard, StageSeconds
from graph.settings import RunSettings
from graph.state import SEED_STAGE
from memory.records import Draft, FailureContext, Interaction, Measured, SignalKind, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import load_tasks, tasks_at
from training.round_record import RECORD_FILE, RoundRecord

if TYPE_CHECKING:
    from rich.table import Table

Row = TypeVar("Row", bound=Record)

SUMMARY_FILE = "summary.json"
COMPACT_LABEL = "embedded policy with argument references ($k)"
COLUMNS = ("iteration", "tasks", "admitted", "refused", "signals", "contexts", "panel", "seconds", "cost")


class Contexts(Record):
    """Failure contexts: new to the memory, known to it, and signals that the budget left out."""

    new: int
    known: int
    left_out: int


class Panel(Record):
    """Success on the fixed panel, in [0, 1], by the policy that the round began with and the one that it made."""

    name: str
    n: int
    before: float
    after: float


class Cost(Record):
    """What was paid. Model calls and their tokens are those of chat roles, ``environment_calls`` those of rollouts
    and of exploration (verification replays and evaluation are not counted), ``sampled_tokens`` those of rollouts."""

    model_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    environment_calls: int = 0
    sampled_tokens: int = 0


class Summary(Record):
    """One iteration. ``tasks`` were trained on, ``admitted`` came to them for the next one.

    ``failed``: reflections and branches that gave up, by cause. ``labels`` say what the figures are figures of.
    """

    iteration: int
    tasks: int
    admitted: int
    refused: dict[str, int]
    signals: dict[SignalKind, int]
    contexts: Contexts
    panel: Panel | None
    seconds: dict[str, float]
    cost: Cost
    failed: dict[str, int] = {}
    labels: tuple[str, ...] = ()


def summarise(run: RunDirectory, settings: RunSettings, iteration: int) -> Summary:
    """The summary of an iteration whose stages are all done, from the files that they wrote."""
    folder = run.iteration(iteration)
    evolution = read_json(folder / "evolution.json", Evolution)
    return Summary(
        iteration=iteration,
        tasks=len(tasks_at(load_tasks(run), iteration)),
        admitted=len(evolution.admitted),
        refused=evolution.refused,
        signals={kind: evolution.signals.get(kind, 0) for kind in SignalKind},
        contexts=Contexts(new=evolution.new, known=evolution.known, left_out=evolution.left_out),
        panel=_panel(folder, settings),
        seconds=read_json(folder / "seconds.json", StageSeconds).seconds,
        cost=_cost(folder, run.root / SEED_STAGE if iteration == 0 else None),
        failed=evolution.failures,
        labels=_labels(run, folder, settings),
    )


def _panel(folder: Path, settings: RunSettings) -> Panel | None:
    if settings.evaluation.panel is None:
        return None
    before = read_json(folder / "panel_before.json", PanelScore)
    after = read_json(folder / "panel_after.json", PanelScore)
    return Panel(name=after.name, n=after.n, before=before.success, after=after.success)


def _cost(folder: Path, seed_folder: Path | None) -> Cost:
    """The cost of an iteration; the first one's includes that of making D_0, where the run made it itself."""
    folders = [folder] + ([seed_folder] if seed_folder is not None and seed_folder.is_dir() else [])
    measured: list[Measured] = []
    calls = sampled = 0
    for one in folders:
        measured += [context.measured for context in _read(one / "contexts.jsonl", FailureContext)]
        measured += [draft.measured for draft in _read(one / "drafts.jsonl", Draft)]
        interactions = _read(one / "interactions.jsonl", Interaction)
        measured += [interaction.measured for interaction in interactions]
        calls += sum(len(interaction.observation.calls) for interaction in interactions)
    for trajectory in _read(folder / "trajectories.jsonl", Trajectory):
        calls += len(trajectory.calls())
        sampled += trajectory.sampled_tokens
    return Cost(
        model_calls=sum(one.calls for one in measured),
        prompt_tokens=sum(one.prompt_tokens for one in measured),
        completion_tokens=sum(one.completion_tokens for one in measured),
        environment_calls=calls,
        sampled_tokens=sampled,
    )


def _read(path: Path, model: type[Row]) -> list[Row]:
    return read_jsonl(path, model) if path.exists() else []


def _labels(run: RunDirectory, folder: Path, settings: RunSettings) -> tuple[str, ...]:
    roles = {"reflector": settings.roles.reflector, "explorer": settings.roles.explorer}
    roles["abstractor"] = settings.roles.abstractor
    scripted = [name for name, role in roles.items() if role.kind == "scripted"]
    labels = []
    if scripted:
        labels.append("scripted roles" + ("" if len(scripted) == len(roles) else f": {', '.join(scripted)}"))
    if len(scripted) < len(roles):
        models = sorted({role.model or "" for role in roles.values() if role.kind == "chat"})
        labels.append(f"chat roles on {', '.join(models)}")
    card = run.root / read_json(folder / RECORD_FILE, RoundRecord).policy / "coevolve.json"
    if card.is_file() and read_json(card, PolicyCard).rendering == "compact":
        labels.append(COMPACT_LABEL)
    if settings.evaluation.limit is not None and settings.evaluation.panel is not None:
        labels.append(f"panel: its first {settings.evaluation.limit} tasks only")
    return tuple(labels)


def iteration_table(summary: Summary) -> Table:
    """One iteration, a row a figure."""
    from rich.table import Table

    table = Table(title=f"iteration {summary.iteration}", show_header=False, caption=_caption([summary]))
    for name, cell in zip(COLUMNS[1:], _row(summary, ", ")[1:], strict=True):
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


def _row(summary: Summary, separator: str) -> tuple[str, ...]:
    def counts(of: Mapping[str, int] | Mapping[SignalKind, int]) -> str:
        return separator.join(f"{count} {name}" for name, count in of.items())

    panel, contexts = summary.panel, summary.contexts
    followed = {"new": contexts.new, "known": contexts.known, "left out": contexts.left_out}
    followed |= {f"failed: {cause}": count for cause, count in summary.failed.items()}
    paid = {name.replace("_", " "): value for name, value in summary.cost.model_dump().items() if value}
    return (
        str(summary.iteration),
        str(summary.tasks),
        str(summary.admitted),
        counts(summary.refused) or "none",
        counts(summary.signals),
        counts(followed),
        f"{panel.before:.3f} -> {panel.after:.3f}{separator}{panel.name}, n={panel.n}" if panel else "not scored",
        separator.join(f"{seconds:.1f} {stage}" for stage, seconds in summary.seconds.items()),
        counts(paid) or "none",
    )
