"""References for groups without any success: which, in whose place, with which gradient, and the records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from support.chat_models import save_model
from support.late import Late
from support.played_round import SEED, K, play
from support.small_policy import CLASSES, TURNS, hand_logps, small_settings, small_tasks
from typer.testing import CliRunner

from environments.base import EnvironmentFault, Outcome, ToolCall
from environments.bfcl.environment import BFCLEnvironment
from memory.jsonl import record_id
from memory.records import Task, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import admit
from training.grpo.record import RoundRecord, StepMetrics
from training.run_round import app

pytestmark = pytest.mark.slow

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")
demonstrations = Late("training.grpo.off_policy_demonstrations")

WEIGHT = 0.7


@cache
def beyond() -> Task:
    """A task whose function the policy has never seen: no sampled rollout solves it."""
    (task, *_) = small_tasks()
    calls = (ToolCall(name="mv", arguments={"source": "plan.txt", "destination": "old.txt"}),)
    return task.model_copy(
        update={"id": "task-beyond", "turns": ('Rename "plan.txt" to "old.txt".',), "reference": (calls,)}
    )


@pytest.fixture(scope="module")
def played(starter: Path, tmp_path_factory: pytest.TempPathFactory):
    """One step of a task that is solved sometimes and one that never is, by how references are reference."""

    @cache
    def step(mode: str, micro_batch: int | None = None) -> SimpleNamespace:
        folder = tmp_path_factory.mktemp(mode)
        experimental = {"lend_reference": mode} | ({"lend_weight": WEIGHT} if mode == "supervised" else {})
        with pytest.MonkeyPatch.context() as monkeypatch:
            run = play(
                starter,
                folder,
                [[small_tasks()[2], beyond()]],
                BFCLEnvironment(CLASSES),
                monkeypatch,
                max_grad_norm=1e9,
                experimental=experimental,
                micro_batch=micro_batch,
                loss="grpo",
            )
        state = torch.load(folder / "checkpoint-1" / "optimizer.pt", weights_only=True)["state"]
        run.gradients = [state[number]["exp_avg"] / 0.1 for number in sorted(state)]
        return run

    return step


def gradient_of(starter: Path, terms: list[tuple[list[int], list[int], list[int], float]]) -> list:
    """Gradient of the sum of ``weight`` times the mean log-probability of the masked ids, by plain autograd."""
    from training.rollout.policy import load_policy

    model = load_policy(str(starter), "cpu").model
    total = torch.zeros(())
    for prompt, completion, mask, weight in terms:
        ids = torch.tensor([[*prompt, *completion]])
        logps = torch.log_softmax(model(input_ids=ids).logits[0, :-1] / 0.9, dim=-1)
        chosen = logps.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
        total = total + weight * chosen[torch.tensor(mask).bool()].mean()
    total.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    # The optimizer holds matrices, which decay, before vectors, which do not.
    return sorted(gradients, key=lambda gradient: gradient.dim() < 2)


def rows(batch, row: int) -> tuple[list[int], list[int], list[int]]:
    """Prompt, completion and mask of a row of TRL's batch."""
    length = int(batch["completion_mask"][row].sum())
    prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
    return prompt, batch["completion_ids"][row, :length].tolist(), batch["tool_mask"][row, :length].tolist()


def assert_close(ours: list, hand: list) -> None:
    scale = max(float(one.abs().max()) for one in hand)
    assert scale > 1e-4
    for one, other in zip(ours, hand, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * scale)


def test_without_demonstrations_a_group_of_failures_teaches_nothing(played) -> None:
    run = played("none")
    assert run.lent == []
    assert not any(t.success for t in run.trajectories[K:])
    assert run.batches[0]["advantages"][K:].abs().max() == 0


@pytest.mark.parametrize("mode", ["off_policy", "supervised"])
def test_what_the_policy_did_is_recorded_as_it_is_without_demonstrations(mode: str, played) -> None:
    def plain(trajectory: Trajectory) -> str:
        return trajectory.model_dump_json(exclude={"measured"})

    assert list(map(plain, played(mode).trajectories)) == list(map(plain, played("none").trajectories))
    assert not any(trajectory.lent for trajectory in played(mode).trajectories)


@pytest.mark.parametrize("mode", ["off_policy", "supervised"])
def test_the_reference_is_recorded_as_a_demonstration(mode: str, played) -> None:
    (reference,) = played(mode).lent
    assert (reference.lent, reference.task_id, reference.step, reference.sample) == (True, "task-beyond", 1, K - 1)
    assert reference.id == record_id("traj", "task-beyond", 1, K - 1, SEED, "lent")
    assert (reference.success, reference.reward, reference.sampled_tokens) == (True, 1.0, 0)
    assert reference.calls() == beyond().reference[0]
    assert json.loads(reference.model_dump_json())["lent"] is True


def test_an_off_policy_reference_stands_in_the_place_of_the_last_rollout(played, starter: Path) -> None:
    from training.rollout.policy import load_policy

    batch, without = played("off_policy").batches[0], played("none").batches[0]
    scale = (1 / K) ** 0.5 + 1e-4  # of one success among K
    expected = [-1 / K / scale] * (K - 1) + [(1 - 1 / K) / scale]
    assert batch["advantages"][K:].tolist() == pytest.approx(expected, abs=1e-4)
    torch.testing.assert_close(batch["advantages"][:K], without["advantages"][:K])
    assert not {"old_per_token_logps", "importance_sampling_ratio"} & set(batch), "the ratio is 1, whoever said it"
    for row in range(2 * K - 1):
        assert rows(batch, row) == rows(without, row)
    policy = load_policy(str(starter), "cpu")
    prompt, completion, mask = rows(batch, 2 * K - 1)
    said = policy.tokenizer.decode([token for token, written in zip(completion, mask, strict=True) if written])
    assert said == "A @mv @source=$1 @destination=$2\nA end\n"
    logps = hand_logps(policy.model, prompt, completion, 0.9)[torch.tensor(mask).bool()]
    sampled = batch["sampling_per_token_logps"][-1, : len(mask)][torch.tensor(mask).bool()]
    torch.testing.assert_close(sampled, logps.float(), atol=1e-4, rtol=0)
    assert logps.sum() < -20, "a reference that the policy could sample itself shows nothing"


def test_the_off_policy_gradient_clones_the_reference_by_its_advantage(played, starter: Path) -> None:
    """Less the step's gradient without demonstrations: advantages times the gradient of the log-probabilities.

    At the first step the policy is the KL term's reference, whose gradient is then 0.
    """
    run = played("off_policy")
    batch = run.batches[0]
    hand = gradient_of(
        starter, [(*rows(batch, row), -float(batch["advantages"][row]) / (2 * K)) for row in range(K, 2 * K)]
    )
    ours = [one - other for one, other in zip(run.gradients, played("none").gradients, strict=True)]
    assert_close(ours, hand)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_the_supervised_gradient_is_that_of_the_references_loss(micro_batch: int | None, played, starter: Path) -> None:
    run = played("supervised", micro_batch)
    torch.testing.assert_close(run.batches[0]["advantages"], played("none").batches[0]["advantages"])
    reference = rows(played("off_policy").batches[0], 2 * K - 1)
    groups = 2
    hand = gradient_of(starter, [(*reference, -WEIGHT / groups)])
    ours = [one - other for one, other in zip(run.gradients, played("none").gradients, strict=True)]
    assert_close(ours, hand)


def test_a_supervised_term_is_in_the_logged_loss(played) -> None:
    losses = [played(mode).trainer.state.log_history[0]["loss"] for mode in ("none", "supervised")]
    reference = rows(played("off_policy").batches[0], 2 * K - 1)
    logps = played("off_policy").batches[0]["sampling_per_token_logps"][-1, : len(reference[2])]
    nll = -float(logps[torch.tensor(reference[2]).bool()].mean())
    assert losses[1] - losses[0] == pytest.approx(WEIGHT * nll / 2, rel=1e-3)


def trajectory(task_id: str, result: bool | None, sample: int = 0) -> Trajectory:
    return Trajectory(
        id=f"{task_id}/{sample}",
        task_id=task_id,
        iteration=0,
        step=1,
        sample=sample,
        turns=(),
        outcome=None if result is None else Outcome(success=result, turns=()),
        reward=None if result is None else float(result),
        infrastructure_error="broken" if result is None else None,
    )


def test_which_groups_get_one_and_in_whose_place() -> None:
    origins = {"a": "seed", "b": "evolved", "c": "given", "d": "panel", "e": "official", "f": "seed", "g": "seed"}
    tasks = {name: beyond().model_copy(update={"id": name, "origin": origin}) for name, origin in origins.items()}
    results = {name: [False, False] for name in tasks} | {"f": [False, True], "g": [None, None], "b": [None, False]}
    groups = [[trajectory(name, one, i) for i, one in enumerate(made)] for name, made in results.items()]
    step = [one for group in groups for one in group]
    assert demonstrations.groups_to_demonstrate(step, tasks, 2, None, seed=1) == (0, 1, 2)
    assert demonstrations.place_in(groups[0]) == 1, "the last"
    assert demonstrations.place_in(groups[1]) == 0, "one that the environment failed costs the group nothing"
    chosen = {demonstrations.groups_to_demonstrate(step, tasks, 2, 1, seed) for seed in range(20)}
    assert chosen == {(0,), (1,), (2,)}


@given(
    results=st.lists(st.lists(st.sampled_from([True, False, None]), min_size=3, max_size=3), min_size=1, max_size=8),
    at_most=st.one_of(st.none(), st.integers(1, 8)),
    seed=st.integers(0, 1000),
)
def test_only_groups_with_a_failure_and_no_success_get_one(results, at_most, seed) -> None:
    names = [f"task-{number}" for number in range(len(results))]
    tasks = {name: beyond().model_copy(update={"id": name}) for name in names}
    step = [trajectory(name, one) for name, group in zip(names, results, strict=True) for one in group]
    chosen = demonstrations.groups_to_demonstrate(step, tasks, 3, at_most, seed)
    needy = [number for number, group in enumerate(results) if False in group and True not in group]
    assert set(chosen) <= set(needy)
    assert len(chosen) == min(len(needy), at_most or len(needy))
    assert list(chosen) == sorted(set(chosen))


def test_a_reference_that_the_environment_fails_is_kept_and_not_learnt_from(starter: Path, tmp_path: Path) -> None:
    class Failing(BFCLEnvironment):
        opened = 0

        def open(self, task):
            self.opened += 1
            if self.opened > K:
                raise EnvironmentFault("the worker died")
            return super().open(task)

    with pytest.MonkeyPatch.context() as monkeypatch:
        run = play(
            starter,
            tmp_path,
            [[beyond()]],
            Failing(CLASSES),
            monkeypatch,
            experimental={"lend_reference": "off_policy"},
        )
    (reference,) = run.lent
    assert reference.lent
    assert "the worker died" in reference.infrastructure_error
    assert run.batches[0]["advantages"].abs().max() == 0


KILLED = """
import os, signal
import training.grpo.round as round
from training.run_round import app
real, calls = round.append_jsonl, []
def interrupted(path, records):
    real(path, records)
    calls.append(path.name)
    if calls.count("lent.jsonl") == 3:
        os.kill(os.getpid(), signal.SIGKILL)
round.append_jsonl = interrupted
round.CHECKPOINT_STEPS = 1
app()
"""  # The command, killed in its third step, right after the references of that step are logged.


@pytest.fixture(scope="module")
def rounds(preloaded: None, starter: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The same round undisturbed, and killed in its last step and resumed."""
    runs = []
    for name in ("undisturbed", "disturbed"):
        settings = small_settings(starter, rollouts_per_task=K, experimental={"lend_reference": "off_policy"})
        run = RunDirectory.create(tmp_path_factory.mktemp("lent") / name, settings)
        second = beyond().model_copy(update={"id": "task-as-far"})
        admit(run, [beyond(), second])
        runs.append(run)
    argv = ["--run", str(runs[1].root), "--iteration", "0"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *argv], cwd=ROOT, check=False, timeout=120)
    logged = len(read_jsonl(runs[1].iteration(0) / "lent.jsonl", Trajectory))
    with (runs[1].iteration(0) / "lent.jsonl").open("a") as file:
        file.write('{"id": "half a li')
    results = [
        CliRunner().invoke(app, ["--run", str(runs[0].root), "--iteration", "0"]),
        CliRunner().invoke(app, [*argv, "--resume"]),
    ]
    return SimpleNamespace(runs=runs, killed=killed.returncode, logged=logged, results=results)


@pytest.mark.process
def test_demonstrations_survive_a_kill(rounds: SimpleNamespace) -> None:
    assert rounds.killed == -9
    assert [result.exit_code for result in rounds.results] == [0, 0], rounds.results
    assert rounds.logged == 6, "the killed step was logged: resuming must cut it off"
    undisturbed, disturbed = (
        [one.model_copy(update={"measured": None}) for one in read_jsonl(run.iteration(0) / "lent.jsonl", Trajectory)]
        for run in rounds.runs
    )
    assert disturbed == undisturbed
    assert [one.step for one in undisturbed] == [1, 1, 2, 2, 3, 3]


def test_no_statistic_of_the_round_counts_a_demonstration(rounds: SimpleNamespace) -> None:
    from training.signal_settings import SignalSettings
    from training.signals import extract

    folder = rounds.runs[0].iteration(0)
    record = read_json(folder / "round.json", RoundRecord)
    trajectories = read_jsonl(folder / "trajectories.jsonl", Trajectory)
    assert not any(one.lent for one in trajectories)
    assert [step.lent for step in record.steps] == [2, 2, 2]
    assert (record.lent, record.success, record.mixed_groups) == (6, 0.0, 0.0)
    assert all(step.rollouts == 2 * K for step in record.steps)
    assert [one.rollouts["lent"] for one in read_jsonl(folder / "metrics.jsonl", StepMetrics)] == [2, 2, 2]
    progress = [json.loads(line) for line in rounds.results[0].stdout.splitlines()]
    assert [line["success"] for line in progress] == [0.0, 0.0, 0.0]
    found = extract(trajectories, {}, SignalSettings(), 0)
    assert all(score.mean == 0.0 and score.n == K for score in found.scores)


def again_and_again(starter: Path, folder: Path, mode: str) -> SimpleNamespace:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return play(
            starter,
            folder,
            [[beyond()]] * 30,
            BFCLEnvironment(CLASSES),
            monkeypatch,
            experimental={"lend_reference": mode},
            learning_rate=3e-3,
        )


def test_an_off_policy_reference_becomes_likely(starter: Path, tmp_path: Path) -> None:
    run = again_and_again(starter, tmp_path, "off_policy")
    logps = [float(batch["sampling_per_token_logps"][-1].sum()) for batch in run.batches]
    assert all(later > earlier + 1 for earlier, later in zip(logps[:20:5], logps[5::5], strict=False))


def test_a_policy_takes_up_what_it_is_shown(starter: Path, tmp_path: Path) -> None:
    """What no group would ever raise is sampled after some supervised steps, and then no longer demonstrated."""
    run = again_and_again(starter, tmp_path, "supervised")
    solved = {t.step for t in run.trajectories if t.success}
    assert solved
    assert min(solved) > 5, "a reference that the policy could sample itself shows nothing"
    assert {t.step for t in run.lent} == set(range(1, 31)) - solved


@pytest.mark.parametrize("mode", ["none", "off_policy", "supervised"])
def test_a_chat_model_with_an_adapter_learns_from_references_too(mode: str, tmp_path: Path) -> None:
    """A random model, whose groups never succeed: without demonstrations its first step has no gradient at all.

    Tasks offer two tools alone: the documentation of all would make prompts of thousands of tokens.
    """
    tasks = [task.model_copy(update={"tools": ("pwd", "mv")}) for task in (beyond(), small_tasks()[0])]
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = play(
            save_model(tmp_path / "chat", "qwen3"),
            tmp_path / "out",
            [tasks],
            BFCLEnvironment(CLASSES),
            monkeypatch,
            policy={"lora": {"rank": 2}},
            max_tokens=20000,
            max_new_tokens=100,
            micro_batch=2,
            experimental={"lend_reference": mode},
        )
    assert not any(trajectory.success for trajectory in run.trajectories)
    assert [one.success for one in run.lent] == ([] if mode == "none" else [True, True])
    assert (run.trainer.state.log_history[0]["grad_norm"] > 1e-6) == (mode != "none")


def test_turns_of_the_starter_do_not_hold_the_task() -> None:
    assert all(call.name != "mv" for _, calls in TURNS.values() for call in calls)
