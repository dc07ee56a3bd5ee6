"""The tasks' package for verifiers: its own evaluation runs on a served environment, against a scripted endpoint."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.own_venvs import OPENENV, VERIFIERS, of_programs
from support.served_policy import reference_endpoint
from support.served_shop import served, write_shop

from memory.jsonl import read_jsonl
from memory.records import Task

pytestmark = of_programs(OPENENV, VERIFIERS)


@pytest.mark.parametrize("idle", [False, True])
def test_verifiers_scores_a_perfect_and_an_idle_model(idle: bool, tmp_path: Path) -> None:
    folder = write_shop(tmp_path)
    tasks = read_jsonl(folder / "tasks.jsonl", Task)
    token = "a-token-of-many-letters"
    with served(folder, COEVOLVE_SERVE_TOKEN=token) as url, reference_endpoint(tasks, idle) as endpoint:
        argv = [str(VERIFIERS), "coevolve_tasks", "--model", "reference", "--output-dir", "out"]
        argv += ["--client.base-url", endpoint.url, "--client.api-key-var", "NO_KEY"]
        argv += ["--push", "False", "--rich", "None"]
        argv += ["--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
        argv += ["--env.taskset.task.url", url]
        variables = {
            "NO_KEY": "none",
            "COEVOLVE_SERVE_TOKEN": token,
            "PATH": f"{VERIFIERS.parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    (traces,) = tmp_path.glob("out/*/traces.jsonl")
    found = [trace for line in traces.read_text().splitlines() for trace in json.loads(line)["traces"]]
    assert len(found) == 2, done.stderr[-3000:]
    assert [trace["rewards"]["solved"]["score"] for trace in found] == [0.0 if idle else 1.0] * 2
    users = [sum(node["message"]["role"] == "user" for node in trace["nodes"]) for trace in found]
    assert sorted(users) == [1, 2], "the second task has two user turns"
    assert token not in traces.read_text() + done.stdout + done.stderr
