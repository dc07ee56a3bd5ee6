"""The command ``python -m training.run_round``: one round of GRPO on the tasks of an iteration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from environments.command import OneSentence, exit_statuses, say

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    run: Annotated[Path, typer.Option(help="run directory; its settings.yaml and tasks.jsonl are read")],
    iteration: Annotated[int, typer.Option(min=0, help="iteration whose tasks are trained on")],
    resume: Annotated[bool, typer.Option("--resume", help="continue a round that was killed")] = False,
) -> None:
    """Train F steps of GRPO on the tasks of ITERATION; write a policy, trajectories and round.json to RUN.

    With training.launch it starts the processes of the round, and ends when they have; with training.elsewhere another
    engine trains. One JSON line per step on
    stdout. Exit status: 0 also when --resume finds the round finished, 2 for a user's mistake, 3 when the process that
    started it is gone, 1 when training failed.
    """
    from memory.processes import ChildFailure, watch_parent
    from memory.run import RunDirectory
    from training.elsewhere.round import train_elsewhere
    from training.grpo.launch import launch_round
    from training.grpo.record import RoundFailure, RoundSettings
    from training.grpo.round import run_round
    from training.rollout.sampling import EngineFailure

    with exit_statuses(RoundFailure, EngineFailure, ChildFailure):
        watch_parent()
        directory = RunDirectory.open(run)
        settings = directory.settings(RoundSettings)
        if settings.training.elsewhere is not None:
            train_elsewhere(directory, iteration, resume)
            return
        if settings.training.launch is not None and not directory.iteration(iteration).round.exists():
            launch_round(run, iteration, resume, settings)
            return
        see_one_gpu()
        _, finished_before = run_round(run, iteration, resume, lambda line: print(line.model_dump_json(), flush=True))
    if finished_before:
        say(f"iteration {iteration} already has its round: nothing to do")


def see_one_gpu() -> None:
    """Hide all GPUs but the first that this process may use, before torch looks: TRL refuses several in one process."""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
