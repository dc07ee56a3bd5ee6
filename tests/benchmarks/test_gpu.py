"""The GPU's script at toy size on CPU: every case is trained, measured and held against the plan."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu import QWEN3_06B, GpuReport, cases, mfu_of
from benchmarks.rounds import Used
from environments.checkout import ROOT
from memory.run import read_json
from training.model_shape import shape_of
from training.plan import training_flops


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
