"""A round that another engine trains: ``training.run_round`` with ``training.elsewhere``.

With verl it starts a job and waits for its end; prime-rl trains beside the run, and the round waits until enough groups
were played. Either way it writes what a round of this project writes: trajectories, ``round.json`` and the policy as a
checkpoint, without an optimizer. The engine's own metrics stay with it.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from environments.base import InputError
from memory.jsonl import whole_folder
from memory.processes import exclusive, run_child
from memory.records import Task, Trajectory
from memory.run import RunDirectory, read_existing, read_json, write_json, write_jsonl
from memory.tasks import load_tasks, tasks_at
from training.elsewhere.rollouts import Played, RolloutReader, trajectories_of, trajectory_id
from training.grpo.checkpoints import (
    RoundCheckpoint,
    checkpoint_folder,
    complete_checkpoint,
    discard_after,
    discard_superseded,
)
from training.grpo.record import RoundFailure, RoundProgress, RoundRecord, RoundSeconds, RoundSettings, round_record
from training.grpo.task_sampler import round_tasks
from training.rollout.policy_path import policy_folder

Groups = Mapping[int, Sequence[Played]]

POLL = 1.0
"""Seconds between two looks at what was played."""

NO_DEADLINE = 10 * 365 * 24 * 3600.0
"""A job ends with this process, which has a deadline (``deadlines.round``)."""

_POLICY = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")


def train_elsewhere(run: RunDirectory, iteration: int, resume: bool = False) -> None:
    """Let the engine of ``training.elsewhere`` train the round of ``iteration``, where it is not finished.

    One JSON line per step goes to stdout. ``resume`` begins a round that was killed afresh. Raises InputError for a
    user's mistake, RoundFailure and ChildFailure where the engine did not finish it.
    """
    with exclusive(run.round_lock_path, f"the training of {run.root}", end_orphan=resume):
        if not run.iteration(iteration).round.exists():
            asyncio.run(_train(run, iteration))


async def _train(run: RunDirectory, iteration: int) -> None:
    from training.rollout.policy import check_weights, load_rendering

    began, folder, settings = time.perf_counter(), run.iteration(iteration), run.settings(RoundSettings)
    training, before, policy = settings.training, 0, policy_folder(settings.policy.path)
    policy = str(Path(policy).resolve()) if Path(policy).is_dir() else policy  # verl's processes start elsewhere
    assert training.elsewhere is not None
    if iteration > 0:
        former = read_json(run.iteration(iteration - 1).round, RoundRecord)
        before, policy = former.last_step, str((run.root / former.policy).resolve())
    discard_after(run.policy_path, before)
    tasks = tasks_at(load_tasks(run), iteration)
    if training.elsewhere.output is None:
        groups, weights = await _by_job(run, iteration, settings, tasks, policy, before)
    else:
        groups, weights = await _beside(run, iteration, settings, Path(training.elsewhere.output))
    trajectories = trajectories_of(
        groups, iteration=iteration, first_step=before + 1, per_step=training.tasks_per_step, seed=settings.seed
    )
    last, seconds = before + training.steps, RoundSeconds(optimisation=time.perf_counter() - began)
    target = checkpoint_folder(run.policy_path, last)
    try:
        record = round_record(
            iteration=iteration,
            policy=str(target.relative_to(run.root)),
            tasks=len(tasks),
            trajectories=trajectories,
            metrics=(),
            updates=training.updates_per_step,
            measured=seconds,
        )
    except ValueError as error:
        cause = next(one.infrastructure_error for one in trajectories if one.infrastructure_error is not None)
        raise RoundFailure(f"{error}: {cause}") from None
    check_weights(weights)
    write_jsonl(folder.trajectories, trajectories)
    run.policy_path.mkdir(exist_ok=True)
    with whole_folder(target) as copy:
        for file in (file for pattern in _POLICY for file in weights.glob(pattern)):
            shutil.copyfile(file, copy / file.name)
    card, _, _ = load_rendering(policy, settings.policy)
    length = folder.trajectories.stat().st_size
    mark = RoundCheckpoint(iteration=iteration, step=last, last_step=last, log_bytes=length, seconds=seconds)
    complete_checkpoint(target, mark, card)
    discard_superseded(run.policy_path, last)
    write_json(folder.round, record)


async def _by_job(
    run: RunDirectory, iteration: int, settings: RoundSettings, tasks: Sequence[Task], policy: str, before: int
) -> tuple[Groups, Path]:
    """Run verl on the round's draws; return their groups and the folder of weights that it wrote."""
    from training.elsewhere.verl_job import write_job

    training, folder = settings.training, run.iteration(iteration)
    steps = round_tasks(tasks, settings, iteration)
    for left in (folder.played_elsewhere, folder.job):
        shutil.rmtree(left, ignore_errors=True)  # of a job that was killed
    argv, weights = write_job(run, iteration, settings, policy, steps, before)
    recorded, shown = RolloutReader(folder.played_elsewhere), list[int]()
    job = asyncio.create_task(
        run_child(argv, log_path=folder.engine_log, deadline=NO_DEADLINE, on_line=lambda line: None)
    )
    while not (await asyncio.wait([job], timeout=POLL))[0]:
        _show(recorded.groups(training.rollouts_per_task), shown, settings)
    job.result()
    groups = recorded.groups(training.rollouts_per_task)
    _show(groups, shown, settings)
    if len(groups) < (wanted := sum(map(len, steps))) or not weights.is_dir():
        raise RoundFailure(
            f"verl ended after {len(groups)} of {wanted} groups, {'with' if weights.is_dir() else 'without'} weights: "
            f"see {folder.engine_log}"
        )
    return groups, weights


async def _beside(run: RunDirectory, iteration: int, settings: RoundSettings, output: Path) -> tuple[Groups, Path]:
    """Wait until prime-rl has played a round's groups beyond those of earlier rounds; return them and its weights.

    Both are read while it goes on: groups that it drops are not waited for, and the weights are the newest.
    """
    earlier = {
        one.id for number in range(iteration) for one in read_existing(run.iteration(number).trajectories, Trajectory)
    }
    wanted = settings.training.steps * settings.training.tasks_per_step
    recorded, shown, groups = RolloutReader(run.played_path), list[int](), dict[int, list[Played]]()
    while len(groups) < wanted:
        groups = {
            draw: group
            for draw, group in recorded.groups(settings.training.rollouts_per_task).items()
            if trajectory_id(group[0].task_id, draw, 0, settings.seed) not in earlier
        }
        _show(groups, shown, settings)
        await asyncio.sleep(POLL)
    if (weights := newest_weights(output)) is None:
        raise RoundFailure(f"{output} has no finished weights: let prime-rl write checkpoints or broadcasts there")
    taken, known = dict(list(groups.items())[:wanted]), {task.id for task in load_tasks(run)}
    if foreign := {one[0].task_id for one in taken.values()} - known:
        raise InputError(f"{run.played_path} has rollouts of {min(foreign)}, which is no task of {run.root}")
    return taken, weights


def newest_weights(output: Path) -> Path | None:
    """Return the newest weights that prime-rl completed in its output folder; None before there are any."""
    found = {}
    for stable in (*output.glob("broadcasts/step_*/STABLE"), *output.glob("checkpoints/step_*/STABLE")):
        number, kind = stable.parent.name.removeprefix("step_"), stable.parts[-3]
        folder = stable.parent / "weight" if kind == "checkpoints" else stable.parent
        if number.isdecimal() and next(folder.glob("*.safetensors"), None):
            found[int(number), kind] = folder
    return found[max(found)] if found else None


def _show(groups: Groups, shown: list[int], settings: RoundSettings) -> None:
    """Print the progress of each step whose groups have become whole; ``shown`` are the draws of steps before it."""
    per_step, steps = settings.training.tasks_per_step, settings.training.steps
    fresh = [draw for draw in groups if draw not in set(shown)]
    while len(fresh) >= per_step and len(shown) < per_step * steps:
        shown += fresh[:per_step]
        rollouts = [one for draw in fresh[:per_step] for one in groups[draw]]
        outcomes = [one.outcome for one in rollouts if one.outcome is not None]
        done = RoundProgress(
            step=len(shown) // per_step,
            of=steps,
            success=sum(one.success for one in outcomes) / max(1, len(outcomes)),
            reward=sum(one.reward or 0.0 for one in rollouts) / max(1, len(outcomes)),
            infrastructure_errors=len(rollouts) - len(outcomes),
        )
        print(done.model_dump_json(), flush=True)
        del fresh[:per_step]
