"""Runs whose rounds and summaries are written by hand, with plain numbers, for what reads a finished iteration."""

from __future__ import annotations

from pathlib import Path

from evaluation.outcomes import Score, ScoreChange
from graph.report.summary import Contexts, Cost, Summary
from memory.records import SignalKind
from memory.run import RunDirectory, append_jsonl, read_jsonl, write_json, write_jsonl
from memory.tasks import admit
from support.made_run import first_tasks, rollouts, settings_for
from training.grpo.record import RoundSeconds, StepMetrics, round_record, step_metrics, step_record

STEPS = 3  # of a round
BEFORE = Score(
    group="templated-dev", n=40, successes=10, metrics={"success": 0.25}, interval=(0.14, 0.40), clusters=9,
    infrastructure_errors=0,
)  # fmt: skip
AFTER = BEFORE.model_copy(update={"successes": 14, "metrics": {"success": 0.35}, "interval": (0.22, 0.50)})


def begun_run(root: Path, *overrides: str) -> RunDirectory:
    """A run with the tasks of D_0 and no round."""
    run = RunDirectory.create(root, settings_for(root.parent / "recipe", *overrides))
    admit(run, first_tasks())
    return run


def play_round(run: RunDirectory, iteration: int) -> None:
    """The round of an iteration, with a loss of its step's number."""
    folder = run.iteration(iteration)
    made = rollouts(first_tasks(), iteration)
    write_jsonl(folder.trajectories, made)
    for step in sorted({one.step for one in made}):
        log = {"loss": float(step), "kl": 0.5, "step_time": 0.5, "epoch": 1.0}
        done = step_record(step, [one for one in made if one.step == step], log)
        append_jsonl(folder.metrics, [step_metrics(done, log)])
    record = round_record(
        iteration=iteration,
        policy="policy/none",
        tasks=5,
        trajectories=made,
        metrics=read_jsonl(folder.metrics, StepMetrics),
        updates=1,
        measured=RoundSeconds(load=1.0, rollouts=2.0),
    )
    write_json(folder.round, record)


def finish_iteration(run: RunDirectory, iteration: int) -> None:
    """The summary of an iteration."""
    summary = Summary(
        iteration=iteration,
        tasks=5,
        admitted=2,
        refused={"duplicate": 1},
        signals={SignalKind.FORGETTING: 3, SignalKind.BOUNDARY: 4, SignalKind.RARE: 0},
        marked=6,
        contexts=Contexts(new=3, known=1, left_out=0),
        evaluation=ScoreChange(before=BEFORE, after=AFTER),
        seconds={"train": 12.0},
        cost=Cost(sampled_tokens=7),
    )
    write_json(run.iteration(iteration).summary, summary)
