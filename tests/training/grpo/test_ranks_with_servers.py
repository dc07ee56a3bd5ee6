"""Two processes with two real vLLM servers against one process with the same servers: ``make test-vllm``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support import ROOT
from support.small_policy import small_settings, small_tasks
from support.vllm_server import STARTER, RunningServer, serving_starter

from memory.run import RunDirectory
from memory.tasks import admit
from training.rollout.settings import SamplingSettings

pytestmark = [pytest.mark.vllm, pytest.mark.external, pytest.mark.process, pytest.mark.slow]

STEPS, TASKS, K = 2, 4, 4
EXPERT = {"passes": 4, "learning_rate": 1e-3}
"""The starter learns these tasks half: groups have successes and failures, and servers get other weights at once."""


@pytest.fixture(scope="module")
def urls(vllm_server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with serving_starter(tmp_path_factory.mktemp("second")) as second:
        yield vllm_server.url, second.url


@pytest.fixture(scope="module")
def runs(urls: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("rounds")
    before = [sampled(url) for url in urls]
    two = trained(folder / "two", urls, {"processes": 2, "deadline": 300.0})
    shares = [sampled(url) - count for url, count in zip(urls, before, strict=True)]
    return SimpleNamespace(two=two, shares=shares, alone=trained(folder / "alone", urls, None))


def sampled(url: str) -> float:
    """Tokens that a server sampled since it was started, by its own count."""
    text = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:generation_tokens_total"))


def trained(root: Path, urls: tuple[str, str], launched: object) -> RunDirectory:
    given = {"steps": STEPS, "tasks_per_step": TASKS, "rollouts_per_task": K, "expert": EXPERT}
    settings = small_settings(STARTER, **given, launch=launched)
    sampling = SamplingSettings(engine="vllm_server", servers=urls)
    run = RunDirectory.create(root, settings.model_copy(update={"sampling": sampling}))
    admit(run, small_tasks())
    done = subprocess.run(
        [sys.executable, "-m", "training.run_round", "--run", str(root), "--iteration", "0"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return run


def rows(path: Path) -> list[Any]:
    return [without_measured(json.loads(line)) for line in path.read_text().splitlines()]


def without_measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_measured(item) for key, item in value.items() if key != "measured"}
    return [without_measured(item) for item in value] if isinstance(value, list) else value


def test_trajectories_are_those_of_one_process(runs: SimpleNamespace) -> None:
    """Ids are hashes of task, step, sample and seed, and turns hold all that was sampled."""
    one, other = (rows(run.iteration(0).trajectories) for run in (runs.two, runs.alone))
    assert len(one) == STEPS * TASKS * K
    assert one == other


def test_both_servers_sampled_and_nothing_twice(runs: SimpleNamespace) -> None:
    assert all(share > 0 for share in runs.shares)
    for run in (runs.two, runs.alone):
        record = json.loads(run.iteration(0).round.read_text())
        engine = record["measured"]["engine"]
        turns = [turn for row in rows(run.iteration(0).trajectories) for turn in row["turns"]]
        assert engine["messages"] >= len(turns) > 0
        assert engine["resampled"] == 0
        assert engine["tokens"] == record["sampled_tokens"]
        assert engine["gap"] < 1e-4
        assert max(step["mixed_groups"] for step in record["steps"]) > 0, "GRPO must have had something to learn from"


def test_weights_are_those_of_one_process_up_to_float_order(runs: SimpleNamespace) -> None:
    from safetensors.torch import load_file

    start = load_file(STARTER / "model.safetensors")
    last = f"checkpoint-{STEPS}"
    two, alone = (load_file(run.policy_path / last / "model.safetensors") for run in (runs.two, runs.alone))
    assert two.keys() == alone.keys()
    moved = max(float((alone[key] - start[key]).abs().max()) for key in alone)
    assert moved > 1e-3, "the policy must have moved"
    assert max(float((two[key] - alone[key]).abs().max()) for key in alone) < moved / 10
