"""recipes/lm.yaml at toy size, sampled by a real vLLM server in bfloat16: ``make test-vllm``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import run_here
from support.taught_models import RECIPE, TOY, UNSCORED, given, save_taught
from support.vllm_server import serving

from graph.settings import load_recipe
from memory.run import RunDirectory, read_json
from training.grpo.record import RoundRecord

pytestmark = [pytest.mark.vllm, pytest.mark.external, pytest.mark.process, pytest.mark.slow]


def test_the_loop_learns_from_what_the_server_sampled(tmp_path: Path) -> None:
    """The server has each step's weights, its log-probabilities are near the trainer's, and the loop makes tasks."""
    policy = save_taught(tmp_path, "smollm2")
    length = load_recipe(RECIPE).training.max_tokens
    with serving(policy, length, tmp_path / "server", dtype="bfloat16") as server:
        sizes = {**TOY, **UNSCORED, "sampling.engine": "vllm_server", "sampling.servers": f"[{server.url}]"}
        options = ["--recipe", str(RECIPE), "--run", str(tmp_path / "run"), "--json", *given(policy, **sizes)]
        done = run_here("graph.run_iteration", *options)
    assert done.returncode == 0, done.stderr
    run = RunDirectory.open(tmp_path / "run")
    record = read_json(run.iteration(0).round, RoundRecord)
    engine = record.measured.engine
    assert engine is not None
    assert engine.tokens == record.sampled_tokens > 0
    assert record.mixed_groups > 0
    assert max(step.grad_norm or 0.0 for step in record.steps) > 0
    assert record.gap is not None
    assert 0 < record.gap.mean < 2e-2, "bfloat16 rounds otherwise in another engine"
    assert '"admitted":0' not in done.stdout
