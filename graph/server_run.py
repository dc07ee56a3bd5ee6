"""Begin a run on an MCP server of which the user gives the command alone: look at it, make tasks, warm up a policy.

The command is the user's own, on the command line, so that it is trusted for this process and its children.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from environments.base import InputError
from environments.benchmark import TRUST_VARIABLE
from environments.checkout import QUICKSTART
from environments.command import check_output
from graph.check_environment import findings, line
from memory.run import RunDirectory

RECIPE = QUICKSTART.with_name("mcp.yaml")

HELD_OUT = 20
"""Held-out tasks that are made (ours)."""

LEARNT = 1280
"""References that the initial policy learns from, repeated ones counted (ours)."""


def begin(command: str, run: Path, given: Sequence[str], tell: Callable[[str], None]) -> None:
    """Make ``run`` with its tasks, and beside it, in ``RUN-start``, held-out tasks and an initial policy.

    ``given`` are settings on top of recipes/mcp.yaml. ``tell`` is given the lines of a page: the tools, what was found
    about the server, and what was made. Raises InputError, before anything is written where it is a setting, the
    command or the place.
    """
    from environments.registry import benchmark_of
    from graph.seed_tasks import seed_file
    from graph.settings import load_recipe
    from training.embedded.new_policy import EMBEDDED
    from training.warm_start import StartSettings, warm_start

    start = run.with_name(f"{run.name}-start")
    policy = start / "initial"
    for place in (run, start):
        check_output("--run", place, "folder")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--mcp {command}: {error}: write the command as in a shell") from None
    os.environ[TRUST_VARIABLE] = "1"
    stated = [f"environment.options.command={json.dumps(words)}", f"policy.path={json.dumps(str(policy))}"]
    settings = load_recipe(RECIPE, [*stated, *given])
    environment = settings.environment.open()
    for note in benchmark_of(environment).notes(environment):
        tell(note)
    for found in findings(environment):
        tell(line(found))
    start.mkdir(parents=True)
    held_out = start / "held-out.jsonl"
    other = [f"seed={settings.seed + 1}", f"tasks.initial_count={HELD_OUT}"]
    seed_file(RECIPE, [*stated, *given, *other], None, held_out)
    tasks = seed_file(RECIPE, [*stated, f"evaluation.tasks={json.dumps(str(held_out))}", *given], run, None)
    learning = StartSettings(passes=math.ceil(LEARNT / len(tasks)), seed=settings.seed)
    named, options = settings.environment.name, settings.environment.options
    record = warm_start(EMBEDDED, [RunDirectory(run).tasks_path], policy, learning, named, options=options)
    tell(f"tasks      {len(tasks)} verified in {run}, {HELD_OUT} held out in {held_out}")
    tell(f"policy     {policy}, {record.parameters:,} parameters, warmed up on these tasks' references")
