"""The GPU's script at toy size on CPU: every case is trained, measured and held against the plan."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu import QWEN3_06B, GpuReport, cases, mfu_of
from benchmarks.rounds import Used, above_imports, make_policy, prepared, train_rounds
from environments.checkout import ROOT
from memory.run import read_json
from training.model_shape import shape_of
from training.plan import memory_of, training_flops

SMALLEST = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
"""The initial policy's shape, 0.6 M parameters."""
LARGE_BATCH = (
    *("iterations=1", "tasks.initial_count=4", "evaluation.set=null", "policy.device=cpu", "training.steps=2"),
    *("training.tasks_per_step=2", "training.rollouts_per_task=16", "training.micro_batch=16"),
    *("training.max_tokens=400", "training.max_new_tokens=48", "training.max_actions=20"),
)
"""Large enough that activations, 0.3 GiB, exceed what allocators keep, and small enough for a few CPU seconds."""


def test_the_large_policy_has_the_shape_of_qwen3_06b() -> None:
    shape = shape_of({"model_type": "qwen3", "tie_word_embeddings": True, **QWEN3_06B})
    assert round(shape.parameters / 1e6) == 596  # the model card: 0.6 B
    names = [case.name for case in cases("cuda", toy=False)]
    assert [name.split(", ")[-1] for name in names] == ["all weights", "LoRA"] * 2


def test_mfu_is_needed_over_possible_operations() -> None:
    shape = shape_of({"model_type": "qwen3", "tie_word_embeddings": True, **QWEN3_06B})
    used = Used(baseline=0, peak=0, context=0, longest=100, trained=1000, attended=50.5)
    needed = training_flops(shape, 1000, 50.5, lora=False, reference=True)
    assert mfu_of(shape, used, 2.0, 1e12, lora=False, reference=True) == pytest.approx(needed / 2e12)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.long
def test_the_script_measures_cases_at_toy_size(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    # Each policy and each way of training once: a case takes two processes that import torch.
    names = ("random, toy, LoRA", "embedded, all weights")
    only = [part for name in names for part in ("--only", name)]
    done = subprocess.run(
        ["benchmarks/gpu.sh", "--toy", "--device", "cpu", "--output", str(output), *only],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHON": ".venv/bin/python", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_json(output, GpuReport)
    assert (report.device, report.toy, report.peak_source, len(report.cases)) == ("cpu", True, "measured", 2)
    assert tuple(one.name for one in report.cases) == names
    for one in report.cases:
        assert one.failure is None
        assert one.sampled_per_second
        assert one.trained_per_second
        assert one.mfu is not None
        assert 0 < one.mfu < 1
        assert one.memory_gib is not None
        assert one.planned_gib is not None
    assert "trained tok/s" in done.stdout


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.long
def test_the_plan_is_near_the_memory_of_a_round(tmp_path: Path) -> None:
    policy = tmp_path / "random"
    make_policy(policy, SMALLEST)
    run, settings = prepared(tmp_path / "run", [*LARGE_BATCH, f"policy.path={policy}"])
    (used,) = asyncio.run(train_rounds(run, 1, 600.0))
    shape = shape_of(json.loads((policy / "config.json").read_text()))
    need = memory_of(shape, settings.policy, settings.training, device="cpu", tokens=used.longest).devices[0]
    above, peak = above_imports(need, used.baseline), used.peak - used.baseline
    assert 0.75 < above / peak < 1.25, (above, peak)


def test_an_unknown_case_is_refused_with_those_there_are(tmp_path: Path) -> None:
    from support.commands import run_here

    done = run_here("benchmarks.gpu", "--toy", "--device", "cpu", "--only", "all", "--output", str(tmp_path / "x.json"))
    assert done.returncode == 2
    assert "--only all: the cases are random, toy, all weights; random, toy, LoRA; embedded" in done.stderr


@pytest.mark.slow
def test_a_machine_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch
    from support.commands import run_here

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = run_here("benchmarks.gpu", "--output", str(tmp_path / "gpu.json"))
    assert done.returncode == 2
    assert "this machine has no GPU: use --device cpu --toy" in done.stderr
