"""Micro-batches and recomputed activations: memory and time may change, the update may not."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.late import Late
from support.played_round import K, play
from support.small_policy import CLASSES, small_tasks

from environments.bfcl.benchmark import BFCLEnvironment

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

STEPS = 2
SPLIT = 2


def train(starter: Path, folder: Path, **changes: object) -> SimpleNamespace:
    tasks = small_tasks()
    steps = [[tasks[2], tasks[3]]] * STEPS
    with pytest.MonkeyPatch.context() as monkeypatch:
        return play(starter, folder, steps, BFCLEnvironment(CLASSES), monkeypatch, checkpoint_steps=1, **changes)


def moments(folder: Path, step: int) -> list:
    """Adam's first moments: linear in the gradients, unlike the weights."""
    state = torch.load(folder / f"checkpoint-{step}" / "optimizer.pt", weights_only=True)["state"]
    return [state[number]["exp_avg"] for number in sorted(state)]


def weights(folder: Path, step: int) -> dict:
    from safetensors.torch import load_file

    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


@pytest.fixture(scope="module")
def pairs(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimpleNamespace]:
    """The same two steps with a loss, in one piece and in micro-batches of two rows, with ``grpo`` recomputed too."""

    @cache
    def pair(loss: str) -> SimpleNamespace:
        folders = [tmp_path_factory.mktemp(name) for name in ("whole", "split")]
        whole = train(starter, folders[0], loss=loss)
        split = train(starter, folders[1], loss=loss, micro_batch=SPLIT, gradient_checkpointing=loss == "grpo")
        return SimpleNamespace(whole=whole, split=split, folders=folders)

    return pair


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["group_tokens", "grpo"])
def test_the_update_is_that_of_the_whole_step(loss: str, pairs: Callable[[str], SimpleNamespace]) -> None:
    """With rollouts of unlike length, so that a wrong normaliser would show."""
    both = pairs(loss)
    lengths = (both.whole.batches[0]["completion_mask"] * both.whole.batches[0]["tool_mask"]).sum(dim=1)
    assert len(set(lengths.tolist())) > 2
    norms = [[log["grad_norm"] for log in run.trainer.state.log_history[:STEPS]] for run in (both.whole, both.split)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4), "before clipping, which would hide a wrong scale"
    for one, other in zip(moments(both.folders[0], 1), moments(both.folders[1], 1), strict=True):
        assert float(one.abs().max()) > 0
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6 * float(one.abs().max()) + 1e-9)
    for step in range(1, STEPS + 1):
        one, other = (weights(folder, step) for folder in both.folders)
        for name, weight in one.items():
            torch.testing.assert_close(weight, other[name], rtol=0, atol=2e-5)


def test_tasks_rollouts_and_steps_are_those_of_the_whole_step(pairs: Callable[[str], SimpleNamespace]) -> None:
    both = pairs("grpo")
    assert [t.turns for t in both.split.trajectories] == [t.turns for t in both.whole.trajectories]
    keys = [(t.step, t.task_id, t.sample) for t in both.split.trajectories]
    assert keys == [(s, task, k) for s in (1, 2) for task in ("task-make", "task-read") for k in range(K)]
    assert both.split.reported == both.split.saved == [1, 2]
    assert len(both.split.batches) == STEPS, "rollouts of a step are drawn at once"
    assert both.split.trainer.args.gradient_accumulation_steps == 2 * K // SPLIT
    assert both.split.trainer.model.is_gradient_checkpointing


def test_a_round_in_micro_batches_resumes(
    starter: Path, tmp_path: Path, pairs: Callable[[str], SimpleNamespace]
) -> None:
    both = pairs("grpo")
    tasks = small_tasks()
    with pytest.MonkeyPatch.context() as monkeypatch:
        again = play(
            starter,
            tmp_path,
            [[tasks[2], tasks[3]]],
            BFCLEnvironment(CLASSES),
            monkeypatch,
            first_step=2,
            checkpoint=both.folders[1] / "checkpoint-1",
            loss="grpo",
            micro_batch=SPLIT,
            gradient_checkpointing=True,
        )
    assert again.reported == [2]
    assert [t.turns for t in again.trajectories] == [t.turns for t in both.split.trajectories[2 * K :]]
    resumed, straight = weights(tmp_path, 2), weights(both.folders[1], 2)
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
