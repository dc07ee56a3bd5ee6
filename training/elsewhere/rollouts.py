"""Rollouts that another engine plays: how its processes record them, and which of them make the steps of a round.

An engine draws a task and plays it K times: that is a group. Its processes, on one machine or on several that share the
run's folder, append each rollout that ended to a file of their own. A round takes whole groups from all files.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from pydantic import Field, ValidationError

from environments.base import InputError, Outcome, Record
from memory.files import read_lines
from memory.jsonl import complaint, record_id
from memory.records import Task, Trajectory, TrajectoryTurn
from memory.run import append_jsonl
from training.grpo.advantages import reward_of
from training.settings import TrainingSettings


class Played(Record):
    """One rollout that ended. ``draw`` numbers the draws of tasks: the rollouts of one draw are a group.

    ``outcome`` and ``reward`` are None exactly when ``infrastructure_error`` is set. ``sampled_tokens`` is 0 where the
    engine does not say.
    """

    draw: int = Field(ge=0)
    task_id: str
    turns: tuple[TrajectoryTurn, ...]
    outcome: Outcome | None = None
    reward: float | None = None
    infrastructure_error: str | None = None
    sampled_tokens: int = Field(0, ge=0)


class RolloutWriter:
    """Appends rollouts to a file of ``folder`` that no other process writes; for several threads.

    Rewards are those of ``settings``.
    """

    def __init__(self, folder: Path, settings: TrainingSettings) -> None:
        self._path = folder / f"{time.time_ns()}-{socket.gethostname()}-{os.getpid()}.jsonl"
        self._settings = settings
        self._lock = Lock()

    def keep(
        self,
        draw: int,
        task: Task,
        turns: Sequence[TrajectoryTurn],
        outcome: Outcome | None,
        fault: str | None,
        sampled_tokens: int = 0,
    ) -> Played:
        """Append a rollout, flush it to the disk and return it."""
        played = Played(
            draw=draw,
            task_id=task.id,
            turns=tuple(turns),
            outcome=outcome,
            reward=reward_of(outcome, turns, task, self._settings),
            infrastructure_error=fault,
            sampled_tokens=sampled_tokens,
        )
        with self._lock:
            append_jsonl(self._path, [played])
        return played


class RolloutReader:
    """The rollouts in the files of ``folder``, read as they grow, by draw."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self._groups: dict[int, list[Played]] = defaultdict(list)

    def groups(self, size: int) -> dict[int, list[Played]]:
        """Return the first ``size`` rollouts of each draw that has as many by now, by draw.

        Half a line at the end of a file is read once it is whole. Raises InputError for a line that is no rollout.
        """
        for path in sorted(self._folder.glob("*.jsonl")):
            for _, line in read_lines(path, start=self._read[path], whole=True):
                try:
                    one = Played.model_validate_json(line)
                except ValidationError as error:
                    raise InputError(f"{path}, byte {self._read[path]}: {complaint(error)}") from None
                self._read[path] += len(line)
                self._groups[one.draw].append(one)
        return {draw: group[:size] for draw, group in sorted(self._groups.items()) if len(group) >= size}


def trajectories_of(
    groups: Mapping[int, Sequence[Played]], *, iteration: int, first_step: int, per_step: int, seed: int
) -> list[Trajectory]:
    """Return the groups as the trajectories of a round: ``per_step`` groups make a step, in the order of their draws.

    ``seed`` is the run's. A task that a step draws twice has samples beyond K, as in ``GroupRollouts``.
    """
    found, samples = [], Counter[tuple[int, str]]()
    for place, (draw, group) in enumerate(groups.items()):
        step = first_step + place // per_step
        for number, one in enumerate(group):
            found.append(
                Trajectory(
                    **{name: getattr(one, name) for name in Played.model_fields if name != "draw"},
                    id=trajectory_id(one.task_id, draw, number, seed),
                    iteration=iteration,
                    step=step,
                    sample=samples[step, one.task_id],
                )
            )
            samples[step, one.task_id] += 1
    return found


def trajectory_id(task_id: str, draw: int, number: int, seed: int) -> str:
    """Return the id of the trajectory that rollout ``number`` of a draw becomes, whichever round takes it."""
    return record_id("traj", "elsewhere", task_id, draw, number, seed)
