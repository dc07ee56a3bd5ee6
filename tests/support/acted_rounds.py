"""A round that a script acts out in place of a training process."""

from __future__ import annotations

import asyncio

from graph.run.stages import Run
from memory.run import write_json, write_jsonl
from memory.tasks import load_tasks, tasks_at
from support.made_run import rollouts
from training.grpo.record import RoundSeconds, round_record


async def acted_out(run: Run, iteration: int) -> None:
    """Write the round of an iteration as its process does, with rollouts of a script."""
    folder = run.directory.iteration(iteration)
    if folder.round.exists():
        return
    folder.root.mkdir(parents=True, exist_ok=True)
    folder.training_log.touch()
    tasks = list(tasks_at(load_tasks(run.directory), iteration))
    played = await asyncio.to_thread(rollouts, tasks, iteration)
    write_jsonl(folder.trajectories, played)
    record = round_record(
        iteration=iteration,
        policy="policy/none",
        tasks=len(tasks),
        trajectories=played,
        logs={},
        measured=RoundSeconds(),
    )
    write_json(folder.round, record)
