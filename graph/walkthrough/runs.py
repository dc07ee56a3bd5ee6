"""Prepares the runs that the notebooks read: a small one, and a recorded one of the language model.

The small run has two iterations of the embedded policy and the scripted roles. It takes about a minute of one core, so
several notebooks share one: COEVOLVE_NOTEBOOK_RUN names its folder, and the first notebook makes it there.

The recorded one has the records of a run of recipes/lm.yaml without its weights, and the messages of greedy decoding on
a few of the turns that it trained on, of the model before the run and after its last round.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from itertools import groupby
from pathlib import Path

from environments.base import InputError, Record
from environments.checkout import GRPO_ALONE, ROOT, child_variables
from graph.report.digest import calls_words, task_words
from graph.report.lineage import History
from graph.report.tables import Table, table
from memory.jsonl import read_existing
from memory.run import RunDirectory

VARIABLE = "COEVOLVE_NOTEBOOK_RUN"
"""The environment variable that names the run which notebooks read."""

LM_VARIABLE = "COEVOLVE_NOTEBOOK_LM_RUN"
"""The environment variable that names a run of the language model, such as runs/lm, in place of the recorded one."""

RECORDED = ROOT / "notebooks" / "recorded" / "language_model.tar.gz"

OVERRIDES = (
    "iterations=2",
    "tasks.initial_count=40",
    "training.steps=4",
    "signals.contexts_per_iteration=8",
    "evaluation.set=null",
)
"""The differences from recipes/grpo-base.yaml: the sizes, and no evaluation on held-out tasks (ours).

There is no expert step: with so few tasks hardly a failure would be left to follow.
"""

_DEADLINE = 1800.0  # seconds of one command
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}  # as make sets them


def prepared_run() -> RunDirectory:
    """Return the run named by COEVOLVE_NOTEBOOK_RUN, made there where nothing is, or a new one in a temporary folder.

    A run that is there is only read, and may be of any size. Raises InputError for a folder without a finished
    iteration, and RuntimeError with the end of its output when making the run fails.
    """
    if named := os.environ.get(VARIABLE):
        root = Path(named).expanduser().resolve()
        if root.exists() and any(root.iterdir()):
            return _finished(root)
    else:
        root = temporary_folder() / "run"
    _make(root)
    return _finished(root)


def _make(root: Path) -> None:
    settings = [word for setting in OVERRIDES for word in ("--set", setting)]
    run_module("graph.run_iteration", "--recipe", str(GRPO_ALONE), "--run", str(root), *settings)


def _finished(root: Path) -> RunDirectory:
    run = RunDirectory(root)
    if not run.settings_path.is_file() or not run.iteration(0).summary.is_file():
        raise InputError(
            f"{root} ({VARIABLE}) has no finished iteration: remove it and the notebook makes a run there, "
            "or name a run that has one"
        )
    return RunDirectory.open(root)


def temporary_folder() -> Path:
    """Return a new folder, which is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="coevolve-notebook-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run_module(module: str, *words: str, folder: Path = ROOT) -> str:
    """Run ``python -m MODULE WORDS`` in ``folder`` and return what it prints on stdout.

    It imports from this checkout, and finds an environment of the user's also in ``folder``.
    Raises RuntimeError with the end of its output when it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env={**_WAITING, **os.environ, **child_variables()},
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE,
    )
    if done.returncode:
        raise RuntimeError(f"{module} ended with status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def language_model_run() -> RunDirectory:
    """Return the run that COEVOLVE_NOTEBOOK_LM_RUN names, else the recorded one, unpacked in a temporary folder."""
    if named := os.environ.get(LM_VARIABLE):
        return RunDirectory.open(Path(named).expanduser().resolve())
    folder = temporary_folder()
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return RunDirectory.open(folder / "run")


class WrittenTurn(Record):
    """What a policy wrote on a user turn, its messages in order, and whether the turn was done.

    ``policy``: before the run, or after its last round.
    """

    task_id: str
    policy: str
    wrote: tuple[str, ...]
    success: bool


def answers_table(history: History) -> Table:
    """Return what the recorded model wrote on some human turns before and after the run, beside their references.

    Of another run nothing is recorded: the table has no row.
    """
    rows: list[tuple[str, str, str]] = []
    recorded = read_existing(history.run.root.parent / "answers.jsonl", WrittenTurn)
    for task_id, answers in groupby(recorded, lambda one: one.task_id):
        task = history.tasks[task_id]
        rows.append(("user", task_words(task, 400), ""))
        rows.append(("reference", calls_words(task.reference[-1], 400), ""))
        for one in answers:
            rows.append((one.policy, " ".join(one.wrote), "done" if one.success else "failed"))
    return table(("", "text", "result"), rows, width=400)
