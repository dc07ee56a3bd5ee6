"""`python -m evaluation.run`: greedy success of a model on a fixed panel, an official category or a file of tasks."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from environments.base import InputError, Record
from environments.command import check_output, exit_statuses
from environments.settings import BFCL
from evaluation.outcomes import Report, Score, TaskOutcome, score, score_strata
from evaluation.panels import SplitChoice, held_out, open_category, open_panel, open_tasks

if TYPE_CHECKING:
    from environments.base import Environment
    from evaluation.panels import Item
    from training.policy import Policy
    from training.rollout import EpisodeLimits, EpisodeResult

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

COMPACT_NOTE = "argument references: the embedded policy reads values as $k and names them, calls carry full values"


class Decoding(Record):
    """Which model, and how it is asked; token limits that are None follow the model's rendering.

    ``thinking`` is ``enable_thinking`` of the model's chat template; None leaves it as the policy was trained with.
    """

    model: str
    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    threads: int
    max_actions: int
    max_new_tokens: int | None
    max_tokens: int | None
    batch: int
    thinking: bool | None = None


def judge(item: Item, result: EpisodeResult) -> TaskOutcome:
    """The outcome record of one finished attempt."""
    steps = [step for turn in result.turns for step in turn.steps]
    calls = sum(len(step.observation.calls) for step in steps)
    success = result.outcome is not None and result.outcome.success
    reference_calls = sum(map(len, item.task.reference))
    return TaskOutcome(
        task_id=item.task.id,
        group=item.group,
        cluster=item.cluster,
        split=item.task.split,
        strata=item.strata,
        success=success,
        failure=result.outcome.failure if result.outcome else None,
        failed_turn=result.outcome.failed_turn if result.outcome else None,
        calls=calls,
        reference_calls=reference_calls,
        malformed=sum(step.observation.status == "malformed" for step in steps),
        extra_calls=max(0, calls - reference_calls) if success else 0,
        sampled_tokens=sum(result.mask),
        infrastructure_error=result.infrastructure_error,
    )


def attempt(
    items: Sequence[Item], policy: Policy, environment: Environment, limits: EpisodeLimits, batch: int
) -> tuple[TaskOutcome, ...]:
    """Attempt every item once, greedily, ``batch`` episodes at a time, in the given order."""
    from training.rollout import EpisodeRequest, run_episodes

    outcomes: list[TaskOutcome] = []
    for begin in range(0, len(items), batch):
        chunk = items[begin : begin + batch]
        requests = [EpisodeRequest(task=item.task, seed=0) for item in chunk]
        results = run_episodes(policy, environment, requests, limits, temperature=0.0)
        outcomes += [judge(item, result) for item, result in zip(chunk, results, strict=True)]
        print(f"evaluated {len(outcomes)} of {len(items)}", file=sys.stderr, flush=True)
    return tuple(outcomes)


def print_report(report: Report, strata: Sequence[Score]) -> None:
    """The report as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report.model} on {report.environment} ({report.decoding})")
    for column in ("group", "n", "clusters", "success", "95 % interval"):
        table.add_column(column, justify="left" if column == "group" else "right")
    for row in (*report.scores, *strata):
        interval = f"{row.interval[0]:.1%} - {row.interval[1]:.1%}"
        table.add_row(row.group, str(row.n), str(row.clusters), f"{row.success:.1%}", interval)
    if len(report.scores) > 1:
        table.add_row("mean of groups", "", "", f"{report.mean:.1%}", "")
    console = Console()
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", highlight=False)


class Selection(Record):
    """What to score: exactly one of some panels, a category and a file of tasks; ``openings`` for held-out panels."""

    panels: tuple[str, ...]
    category: str | None
    tasks: Path | None
    split: SplitChoice
    limit: int | None
    openings: Path | None = None


def select(chosen: Selection, environment: str) -> tuple[Item, ...]:
    """The items that the command's options name. Raises InputError where they do not fit together."""
    if bool(chosen.panels) + (chosen.category is not None) + (chosen.tasks is not None) != 1:
        raise InputError("give either --panel NAME or --category NAME or --tasks FILE, one of the three")
    if chosen.split != "all" and chosen.category is None:
        raise InputError("--split goes with --category: leave it out")
    if chosen.openings is not None and not any(held_out(name) for name in chosen.panels):
        raise InputError("--openings is for held-out panels, and none is named: leave it out")
    if chosen.tasks is not None:
        return open_tasks(chosen.tasks, chosen.limit)
    if environment != BFCL:
        raise InputError(f"--panel and --category are of {BFCL}: give --tasks FILE for {environment}")
    if chosen.panels:
        names = dict.fromkeys(chosen.panels)
        return tuple(item for name in names for item in open_panel(name, chosen.limit, chosen.openings))
    return open_category(chosen.category or "", chosen.split, chosen.limit)


def notes_for(policy: Policy, chosen: Selection) -> tuple[str, ...]:
    """What a reader must know beside the figures."""
    notes = [COMPACT_NOTE] if policy.rendering.name == "compact" else []
    if chosen.category is not None:
        notes.append("indices 40-49 and 90-99 are reserved and not scored: 180 of a category's 200 tasks at most")
    if chosen.tasks is not None:
        notes.append(f"{chosen.tasks} is no held-out panel: the model may have been trained on its tasks")
    if chosen.limit is not None:
        notes.append(f"the first {chosen.limit} tasks of each group only")
    return tuple(notes)


@app.command()
def main(
    environment: Annotated[str, typer.Option(help="bfcl, or module:callable of your own environment")] = BFCL,
    panel: Annotated[
        list[str] | None, typer.Option(help="fixed panel: templated-dev, longer-dev or turns-dev; may be repeated")
    ] = None,
    category: Annotated[
        str | None, typer.Option(help="official category: base, miss_func, miss_param, long_context, all")
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help="file of tasks, as tasks.jsonl of a run")] = None,
    model: Annotated[str, typer.Option(help="folder or hub id of a causal language model")] = "recipes/starter",
    split: Annotated[SplitChoice, typer.Option(help="with --category: its tasks of one split only")] = "all",
    output: Annotated[Path | None, typer.Option(help="outcomes file, JSON lines, an object a task")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="the first N tasks of each group only")] = None,
    batch: Annotated[int, typer.Option(min=1, help="episodes decoded together")] = 128,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="where the model runs")] = "auto",
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="type of the weights")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
    max_actions: Annotated[int, typer.Option(min=1, help="actions in a user turn (official: 20)")] = 20,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="sampled tokens of an action; 48 compact, else 1024")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=16, help="tokens of an episode; 512 compact, else 24576")
    ] = None,
    openings: Annotated[
        Path | None, typer.Option(help="ledger of evaluation.study, which opens the held-out panels")
    ] = None,
    thinking: Annotated[
        bool | None, typer.Option(help="enable_thinking of the chat template; as trained, else its default")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")] = False,
) -> None:
    """Score a model: official verdicts, greedy decoding, one attempt a task, Wilson intervals."""
    from memory.child_process import watch_parent

    with exit_statuses():
        watch_parent()
        started = time.perf_counter()
        if output is not None:
            check_output("--output", output)
        chosen = Selection(
            panels=tuple(panel or ()), category=category, tasks=tasks, split=split, limit=limit, openings=openings
        )
        items = select(chosen, environment)
        decoding = Decoding(
            model=model,
            device=device,
            dtype=dtype,
            threads=threads,
            max_actions=max_actions,
            max_new_tokens=max_new_tokens,
            max_tokens=max_tokens,
            batch=batch,
            thinking=thinking,
        )
        outcomes, policy = evaluate(items, environment, decoding)
        groups = tuple(dict.fromkeys(item.group for item in items))
        scores = tuple(score(group, outcomes) for group in groups)
        report = Report(
            environment=environment,
            model=model,
            rendering=policy.rendering.name,
            notes=notes_for(policy, chosen),
            scores=scores,
            mean=sum(s.success for s in scores) / len(scores),
            seconds=time.perf_counter() - started,
        )
        if output is not None:
            from memory.run import write_jsonl

            output.parent.mkdir(parents=True, exist_ok=True)
            write_jsonl(output, outcomes)
    if as_json:
        print(report.model_dump_json())
    else:
        print_report(report, score_strata(outcomes))


def evaluate(items: Sequence[Item], environment: str, decoding: Decoding) -> tuple[tuple[TaskOutcome, ...], Policy]:
    """Load the model and attempt every item.

    Raises InputError for an unknown environment or model, an empty selection and tasks of another environment.
    """
    from environments.registry import open_named
    from training.policy_path import check_policy_path

    if not items:
        raise InputError("nothing to evaluate: the selection holds no task")
    opened = open_named(environment, max_steps=decoding.max_actions)
    for item in items:
        if item.task.environment != opened.name:
            raise InputError(
                f"--environment {environment}: task {item.task.id} is of {item.task.environment}, not of "
                f"{opened.name}: name the environment of the tasks"
            )

    check_policy_path(decoding.model)

    import torch

    from training.policy import load_policy
    from training.rollout import EpisodeLimits

    torch.set_num_threads(decoding.threads)
    policy = load_policy(decoding.model, decoding.device, decoding.dtype, decoding.thinking)
    compact = policy.rendering.name == "compact"
    limits = EpisodeLimits(
        max_new_tokens=decoding.max_new_tokens or (48 if compact else 1024),
        max_tokens=decoding.max_tokens or (512 if compact else min(24576, policy.positions or 24576)),
        max_actions=decoding.max_actions,
    )
    return attempt(items, policy, opened, limits, decoding.batch), policy


if __name__ == "__main__":
    from memory.child_process import run_to_end

    run_to_end(app)
