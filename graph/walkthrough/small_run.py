"""Prepares the small run that the notebooks read: two iterations of the embedded policy and the scripted roles.

It takes about a minute of one core, so several notebooks share one: COEVOLVE_NOTEBOOK_RUN names its folder, and the
first notebook makes it there. Other walkthroughs get temporary folders and commands here.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from environments.base import InputError
from environments.checkout import GRPO_ALONE, ROOT, child_variables
from memory.run import RunDirectory

VARIABLE = "COEVOLVE_NOTEBOOK_RUN"
"""The environment variable that names the run which notebooks read."""

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
