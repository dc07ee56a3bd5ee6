"""A run of which the user gives the command of an MCP server alone: first page, tasks, iteration, and going on."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.commands import run_here

from environments.trust import TRUST_VARIABLE
from memory.records import Task
from memory.run import RunDirectory, read_jsonl

pytestmark = [pytest.mark.long, pytest.mark.process]

SETTINGS = {
    "environment.options.reset": "rebuild",
    "environment.options.env": "[PYTHONPATH]",
    "iterations": 1,
    "policy.device": "cpu",
    "tasks.initial_count": 6,
    "training": "{steps: 1, tasks_per_step: 2, rollouts_per_task: 2, max_tokens: 512}",
    "signals.contexts_per_iteration": 2,
}


def test_evolve_on_a_command_alone_and_go_on_as_its_last_lines_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graph.run_iteration.HELD_OUT", 3)
    monkeypatch.setattr("graph.run_iteration.LEARNT", 64)
    monkeypatch.setattr("memory.processes.watch_parent", lambda: None)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    monkeypatch.setenv(TRUST_VARIABLE, "")  # set by the command itself, and put back when the test ends
    run = tmp_path / "run"
    sets = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    server = f"{sys.executable} -m support.mcp_depot"
    done = run_here("graph.run_iteration", "--mcp", server, "--run", str(run), *sets)
    assert done.returncode in (0, 4), done.stderr  # 4: a policy of four updates may solve nothing
    page, _, last = done.stdout.partition("Next\n")
    assert "left out   burn_down: it says that it destroys" in page
    assert "ok     it begins alike each time" in page
    assert "\nroles      calls and words of tasks by rules (by default)\n" in page
    assert f"tasks      6 verified in {run}, 3 held out in {run}-start/held-out.jsonl" in page
    assert len(read_jsonl(Path(f"{run}-start") / "held-out.jsonl", Task)) == 3
    assert len([one for one in read_jsonl(run / "tasks.jsonl", Task) if one.origin == "seed"]) == 6
    assert RunDirectory.open(run).iteration(0).round.exists()

    (again,) = (line for line in last.splitlines() if " evolve " in line)
    words = shlex.split(again, comments=True)
    variable, _, entry = words[0].partition("=")
    assert variable == TRUST_VARIABLE
    monkeypatch.delenv(TRUST_VARIABLE)  # a new shell
    options = [word for word in words[words.index("evolve") + 1 :] if not word.startswith("#")]
    given = ["2" if before == "--iterations" else one for before, one in zip(["", *options], options, strict=False)]
    argv = [sys.executable, "-m", "graph.run_iteration", *given, "--json"]
    refused = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=600)
    assert refused.returncode == 2
    assert f"export {TRUST_VARIABLE}={entry}" in refused.stderr
    environment = os.environ | {TRUST_VARIABLE: entry}
    resumed = subprocess.run(argv, env=environment, check=False, capture_output=True, text=True, timeout=600)
    assert resumed.returncode in (0, 4), resumed.stderr
    assert json.loads(resumed.stdout.splitlines()[-1])["iteration"] == 1
