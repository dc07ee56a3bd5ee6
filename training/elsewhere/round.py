"""The command ``python -m training.elsewhere.round``: a round that another engine trains.

With verl it starts a job and waits for its end; prime-rl trains beside the run, and the command waits until enough
groups were played. Either way it writes what ``training.run_round`` writes: trajectories, ``round.json`` and the policy
as a checkpoint, without an optimizer. The engine's own metrics stay with it.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, exit_statuses
from memory.jsonl import whole_folder
from memory.processes import ChildFailure, exclusive, run_child
from memory.records import Trajectory
from memory.run import RunDirectory, read_existing, read_json, write_json, write_jsonl
from memory.tasks import load_tasks, tasks_at
from training.elsewhere.rollouts import Played, Recorded, trajectories_of, trajectory_id
from training.grpo.checkpoints import (
    RoundCheckpoint,
    checkpoint_folder,
    complete_checkpoint,
    discard_after,
    discard_superseded,
)
from training.grpo.record import RoundFailure, RoundProgress, RoundRecord, RoundSeconds, round_record
from training.grpo.round import RoundSettings
from training.grpo.task_sampler import round_draw

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

POLL = 1.0
"""Seconds between two looks at what was played."""

NO_DEADLINE = 10 * 365 * 24 * 3600.0
"""A job ends with this process, which has a deadline (``deadlines.round``)."""

_WEIGHTS = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")


@app.command(cls=OneSentence)
def main(
    run: Annotated[Path, typer.Option(help="run directory; its settings.yaml and tasks.jsonl are read")],
    iteration: Annotated[int, typer.Option(min=0, help="iteration whose tasks are trained on")],
    resume: Annotated[bool, typer.Option("--resume", help="begin a round that was killed afresh")] = False,
) -> None:
    """Let the engine of training.elsewhere train the round of ITERATION; write trajectories, policy and round.json.

    One JSON line per step on stdout. Exit status: like training.run_round.
    """
    from memory.processes import watch_parent

    with exit_statuses(RoundFailure, ChildFailure):
        watch_parent()
        directory = RunDirectory.open(run)
        with exclusive(directory.round_lock_path, f"the training of {directory.root}", end_orphan=resume):
            if not directory.iteration(iteration).round.exists():
                asyncio.run(train_elsewhere(directory, iteration))


async def train_elsewhere(run: RunDirectory, iteration: int) -> None:
    """Let the engine train a round that is not finished; the run's lock is held.

    Raises InputError for a user's mistake, RoundFailure and ChildFailure where the engine did not finish it.
    """
    await _Elsewhere(run, iteration).train()


class _Elsewhere:
    """The unfinished round of one iteration; the run's lock is held."""

    def __init__(self, run: RunDirectory, iteration: int) -> None:
        self.run = run
        self.iteration = iteration
        self.folder = run.iteration(iteration)
        self.settings = run.settings(RoundSettings)
        self.tasks = tasks_at(load_tasks(run), iteration)
        if not self.tasks:
            raise InputError(f"{run.tasks_path} holds no task for iteration {iteration}: make D_0 first")
        self.before, self.policy = 0, self.settings.policy.path
        if iteration > 0:
            record = read_json(run.iteration(iteration - 1).round, RoundRecord)
            self.before, self.policy = record.last_step, str(run.root / record.policy)
        discard_after(run.policy_path, self.before)

    async def train(self) -> None:
        """Wait for the round, and write its files; ``round.json`` is the last."""
        from training.rollout.policy import check_weights, load_rendering

        training, began = self.settings.training, time.perf_counter()
        assert training.elsewhere is not None
        verl = training.elsewhere.engine == "verl"
        groups, source = await (self._job() if verl else self._beside(Path(training.elsewhere.output or "")))
        trajectories = trajectories_of(
            groups,
            iteration=self.iteration,
            first_step=self.before + 1,
            per_step=training.tasks_per_step,
            seed=self.settings.seed,
        )
        _check_scored(trajectories)
        write_jsonl(self.folder.trajectories, trajectories)
        last = self.before + training.steps
        check_weights(source)
        target = checkpoint_folder(self.run.policy_path, last)
        self.run.policy_path.mkdir(exist_ok=True)
        with whole_folder(target) as copy:
            for pattern in _WEIGHTS:
                for file in source.glob(pattern):
                    shutil.copyfile(file, copy / file.name)
        card, _, _ = load_rendering(self.policy, self.settings.policy)
        seconds = RoundSeconds(optimisation=time.perf_counter() - began)
        mark = RoundCheckpoint(
            iteration=self.iteration,
            step=last,
            last_step=last,
            log_bytes=self.folder.trajectories.stat().st_size,
            seconds=seconds,
        )
        complete_checkpoint(target, mark, card)
        discard_superseded(self.run.policy_path, last)
        record = round_record(
            iteration=self.iteration,
            policy=str(target.relative_to(self.run.root)),
            tasks=len(self.tasks),
            trajectories=trajectories,
            metrics=(),
            updates=training.updates_per_step,
            measured=seconds,
        )
        write_json(self.folder.round, record)

    async def _job(self) -> tuple[Mapping[int, Sequence[Played]], Path]:
        """Run verl on the round's draws; return their groups and the folder of weights that it wrote."""
        from training.elsewhere.verl_job import write_job

        training = self.settings.training
        drawn = round_draw(self.tasks, self.settings.tasks, iteration=self.iteration, seed=self.settings.seed)
        steps = drawn.steps(training.steps, training.tasks_per_step)
        for left in (self.folder.played_elsewhere, self.folder.job):
            shutil.rmtree(left, ignore_errors=True)  # of a job that was killed
        argv, weights = write_job(self.run, self.iteration, self.settings, self.policy, steps, self.before)
        shown = _Shown(training.tasks_per_step, training.steps)
        recorded = Recorded(self.folder.played_elsewhere)
        job = asyncio.create_task(
            run_child(argv, log_path=self.folder.engine_log, deadline=NO_DEADLINE, on_line=lambda line: None)
        )
        while not (await asyncio.wait([job], timeout=POLL))[0]:
            shown.show(recorded.groups(training.rollouts_per_task))
        job.result()
        groups = recorded.groups(training.rollouts_per_task)
        shown.show(groups)
        wanted = sum(map(len, steps))
        if len(groups) < wanted or not weights.is_dir():
            raise RoundFailure(
                f"verl ended after {len(groups)} of {wanted} groups, "
                f"{'with' if weights.is_dir() else 'without'} weights: see {self.folder.engine_log}"
            )
        return groups, weights

    async def _beside(self, output: Path) -> tuple[Mapping[int, Sequence[Played]], Path]:
        """Wait until prime-rl has played a round's groups beyond those of earlier rounds; return them and its weights.

        Both are read while it goes on: groups that it drops are not waited for, and the weights are the newest.
        """
        training, known = self.settings.training, {task.id for task in load_tasks(self.run)}
        earlier = {
            one.id
            for number in range(self.iteration)
            for one in read_existing(self.run.iteration(number).trajectories, Trajectory)
        }
        shown = _Shown(training.tasks_per_step, training.steps)
        recorded = Recorded(self.run.played_path)
        wanted = training.steps * training.tasks_per_step
        while True:
            groups = {
                draw: group
                for draw, group in recorded.groups(training.rollouts_per_task).items()
                if trajectory_id(group[0].task_id, draw, 0, self.settings.seed) not in earlier
            }
            shown.show(groups)
            if len(groups) >= wanted:
                break
            await asyncio.sleep(POLL)
        if (weights := newest_weights(output)) is None:
            raise RoundFailure(f"{output} has no finished weights: let prime-rl write checkpoints or broadcasts there")
        taken = dict(list(groups.items())[:wanted])
        if foreign := next((one[0].task_id for one in taken.values() if one[0].task_id not in known), None):
            raise InputError(f"{self.run.played_path} has rollouts of {foreign}, which is no task of {self.run.root}")
        return taken, weights


def newest_weights(output: Path) -> Path | None:
    """Return the newest weights that prime-rl completed in its output folder; None before there are any."""
    found = {}
    for stable in (*output.glob("broadcasts/step_*/STABLE"), *output.glob("checkpoints/step_*/STABLE")):
        number = stable.parent.name.removeprefix("step_")
        folder = stable.parent / "weight" if stable.parts[-3] == "checkpoints" else stable.parent
        if number.isdecimal() and next(folder.glob("*.safetensors"), None):
            found[int(number), stable.parts[-3]] = folder
    return found[max(found)] if found else None


class _Shown:
    """Reports the steps of a round, each once as many groups are whole."""

    def __init__(self, per_step: int, steps: int) -> None:
        self._per_step, self._steps = per_step, steps
        self._seen: dict[int, None] = {}
        self._step = 0

    def show(self, groups: Mapping[int, Sequence[Played]]) -> None:
        """Report the steps that have become whole."""
        self._seen |= dict.fromkeys(groups)
        while self._step < min(self._steps, len(self._seen) // self._per_step):
            here = list(self._seen)[self._step * self._per_step : (self._step + 1) * self._per_step]
            rollouts = [one for draw in here for one in groups[draw]]
            scored = [one for one in rollouts if one.outcome is not None]
            self._step += 1
            done = RoundProgress(
                step=self._step,
                of=self._steps,
                success=sum(one.outcome.success for one in scored if one.outcome) / max(1, len(scored)),
                reward=sum(one.reward or 0.0 for one in scored) / max(1, len(scored)),
                infrastructure_errors=len(rollouts) - len(scored),
            )
            print(done.model_dump_json(), flush=True)


def _check_scored(trajectories: Sequence[Trajectory]) -> None:
    for step in {one.step for one in trajectories}:
        here = [one for one in trajectories if one.step == step]
        if all(one.infrastructure_error is not None for one in here):
            raise RoundFailure(
                f"the environment failed all {len(here)} rollouts of step {step}: {here[0].infrastructure_error}"
            )


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
