"""Rounds that verl trains: the published wheel on a CPU, without Ray, FSDP and vLLM (``support/verl_on_cpu.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ROOT
from support.own_venvs import VERL, of_programs
from support.small_policy import make_policy, small_settings, small_tasks

from graph.settings import RunSettings
from memory.processes import ChildFailure
from memory.records import Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import admit
from training.elsewhere.round import train_elsewhere
from training.grpo.record import RoundRecord
from training.rollout.policy import load_policy

pytestmark = of_programs(VERL)


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    make_policy(tmp_path / "starter", small_tasks())
    return tmp_path / "starter"


def made_run(folder: Path, starter: Path, *overrides: str) -> RunDirectory:
    python = folder / "verl-on-cpu"
    python.write_text(f'#!/bin/sh\nexec {VERL} -W ignore {ROOT}/tests/support/verl_on_cpu.py "$@"\n')
    python.chmod(0o755)
    elsewhere = {"engine": "verl", "python": str(python), "overrides": list(overrides)}
    settings = small_settings(
        starter, elsewhere=elsewhere, loss="dapo", rollouts_per_task=4, steps=2, temperature=0.9
    ).model_dump()
    run = RunDirectory.create(folder / "run", RunSettings.model_validate(settings))
    admit(run, small_tasks())
    return run


def test_two_rounds_are_recorded_like_our_own(starter: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = made_run(tmp_path, starter)
    for iteration in (0, 1):
        train_elsewhere(run, iteration)
        folder = run.iteration(iteration)
        trajectories = read_jsonl(folder.trajectories, Trajectory)
        record = read_json(folder.round, RoundRecord)
        assert [(one.step, one.sample) for one in trajectories] == [
            (step, sample) for step in (2 * iteration + 1, 2 * iteration + 2) for _ in range(2) for sample in range(4)
        ]
        assert (record.first_step, record.last_step) == (2 * iteration + 1, 2 * iteration + 2)
        assert record.policy == f"policy/checkpoint-{record.last_step}"
        assert record.infrastructure_errors == 0
        assert record.success == pytest.approx(sum(one.success for one in trajectories) / 16)
        before, after = (
            load_policy(str(path), device="cpu")
            for path in (starter if iteration == 0 else run.policy_path / "checkpoint-2", run.root / record.policy)
        )
        moved = max(
            float((a - b).abs().max().detach())
            for a, b in zip(before.model.parameters(), after.model.parameters(), strict=True)
        )
        assert 1e-5 < moved < 0.1
        assert type(after.rendering) is type(before.rendering)
        (seen,) = folder.job.glob("global_step_*/actor/seen.json")
        for step, found in enumerate(json.loads(seen.read_text())):
            here = trajectories[8 * step : 8 * step + 8]
            assert found["gap"] < 1e-4, "verl's masked log-probabilities are those of the sampled ids"
            # Rollouts of a group end in any order, in verl's records and in ours.
            for group in (slice(0, 4), slice(4, 8)):
                ours = sorted((one.reward, one.sampled_tokens) for one in here[group])
                theirs = sorted(zip(found["rewards"][group], found["sampled"][group], strict=True))
                assert [(pytest.approx(reward), tokens) for reward, tokens in ours] == theirs
            mixed = any(len({one.success for one in here[group]}) == 2 for group in (slice(0, 4), slice(4, 8)))
            assert (found["advantages"] > 0) == mixed
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["step"], one["of"]) for one in lines] == [(1, 2), (2, 2)] * 2
    assert any(one.success for one in trajectories)
    assert any(not one.success for one in trajectories)


def test_a_message_that_the_server_gives_up_ends_the_round(starter: Path, tmp_path: Path) -> None:
    run = made_run(tmp_path, starter, "+give_up=true")
    with pytest.raises(ChildFailure, match="ended with status 1"):
        train_elsewhere(run, 0)
    assert "the server gave up a message" in run.iteration(0).engine_log.read_text()
    assert not run.iteration(0).round.exists()
    assert not run.iteration(0).trajectories.exists()
