"""What cannot fit into the memory at hand is refused before a run begins; what may not fit is a warning."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from support.commands import run_here
from support.served_model import QWEN3_4B

import graph.fit
from environments.base import InputError
from environments.checkout import GRPO_ALONE
from graph.fit import PLANNED_TO_MEASURED, check_memory
from graph.settings import RunSettings, load_recipe
from training.plan import GIB, ModelShape, shape_in_process_of_its_own, shape_of
from training.settings import LoraSettings


@cache
def counted(config: str, lora: LoraSettings | None) -> ModelShape:
    return shape_of(json.loads(config), lora)


@pytest.fixture(autouse=True)
def _counted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count each policy once, in this process: one of its own imports torch for every question."""
    monkeypatch.setattr(
        graph.fit, "shape_in_process_of_its_own", lambda config, lora: counted(json.dumps(config), lora)
    )


@pytest.fixture
def large(tmp_path: Path) -> str:
    """The configuration of Qwen3-4B: nothing else of a policy is read."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_4B))
    return f"policy.path={tmp_path}"


def having(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    monkeypatch.setattr(graph.fit, "memory_at_hand", lambda device: round(gib * GIB))


def recipe(*overrides: str) -> RunSettings:
    return load_recipe(GRPO_ALONE, ["policy.device=cpu", *overrides])


def test_a_policy_that_is_too_large_is_refused_before_anything_is_written(
    large: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through the command. 4 B parameters: 16 GB of weights, as much of gradients and reference, 32 of moments."""
    monkeypatch.setattr("training.preflight.check_policy", lambda *_: None)  # it has no tokenizer
    monkeypatch.setattr(graph.fit, "shape_in_process_of_its_own", shape_in_process_of_its_own)
    having(monkeypatch, 58)
    given = ("--recipe", str(GRPO_ALONE), "--run", str(tmp_path / "run"))
    done = run_here("graph.run_iteration", *given, "--set", large, "--set", "policy.device=cpu")
    assert (done.returncode, done.stdout) == (2, "")
    *_, sentence = done.stderr.splitlines()
    assert "cannot be trained here: even with the shortest rollouts a round needs" in sentence
    assert "GiB and this machine has 58.0: choose a smaller policy or train a LoRA adapter" in sentence
    assert not (tmp_path / "run").exists()


def test_the_refusal_is_as_sure_as_the_plan_was_measured(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.02e9 parameters of 20 bytes, 1.13 GB of processes, by the largest error that is allowed for: 61 GiB."""
    having(monkeypatch, 60)
    with pytest.raises(InputError, match=r"needs 61\.\d GiB and this machine has 60\.0"):
        check_memory(recipe(large))
    having(monkeypatch, 62)
    check_memory(recipe(large))


def test_what_may_not_fit_with_the_longest_rollouts_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    low, high = PLANNED_TO_MEASURED
    settings = recipe()
    having(monkeypatch, 1.5)
    check_memory(settings)
    said = capsys.readouterr().err
    assert "warning: " in said
    assert f"with every rollout at training.max_tokens ({settings.training.max_tokens}) a round needs" in said
    least, most = (float(word) for word in said.split("needs ")[1].split(" GiB")[0].split(" to "))
    assert least < 1.5 < most or least > 1.5
    assert most / least == pytest.approx(high / low, rel=0.01)
    having(monkeypatch, most + 0.01)
    check_memory(settings)
    assert capsys.readouterr().err == ""


def test_a_small_run_is_never_in_the_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = recipe()
    check_memory(settings)
    assert capsys.readouterr().err == ""
    having(monkeypatch, 1.0)
    check_memory(settings)
    having(monkeypatch, 1.5)
    check_memory(recipe("training.launch={processes: 2}"))


def test_several_processes_share_one_memory_on_cpu_and_not_on_gpus(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, 70)
    check_memory(recipe(large))
    with pytest.raises(InputError, match="cannot be trained here"):
        check_memory(recipe(large, "training.launch={processes: 2}"))
    monkeypatch.setattr(graph.fit, "device_at_hand", lambda stated: "cuda")
    having(monkeypatch, 90)
    check_memory(recipe(large, "training.launch={processes: 2}"))
    having(monkeypatch, 50)
    with pytest.raises(InputError, match=r"a GPU of this machine has 50\.0"):
        check_memory(recipe(large))


def test_servers_elsewhere_take_nothing_here(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, 82)
    served = "sampling={engine: vllm_server, servers: ['http://a:1', 'http://b:1', 'http://c:1']}"
    check_memory(recipe(large, served))


def test_a_server_on_the_same_gpu_takes_its_part(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph.fit, "device_at_hand", lambda stated: "cuda")
    machine = (large, "policy.dtype=bfloat16", "policy.lora={rank: 8}", "sampling={engine: vllm_server}")
    having(monkeypatch, 9)
    check_memory(recipe(*machine))
    with pytest.raises(InputError, match=r"a GPU of this machine has 9\.0"):
        check_memory(recipe(*machine, "plan.gpus=1"))
    check_memory(recipe(*machine, "plan.gpus=2"))


def test_a_model_of_any_family_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    having(monkeypatch, 0.001)
    with pytest.raises(InputError, match="cannot be trained here"):
        check_memory(recipe(f"policy.path={tmp_path}"))
