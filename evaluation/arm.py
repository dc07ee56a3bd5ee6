"""`python -m evaluation.arm`: runs and scores one arm of a study with one seed. Started by evaluation.study.

It is a process of its own, so that the CPU seconds of its children are those of this arm and seed.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from environments.base import InputError, Record
from environments.command import MISTAKE, NOTHING, exit_statuses
from environments.command_line import OneSentence

JOB_FILE = "job.json"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Scoring(Record):
    """How the final policy is scored: panels, and the options of evaluation.run that the run's recipe decides."""

    panels: tuple[str, ...]
    limit: int | None
    openings: str | None
    device: str
    dtype: str


class Job(Record):
    """One arm and seed. ``folder`` is its own: recipe.yaml, run/, log. ``policy`` is scored where ``trains`` is False.

    ``result`` is the file to write; the other fields go into its header. ``deadline`` is in wall seconds, of the run
    and of the scoring each.
    """

    folder: str
    result: str
    arm: str
    seed: int
    mode: str
    trains: bool
    iterations: int
    policy: str
    scoring: Scoring
    deadline: float
    recipe: str
    study: str
    starter: str
    panels: dict[str, str]
    commit: str | None


@app.command(cls=OneSentence)
def main(job: Annotated[Path, typer.Argument(help="file that evaluation.study wrote")]) -> None:
    """Run one arm with one seed, score its last policy greedily, and write the result."""
    from memory.child_process import ChildFailure, watch_parent
    from memory.run import read_json

    with exit_statuses(ChildFailure):
        watch_parent()
        asyncio.run(_work(read_json(job, Job)))


async def _work(job: Job) -> None:
    from evaluation.arm_figures import FinishedRun
    from evaluation.arm_records import ArmHeader, ArmMeasured, ArmOutcome, ArmResult
    from evaluation.outcomes import TaskOutcome
    from memory.run import read_jsonl

    started = time.perf_counter()
    folder = Path(job.folder)
    run = None
    policy = job.policy
    if job.trains:
        options = ["--recipe", str(folder / "recipe.yaml"), "--run", str(folder / "run"), "--json"]
        resume = ["--resume"] if (folder / "run" / "settings.yaml").exists() else []
        await _child(job, ["graph.run_iteration", *options, *resume])
        run = FinishedRun(folder / "run", job.iterations)
        policy = str(run.policy)
    outcomes = folder / "outcomes.jsonl"
    outcomes.unlink(missing_ok=True)  # of an arm that was stopped before its result
    await _child(job, _scoring_command(job.scoring, policy, outcomes))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    header = ArmHeader(
        arm=job.arm,
        seed=job.seed,
        mode=job.mode,
        recipe=job.recipe,
        study=job.study,
        starter=job.starter,
        initial_tasks=run.initial_hash if run else None,
        prompt_order=run.prompt_order if run else None,
        panels=job.panels,
        limit=job.scoring.limit,
        labels=run.labels if run else (),
        functions=run.functions if run else 0,
        initial_functions=run.initial_functions if run else {},
        iterations=run.figures() if run else (),
        overlap=run.overlap() if run else {},
        measured=ArmMeasured(
            cpu_seconds=round(sum(one.ru_utime + one.ru_stime for one in used), 1),
            wall_seconds=round(time.perf_counter() - started, 1),
            commit=job.commit,
        ),
    )
    attempted = tuple(
        ArmOutcome(
            panel=one.group,
            task=one.task_id,
            cluster=one.cluster,
            strata=tuple(f"{key}={value}" for key, value in one.strata.items()),
            success=one.success,
            calls=one.calls,
            reference_calls=one.reference_calls or 0,  # a study's panels state it
            failure=one.failure,
            infrastructure_error=one.infrastructure_error,
        )
        for one in read_jsonl(outcomes, TaskOutcome)
    )
    ArmResult(header=header, outcomes=attempted).write(Path(job.result))


def _scoring_command(scoring: Scoring, policy: str, output: Path) -> list[str]:
    command = ["evaluation.run", "--model", policy, "--output", str(output), "--threads", "1", "--json"]
    command += ["--device", scoring.device, "--dtype", scoring.dtype]
    for panel in scoring.panels:
        command += ["--panel", panel]
    if scoring.limit is not None:
        command += ["--limit", str(scoring.limit)]
    if scoring.openings is not None:
        command += ["--openings", scoring.openings]
    return command


async def _child(job: Job, command: list[str]) -> None:
    """One of the project's commands, its output in the job's log. Raises InputError where it calls its input wrong."""
    from memory.child_process import run_child

    log = Path(job.folder) / "arm.log"
    start = log.stat().st_size if log.exists() else 0
    argv = [sys.executable, "-m", *command]
    status = await run_child(argv, log_path=log, deadline=job.deadline, accept=(0, MISTAKE, NOTHING), env=ONE_THREAD)
    if status == MISTAKE:
        said = log.read_bytes()[start:].decode(errors="replace").splitlines()
        reason = next((line for line in reversed(said) if line.startswith("error: ")), f"error: see {log}")
        raise InputError(f"{command[0]}: {reason.removeprefix('error: ')}")


if __name__ == "__main__":
    from memory.child_process import run_to_end

    run_to_end(app)
