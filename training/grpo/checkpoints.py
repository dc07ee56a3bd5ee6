"""Checkpoints of the policy that belong to rounds: which are complete, where a killed round resumes, which to remove.

The trainer writes a checkpoint file by file; ``round_checkpoint.json`` is added last, atomically, and only a folder
that has it counts. It holds the length of the trajectory log at that moment, so that a round which resumes from it
drops what was logged later.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from environments.base import InputError, Record
from memory.run import PolicyDirectory, read_json, write_json
from training.grpo.ranks import Ranks
from training.grpo.record import RoundSeconds
from training.rollout.policy import PolicyCard

KEPT_ROUNDS = 3
"""Ends of rounds that are kept: the newest, the one before it (scored as "before"), and one to spare."""


class RoundCheckpoint(Record):
    """The mark of a complete checkpoint after global step ``step`` of a round that ends with ``last_step``."""

    iteration: int
    step: int
    last_step: int
    log_bytes: int
    seconds: RoundSeconds


def checkpoint_folder(policies: Path, step: int) -> Path:
    """Return the folder in which the trainer saves after global step ``step``."""
    return policies / f"checkpoint-{step}"


def complete_checkpoint(folder: Path, checkpoint: RoundCheckpoint, card: PolicyCard | None) -> None:
    """Add the files that ``load_policy`` needs beside the trainer's, then the mark that makes the checkpoint count."""
    if card is not None:
        write_json(PolicyDirectory(folder).card, card)
    write_json(PolicyDirectory(folder).mark, checkpoint)


def newest_checkpoint(policies: Path, iteration: int) -> RoundCheckpoint | None:
    """Return the mark of the newest complete checkpoint of the round of ``iteration``; None if there is none."""
    marks = [mark for mark in _marks(policies).values() if mark is not None and mark.iteration == iteration]
    return max(marks, key=lambda mark: mark.step, default=None)


def check_written_by(folder: Path, ranks: Ranks) -> None:
    """Raise InputError for a checkpoint whose optimizer these processes could not read (ours).

    Whole and divided weights have optimizer files of different names. Where the trainer finds none of its own, it
    begins with a fresh optimizer and gives no warning. The files fit any number of processes. That number sets the
    order of floating-point sums, so that records are equal up to it.
    """
    other = "optimizer.pt" if ranks.sharded else "optimizer.bin"
    if (folder / other).is_file():
        was, now = ("whole", "divided") if ranks.sharded else ("divided", "whole")
        raise InputError(
            f"{folder} was written with {was} weights and training.launch.fsdp now says {now} ones, whose optimizer "
            "has other files: put training.launch back as it was"
        )


def discard_after(policies: Path, step: int) -> None:
    """Remove the checkpoints, complete or not, that a killed round left after global step ``step``."""
    for other in _marks(policies):
        if other > step:
            _remove(checkpoint_folder(policies, other))


def discard_superseded(policies: Path, newest: int) -> None:
    """Remove the checkpoints that neither a later round nor evaluation needs once ``newest`` is complete.

    Kept: ``newest`` and the ends of the last KEPT_ROUNDS rounds.
    """
    marks = _marks(policies)
    ends = sorted(step for step, mark in marks.items() if mark is not None and mark.step == mark.last_step)
    for step in marks:
        if step < newest and step not in ends[-KEPT_ROUNDS:]:
            _remove(checkpoint_folder(policies, step))


def _remove(folder: Path) -> None:
    # The mark first: if the process is killed in between, the rest of the folder counts as incomplete.
    PolicyDirectory(folder).mark.unlink(missing_ok=True)
    shutil.rmtree(folder)


def _marks(policies: Path) -> dict[int, RoundCheckpoint | None]:
    marks: dict[int, RoundCheckpoint | None] = {}
    for folder in policies.glob("checkpoint-*"):
        number = folder.name.removeprefix("checkpoint-")
        if number.isdecimal():
            mark = PolicyDirectory(folder).mark
            marks[int(number)] = read_json(mark, RoundCheckpoint) if mark.exists() else None
    return marks
