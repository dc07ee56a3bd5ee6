"""Runs the project's commands: in a process of their own, as users do, or in this one, which saves their imports."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import chdir
from importlib import import_module
from pathlib import Path

import typer
from typer.testing import CliRunner

from support import ROOT

SMALL_STARTER = ("--model", "embedded", "--tasks", "lessons.jsonl", "--passes", "16", "--out", "starter")
"""Options of a warm start on the tasks of ``lessons.jsonl``: seconds of one core, a policy that hardly acts."""


def run_process(
    module: str, *arguments: str, before: tuple[str, ...] = (), cwd: Path = ROOT, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """``python -m MODULE ARGUMENTS``; ``before`` are the words of a command that starts it."""
    return subprocess.run(
        [*before, sys.executable, "-m", module, *arguments],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )


def run_here(module: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The same command of the same typer app in this process: what it prints, and its exit status.

    Bugs of the command are raised, as in any other test.
    """
    loaded = import_module(module)
    app = getattr(loaded, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(loaded.main)
    with chdir(cwd):
        result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess([module, *arguments], result.exit_code, result.stdout, result.stderr)
