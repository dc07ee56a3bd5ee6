"""A round on tasks whose first turns the reference plays: TRL's batch, also where the history leaves no room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.late import Late
from support.played_round import K, play
from support.small_policy import CLASSES, small_tasks

from environments.bfcl.benchmark import BFCLEnvironment
from memory.records import StopReason, Task
from training.grpo.record import RoundFailure

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

pytestmark = pytest.mark.slow


def behind(first: Task, last: Task, times: int = 1) -> Task:
    """``last`` behind a turn in which the reference of ``first`` is played, ``times`` over."""
    kept = {"turns": (*first.turns, *last.turns), "reference": (first.reference[0] * times, *last.reference)}
    return last.model_copy(update=kept | {"played": 1, "id": f"{last.id}-behind-{times}"})


def test_a_group_without_room_scores_0_and_the_others_are_learnt_from(
    starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, _, make, read, _ = small_tasks()
    fits, crowded = behind(where, make), behind(where, read, times=8)
    run = play(starter, tmp_path, [[fits, crowded]], BFCLEnvironment(CLASSES), monkeypatch, length_cost=0.1)
    roomy, full = run.trajectories[:K], run.trajectories[K:]
    assert {one.reward for one in full} == {0.0}
    assert {(one.turns[-1].stop_reason, one.sampled_tokens) for one in full} == {(StopReason.EPISODE_TOKENS, 0)}
    assert all(one.turns[0].stop_reason is StopReason.PLAYED and one.sampled_tokens > 0 for one in roomy)
    assert all(one.reward == 1.0 for one in roomy if one.success and len(one.turns[1].steps) == 1)
    (batch,) = run.batches
    written = batch["completion_mask"] * batch["tool_mask"]
    assert sorted(written.sum(dim=1).tolist()) == sorted([0] * K + [one.sampled_tokens for one in roomy])
    assert all(torch.isfinite(value).all() for value in run.trainer.model.state_dict().values())


def test_a_step_in_which_nobody_has_room_is_refused(
    starter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, _, _, read, _ = small_tasks()
    steps = [[behind(where, read, times=8)]]
    with pytest.raises(RoundFailure, match=r"no rollout of step 1 has room .* training\.max_tokens: raise it"):
        play(starter, tmp_path, steps, BFCLEnvironment(CLASSES), monkeypatch)
