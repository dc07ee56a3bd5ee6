"""Rounds as processes: what the second takes over from the first, and what survives being killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import ROOT
from support.small_policy import CLASSES, hand_logps, small_settings, small_tasks
from typer.testing import CliRunner

from environments.base import InputError
from environments.bfcl.benchmark import BFCLEnvironment
from memory.jsonl import derive_seed
from memory.processes import ORPHANED, PARENT_PIPE, exclusive, run_child
from memory.records import Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import admit
from training.grpo.checkpoints import (
    RoundCheckpoint,
    complete_checkpoint,
    discard_after,
    discard_superseded,
    newest_checkpoint,
)
from training.grpo.record import RoundProgress, RoundRecord, RoundSeconds, StepMetrics
from training.run_round import app

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]

INTERRUPTED = """
import os, signal, time
import training.grpo.round as round
from training.run_round import app
real, calls = round.append_jsonl, []
def interrupted(path, records):
    length = real(path, records)
    if path.name == "trajectories.jsonl":
        calls.append(path)
    if len(calls) == {step}:
        {interruption}
    return length
round.append_jsonl = interrupted
round.CHECKPOINT_STEPS = {checkpoint_steps}
app()
"""  # The command, interrupted right after the rollouts of a step are logged and before its update.
STEPS = 3
K = 9


def new_run(root: Path, policy: Path, **training: object) -> RunDirectory:
    run = RunDirectory.create(root, small_settings(policy, **training))
    admit(run, small_tasks())
    return run


def train(run: RunDirectory, iteration: int, *flags: str) -> list[RoundProgress]:
    """Run an iteration's round in a child process; the lines of its stdout."""
    lines: list[str] = []
    argv = [sys.executable, "-m", "training.run_round", "--run", str(run.root), "--iteration", str(iteration), *flags]
    log, threads = run.root / "round.log", {"OMP_NUM_THREADS": "1"}
    asyncio.run(run_child(argv, log_path=log, deadline=120, on_line=lines.append, env=threads))
    return [RoundProgress.model_validate_json(line) for line in lines]


@pytest.fixture(scope="module")
def two_rounds(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run after two rounds, each a process of its own."""
    run = new_run(tmp_path_factory.mktemp("runs") / "undisturbed", starter)
    progress = [train(run, 0), train(run, 1)]
    records = [read_json(run.iteration(n) / "round.json", RoundRecord) for n in (0, 1)]
    trajectories = [read_jsonl(run.iteration(n) / "trajectories.jsonl", Trajectory) for n in (0, 1)]
    return SimpleNamespace(run=run, progress=progress, records=records, trajectories=trajectories, starter=starter)


def test_steps_continue_and_are_reported(two_rounds: SimpleNamespace) -> None:
    first, second = two_rounds.records
    assert (first.first_step, first.last_step, first.policy) == (1, STEPS, f"policy/checkpoint-{STEPS}")
    assert (second.first_step, second.last_step) == (STEPS + 1, 2 * STEPS)
    assert [step.step for step in second.steps] == [4, 5, 6]
    for record, progress in zip(two_rounds.records, two_rounds.progress, strict=True):
        assert [(line.step, line.of) for line in progress] == [(1, STEPS), (2, STEPS), (3, STEPS)]
        assert [line.success for line in progress] == [step.success for step in record.steps]
        assert [line.reward for line in progress] == [step.reward for step in record.steps]
        assert min(record.measured.model_dump().values()) > 0
    state = json.loads((two_rounds.run.root / second.policy / "trainer_state.json").read_text())
    assert state["global_step"] == 2 * STEPS


def test_the_numbers_of_each_step_are_kept_with_those_of_trl(two_rounds: SimpleNamespace) -> None:
    for iteration, record in enumerate(two_rounds.records):
        kept = read_jsonl(two_rounds.run.iteration(iteration) / "metrics.jsonl", StepMetrics)
        assert [one.step for one in kept] == [step.step for step in record.steps]
        for one, step in zip(kept, record.steps, strict=True):
            assert one.trainer["kl"] == pytest.approx(step.kl, abs=1e-12)
            assert one.trainer["loss"] == pytest.approx(step.loss, abs=1e-12)
            assert {"entropy", "learning_rate", "completions/mean_length", "frac_reward_zero_std"} <= one.trainer.keys()
            assert one.measured["step_time"] > 0
            assert step.measured is not None
            assert one.measured["sampling/sampling_logp_difference/mean"] == step.measured.mean
            assert 0 < step.measured.mean < step.measured.largest < 1e-4, "in float32 the sampler is the trainer"
            assert one.rollouts["success"] == step.success
            assert one.rollouts["stop_reasons/end_of_turn"] == step.stop_reasons["end_of_turn"]


def test_adam_is_carried_from_round_to_round(two_rounds: SimpleNamespace) -> None:
    import torch

    states = [
        torch.load(two_rounds.run.root / record.policy / "optimizer.pt", weights_only=True)["state"]
        for record in two_rounds.records
    ]
    for rounds, state in enumerate(states, start=1):
        assert state
        assert {int(entry["step"]) for entry in state.values()} == {rounds * STEPS}
    assert any(float(entry["exp_avg"].abs().max()) > 0 for entry in states[0].values())


def test_kl_of_the_second_round_is_to_the_starter(two_rounds: SimpleNamespace) -> None:
    """Sample the round's first step again from the first round's checkpoint, and compute the estimate by hand."""
    import torch

    from training.rollout.episodes import EpisodeLimits, EpisodeRequest, run_episodes
    from training.rollout.in_process import InProcessSampler
    from training.rollout.policy import load_policy

    torch.set_num_threads(1)
    settings = small_settings(two_rounds.starter).training
    starter = load_policy(str(two_rounds.starter), "cpu")
    policy = load_policy(str(two_rounds.run.root / two_rounds.records[0].policy), "cpu")
    played = [t for t in two_rounds.trajectories[1] if t.step == STEPS + 1]
    by_id = {task.id: task for task in small_tasks()}
    requests = [
        EpisodeRequest(task=by_id[t.task_id], seed=derive_seed(3, "rollout", t.task_id, t.step, t.sample))
        for t in played
    ]
    limits = EpisodeLimits(max_new_tokens=16, max_tokens=120, max_actions=3)
    sampler = InProcessSampler(policy.model)
    results = run_episodes(policy, sampler, BFCLEnvironment(CLASSES), requests, limits, settings.temperature)
    assert [result.turns for result in results] == [t.turns for t in played]
    total, tokens = 0.0, 0
    for result in results:
        logps = [
            hand_logps(p.model, result.prompt_ids, result.completion_ids, settings.temperature)
            for p in (starter, policy)
        ]
        difference = (logps[0] - logps[1])[torch.tensor(result.mask).bool()]
        total += float((torch.exp(difference) - difference - 1).sum())
        tokens += len(difference)
    kl = two_rounds.records[1].steps[0].kl
    assert kl > 1e-3, "the first round must have moved the policy"
    assert kl == pytest.approx(total / tokens, rel=1e-3)
    assert two_rounds.records[0].steps[0].kl == pytest.approx(0.0, abs=1e-6)


class Started:
    """An interrupted round in a process that watches a pipe of ours."""

    def __init__(self, run: RunDirectory, step: int, interruption: str, checkpoint_steps: int, *flags: str) -> None:
        watched, self.pipe = os.pipe()
        code = INTERRUPTED.format(step=step, interruption=interruption, checkpoint_steps=checkpoint_steps)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "--run", str(run.root), "--iteration", "0", *flags],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(watched,),
            env={**os.environ, PARENT_PIPE: str(watched), "OMP_NUM_THREADS": "1"},
        )
        os.close(watched)

    def line(self) -> RoundProgress:
        return RoundProgress.model_validate_json(self.process.stdout.readline())

    def end(self) -> int:
        """What the end of its parent does to it."""
        os.close(self.pipe)
        self.process.stdout.close()
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def disturbed(two_rounds: SimpleNamespace, starter: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The first round again: orphaned in step 2, before any checkpoint; killed in step 3, after two; then resumed."""
    run = new_run(tmp_path_factory.mktemp("runs") / "disturbed", starter)
    log = run.iteration(0) / "trajectories.jsonl"

    child = Started(run, 2, "time.sleep(600)", 10)
    child.line()
    with pytest.raises(InputError) as locked, exclusive(run.round_lock_path, "the training"):
        pass
    orphaned = child.end()
    with log.open("a") as file:
        file.write('{"id": "half a li')

    child = Started(run, 3, "os.kill(os.getpid(), signal.SIGKILL)", 1, "--resume")
    lines = [child.line(), child.line()]
    killed = child.process.wait(timeout=60)
    child.end()
    logged = len(read_jsonl(log, Trajectory))
    with log.open("a") as file:
        file.write('{"id": "half a li')
    unfinished = run.policy_path / "checkpoint-77"
    shutil.copytree(run.policy_path / "checkpoint-2", unfinished)
    (unfinished / "round_checkpoint.json").unlink()

    return SimpleNamespace(
        run=run,
        locked=str(locked.value),
        orphaned=orphaned,
        restarted=lines,
        killed=killed,
        logged=logged,
        mark=newest_checkpoint(run.policy_path, 0),
        progress=train(run, 0, "--resume"),
        again=train(run, 0, "--resume"),
    )


def test_a_round_ends_with_its_parent_and_holds_its_lock(disturbed: SimpleNamespace) -> None:
    assert disturbed.orphaned == ORPHANED
    assert "uses the training: wait until it ends" in disturbed.locked


def test_a_killed_round_goes_on_from_its_checkpoint(disturbed: SimpleNamespace) -> None:
    assert [line.step for line in disturbed.restarted] == [1, 2], "without a checkpoint the round starts over"
    assert disturbed.killed == -signal.SIGKILL
    assert disturbed.mark.step == 2
    assert disturbed.logged == STEPS * 2 * K, "the killed step was logged: resuming must cut it off"
    assert [line.step for line in disturbed.progress] == [3]


def without_measures(value):
    if isinstance(value, dict):
        return {key: without_measures(item) for key, item in value.items() if key != "measured"}
    return [without_measures(item) for item in value] if isinstance(value, list) else value


def test_a_disturbed_round_leaves_the_same_records_and_policy(
    disturbed: SimpleNamespace, two_rounds: SimpleNamespace
) -> None:
    from safetensors.torch import load_file

    def rows(run: RunDirectory):
        files = (run.iteration(0) / "trajectories.jsonl", run.iteration(0) / "metrics.jsonl")
        return [without_measures(json.loads(line)) for file in files for line in file.read_text().splitlines()]

    assert rows(disturbed.run) == rows(two_rounds.run)
    records = [json.loads((d.run.iteration(0) / "round.json").read_text()) for d in (disturbed, two_rounds)]
    assert without_measures(records[0]) == without_measures(records[1])
    weights = [
        load_file(d.run.policy_path / f"checkpoint-{STEPS}" / "model.safetensors") for d in (disturbed, two_rounds)
    ]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[1])
    assert not (disturbed.run.policy_path / "checkpoint-77").exists()


def test_a_finished_round_is_not_done_again(disturbed: SimpleNamespace) -> None:
    assert disturbed.again == []
    log = (disturbed.run.root / "round.log").read_text()
    assert log.rstrip().endswith("iteration 0 already has its round: nothing to do")


def command(run: Path, iteration: int, *flags: str):
    return CliRunner().invoke(app, ["--run", str(run), "--iteration", str(iteration), *flags])


def test_users_mistakes_are_told_in_one_sentence(disturbed: SimpleNamespace, starter: Path, tmp_path: Path) -> None:
    fresh = new_run(tmp_path / "fresh", starter)
    begun = new_run(tmp_path / "begun", starter)
    begun.iteration(0).root.mkdir(parents=True)
    (begun.iteration(0) / "trajectories.jsonl").touch()
    taskless = RunDirectory.create(tmp_path / "taskless", small_settings(starter))
    lost = new_run(tmp_path / "lost", tmp_path / "no_such_policy")
    for root, iteration, sentence in (
        (tmp_path / "nowhere", 0, "has no settings.yaml"),
        (taskless.root, 0, "make D_0 with"),
        (fresh.root, 1, "000/round.json is missing"),
        (begun.root, 0, "add --resume"),
        (disturbed.run.root, 0, "exists, iteration 0 has its round"),
        (lost.root, 0, "no_such_policy does not exist"),
    ):
        result = command(root, iteration)
        assert (result.exit_code, result.stdout) == (2, ""), sentence
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1, result.stderr


def test_a_missing_policy_of_the_round_before_is_named(two_rounds: SimpleNamespace, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(two_rounds.run.root, copy)
    shutil.rmtree(copy / "iterations" / "001")
    shutil.rmtree(copy / "policy")
    result = command(copy, 1)
    assert result.exit_code == 2
    assert f"policy/checkpoint-{STEPS}, the policy of the round before, is missing" in result.stderr


def test_a_failure_is_told_with_its_cause(starter: Path, tmp_path: Path) -> None:
    run = new_run(tmp_path / "diverging", starter, learning_rate=1.0, max_grad_norm=1e12)
    result = command(run.root, 0)
    assert result.exit_code == 1
    assert re.search(r"^error: \w+ is nan at step \d: lower training.learning_rate$", result.stderr, re.M)
    assert not (run.iteration(0) / "round.json").exists()


def marked(policies: Path, *marks: tuple[int, int, int | None]) -> None:
    """Folders of (iteration, step, last step of the round; None: incomplete)."""
    for iteration, step, last in marks:
        folder = policies / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        if last is not None:
            mark = RoundCheckpoint(iteration=iteration, step=step, last_step=last, log_bytes=0, seconds=RoundSeconds())
            complete_checkpoint(folder, mark, None)


def left(policies: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in policies.glob("checkpoint-*"))


def test_which_checkpoints_stay(tmp_path: Path) -> None:
    marked(tmp_path, (0, 5, 5), (1, 8, 10), (1, 10, 10), (2, 15, 15), (3, 18, 20), (3, 19, 20), (3, 20, None))
    assert newest_checkpoint(tmp_path, 3).step == 19
    assert newest_checkpoint(tmp_path, 4) is None
    discard_after(tmp_path, 19)
    assert left(tmp_path) == [5, 8, 10, 15, 18, 19]
    discard_superseded(tmp_path, 19)
    assert left(tmp_path) == [5, 10, 15, 19]
    marked(tmp_path, (3, 20, 20))
    discard_superseded(tmp_path, 20)
    assert left(tmp_path) == [10, 15, 20]
