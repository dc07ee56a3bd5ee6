"""The examples of two nodes do what they say, with a scheduler and a `coevolve` that only note what they were asked."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
import yaml
from support import ROOT

LAUNCH = ROOT / "recipes" / "launch"
pytestmark = pytest.mark.process

COEVOLVE = """#!/bin/bash
echo "$NODE: $* [$COEVOLVE_SERVERS]" >> "$NOTES"
if [ "$1" = serve ]; then
  trap 'echo "the servers end" >> "$NOTES"; exit 0' TERM
  [ -z "$BROKEN" ] || { echo "error: no room" >&2; exit 1; }
  for port in 8000 8001; do echo "http://$NODE:$port pid 1 log x"; done
  while true; do sleep 0.05; done
fi
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do [[ "$1" == --nodelist=* ]] && export NODE="${1#--nodelist=}"; shift; done
exec "$@"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory whose commands are pretended."""
    for name, text in {
        ".venv/bin/coevolve": COEVOLVE,
        "bin/srun": SRUN,
        "bin/scontrol": "#!/bin/sh\necho first\necho second\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def start(place: Path, script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    given = {"NOTES": str(place / "notes"), "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "BROKEN": "", "NODE": ""}
    env = {**os.environ, "COEVOLVE_SERVERS": "", **given, **variables}
    return subprocess.Popen(
        ["bash", "-c", script, "script", *arguments], cwd=place, env=env, text=True, stderr=subprocess.PIPE
    )


def slurm(place: Path, **variables: str) -> tuple[int, str]:
    script = (LAUNCH / "slurm-two-nodes.sh").read_text()
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "both", "GPUS": "2"}
    job = start(place, script, "recipes/x.yaml", "runs/x", **{**given, **variables})
    _, said = job.communicate(timeout=60)
    return job.returncode, said


def test_slurm_trains_on_one_node_and_samples_on_the_other(place: Path) -> None:
    assert slurm(place) == (0, "")
    serve, evolve, end = (place / "notes").read_text().splitlines()
    assert serve.startswith(
        "second: serve --recipe recipes/x.yaml --count 2 --device-ids 0,1 --port 8000 --host second"
    )
    assert evolve == (
        "first: evolve --run runs/x --recipe recipes/x.yaml --set sampling.engine=vllm_server "
        "--set training.launch.processes=2 [http://second:8000,http://second:8001]"
    )
    assert end == "the servers end"

    (place / "notes").unlink()
    (place / "runs" / "x").mkdir()
    (place / "runs" / "x" / "settings.yaml").touch()
    assert slurm(place) == (0, "")
    assert "first: evolve --run runs/x --resume [http://second:" in (place / "notes").read_text()


def test_slurm_ends_when_the_servers_do_not_start(place: Path) -> None:
    status, said = slurm(place, BROKEN="yes")
    assert (status, said) == (1, "error: no room\n")
    assert "evolve" not in (place / "notes").read_text()


def test_skypilot_trains_on_one_node_and_samples_on_the_other(place: Path) -> None:
    script = yaml.safe_load((LAUNCH / "sky.yaml").read_text())["run"]
    given = {
        "SHARED": str(place),
        "SKYPILOT_NUM_GPUS_PER_NODE": "2",
        "SKYPILOT_NODE_IPS": "first\nsecond",
        "SKYPILOT_TASK_ID": "9",
        "RECIPE": "recipes/x.yaml",
    }
    both = [
        start(place, script, **given, NODE=node, SKYPILOT_NODE_RANK=str(rank))
        for rank, node in enumerate(("first", "second"))
    ]
    assert [(job.communicate(timeout=60)[1], job.returncode) for job in both] == [("", 0), ("", 0)]
    serve, evolve, end = (place / "notes").read_text().splitlines()
    assert serve.startswith(
        "second: serve --recipe recipes/x.yaml --count 2 --device-ids 0,1 --port 8000 --host second"
    )
    assert evolve.endswith("--set training.launch.processes=2 [http://second:8000,http://second:8001]")
    assert end == "the servers end"
