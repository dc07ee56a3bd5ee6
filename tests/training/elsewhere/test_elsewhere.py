"""Rollouts that another engine plays, as they become a round; prime-rl's folders and a recorder are made by hand."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.small_policy import make_policy, small_settings, small_tasks

from environments.base import InputError, Outcome
from graph.settings import RunSettings
from memory.records import StopReason, Trajectory, TrajectoryTurn
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import admit
from training.elsewhere.rollouts import Played, RolloutReader, RolloutWriter, trajectories_of
from training.elsewhere.round import newest_weights, train_elsewhere
from training.grpo.record import RoundFailure, RoundRecord
from training.settings import TrainingSettings
from training.signals import SignalSettings, extract

TASKS = small_tasks()
TURN = TrajectoryTurn(text="Tell me where I am.", ended=True, stop_reason=StopReason.END_OF_TURN)
SETTINGS = TrainingSettings()
FAULT = "EnvironmentFault: the worker died"


def keep(recorder: RolloutWriter, draw: int, success: bool | None, task: int = 0) -> Played:
    outcome = None if success is None else Outcome(success=success, turns=())
    return recorder.keep(draw, TASKS[task], (TURN,), outcome, FAULT if success is None else None, 7)


def test_rollouts_are_read_as_they_are_written(tmp_path: Path) -> None:
    recorded, recorder = RolloutReader(tmp_path), RolloutWriter(tmp_path, SETTINGS)
    assert recorded.groups(2) == {}
    keep(recorder, 5, True)
    assert recorded.groups(2) == {}
    keep(recorder, 5, None)
    keep(RolloutWriter(tmp_path, SETTINGS), 3, False)
    keep(recorder, 5, False)
    (whole,) = recorded.groups(2).values()
    assert [(one.reward, one.infrastructure_error) for one in whole] == [(1.0, None), (None, FAULT)]
    file = max(tmp_path.glob("*.jsonl"))
    line = keep(recorder, 3, True).model_dump_json().encode()
    with file.open("ab") as half:
        half.write(line[:20])
    assert [*recorded.groups(2)] == [3, 5]
    with file.open("ab") as rest:
        rest.write(line[20:] + b"\n")
    assert [len(group) for group in recorded.groups(3).values()] == [3, 3]
    with file.open("ab") as rest:
        rest.write(b'{"draw": -1}\n')
    with pytest.raises(InputError, match="jsonl, byte"):
        recorded.groups(2)


def test_threads_of_a_server_record_whole_lines(tmp_path: Path) -> None:
    recorder = RolloutWriter(tmp_path, SETTINGS)
    threads = [threading.Thread(target=keep, args=(recorder, draw % 3, True)) for draw in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(group) for group in RolloutReader(tmp_path).groups(10).values()] == [10] * 3


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 1)), min_size=1, max_size=12, unique_by=lambda d: d[0])
)
def test_groups_become_steps_in_the_order_of_their_draws(draws: list[tuple[int, int]]) -> None:
    groups = {
        draw: [Played(draw=draw, task_id=TASKS[task].id, turns=(TURN,), outcome=Outcome(success=True, turns=()))] * 3
        for draw, task in sorted(draws)
    }
    found = trajectories_of(groups, iteration=4, first_step=9, per_step=2, seed=1)
    assert [one.step for one in found] == [9 + place // 2 for place in range(len(groups)) for _ in range(3)]
    assert len({one.id for one in found}) == len(found)
    assert len({(one.step, one.task_id, one.sample) for one in found}) == len(found)
    assert all(one.iteration == 4 for one in found)


def prime_run(folder: Path) -> RunDirectory:
    make_policy(folder / "starter", TASKS, updates=1)
    elsewhere = {"engine": "prime-rl", "output": str(folder / "prime")}
    settings = small_settings(folder / "starter", elsewhere=elsewhere, rollouts_per_task=2, steps=2)
    run = RunDirectory.create(folder / "run", RunSettings.model_validate(settings.model_dump()))
    admit(run, TASKS)
    return run


def write_weights(folder: Path, starter: Path, stable: Path | None = None) -> None:
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((starter / name).read_bytes())
    ((stable or folder) / "STABLE").touch()


@pytest.mark.slow
def test_a_round_takes_the_groups_that_no_earlier_round_took(tmp_path: Path) -> None:
    run, prime = prime_run(tmp_path), tmp_path / "prime"
    recorder = RolloutWriter(run.played_path, SETTINGS)
    for draw in (7, 2, 4, 1, 9):  # of 3 a rollout is missing: prime-rl dropped its group
        keep(recorder, draw, True, draw % 5)
        keep(recorder, draw, None if draw == 4 else draw == 7, draw % 5)
    keep(recorder, 3, True, 3)
    with pytest.raises(RoundFailure, match="has no finished weights"):
        train_elsewhere(run, 0)
    write_weights(prime / "broadcasts" / "step_9", tmp_path / "starter")
    write_weights(prime / "checkpoints" / "step_10" / "weight", tmp_path / "starter", prime / "checkpoints" / "step_10")
    write_weights(prime / "broadcasts" / "step_11", tmp_path / "starter")
    (prime / "broadcasts" / "step_11" / "STABLE").unlink()
    assert newest_weights(prime) == prime / "checkpoints" / "step_10" / "weight"
    train_elsewhere(run, 0)
    record = read_json(run.iteration(0).round, RoundRecord)
    assert (record.first_step, record.last_step, record.infrastructure_errors) == (1, 2, 1)
    assert record.sampled_tokens == 7 * 8
    assert (run.root / record.policy / "coevolve.json").is_file()
    trajectories = read_jsonl(run.iteration(0).trajectories, Trajectory)
    assert [(one.step, one.task_id) for one in trajectories[::2]] == [
        (1, TASKS[1].id),
        (1, TASKS[2].id),
        (2, TASKS[4].id),
        (2, TASKS[2].id),
    ]
    signals = extract(trajectories, {}, SignalSettings(), 0).signals
    assert {one.task_id for one in signals if one.kind == "boundary"} == {TASKS[1].id, TASKS[2].id}
    assert {one.task_id for one in signals if one.kind == "forgetting"} == set()

    for draw in (3, 12, 13):
        for _ in range(2):
            keep(recorder, draw, False, draw % 5)
    train_elsewhere(run, 1)
    later = read_jsonl(run.iteration(1).trajectories, Trajectory)
    assert [one.task_id for one in later[::2]] == [TASKS[draw % 5].id for draw in (3, 9, 12, 13)]
    assert [one.step for one in later] == [3] * 4 + [4] * 4


@pytest.mark.slow
def test_a_step_of_faults_alone_is_no_round(tmp_path: Path) -> None:
    run = prime_run(tmp_path)
    write_weights(tmp_path / "prime" / "broadcasts" / "step_1", tmp_path / "starter")
    recorder = RolloutWriter(run.played_path, SETTINGS)
    for draw in range(4):
        for _ in range(2):
            keep(recorder, draw, None if draw < 2 else True)
    with pytest.raises(
        RoundFailure, match="step 1 has no rollout without an infrastructure error: EnvironmentFault: the worker died"
    ):
        train_elsewhere(run, 0)
    assert not run.iteration(0).round.exists()
    assert not run.iteration(0).trajectories.exists()


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"elsewhere": {"engine": "verl"}}, "no loss group_tokens"),
        ({"elsewhere": {"engine": "prime-rl"}}, "set output"),
        ({"elsewhere": {"engine": "verl", "output": "x"}, "loss": "dapo"}, "'output' is for engine: prime-rl"),
        ({"elsewhere": {}, "loss": "dapo", "expert": {}}, "trains without expert"),
        ({"elsewhere": {}, "loss": "dapo", "seal": {}}, "trains without seal"),
        ({"elsewhere": {}, "loss": "dapo", "max_trained_tokens": 9}, "trains without max_trained_tokens"),
    ],
)
def test_what_an_engine_would_ignore_is_refused(training: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainingSettings.model_validate(training)
