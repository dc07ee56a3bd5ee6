"""The trainer on real episodes: order and seeds of rollouts, masks, infrastructure errors, honest failures."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.late import Late
from support.played_round import SEED, K, play
from support.small_policy import CLASSES, hand_logps, small_tasks

from environments.base import Environment, EnvironmentFault, Episode, TaskSpec
from environments.bfcl.benchmark import BFCLEnvironment
from memory.jsonl import derive_seed, record_id
from memory.records import Trajectory
from training.grpo.record import RoundFailure, RoundPlan
from training.settings import TrainingSettings

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")


class Breaking:
    """The real environment, except that chosen openings (counted from 0) fail at once or at the first action."""

    name = "bfcl"

    def __init__(self, at_open: Callable[[int], bool], at_step: Callable[[int], bool]) -> None:
        self.real: Environment = BFCLEnvironment(CLASSES)
        self.at_open, self.at_step = at_open, at_step
        self.opened = 0
        self.tools, self.starts = self.real.tools, self.real.starts

    def open(self, task: TaskSpec) -> Episode:
        number, self.opened = self.opened, self.opened + 1
        if self.at_open(number):
            raise EnvironmentFault("the worker died")
        episode = self.real.open(task)
        if self.at_step(number):

            def fail(action: object) -> None:
                raise EnvironmentFault("the worker took 60 s")

            episode.step = fail
        return episode


@pytest.fixture(scope="module")
def broken(starter: Path, tmp_path_factory: pytest.TempPathFactory):
    """Two steps; the second draws one task twice. Of the first step's rollouts, one never opens, one breaks later."""
    make, read, where, *_ = (small_tasks()[i] for i in (2, 3, 0))
    environment = Breaking(lambda number: number == 1, lambda number: number == K + 2)
    with pytest.MonkeyPatch.context() as monkeypatch:
        steps = [[make, read], [where, where]]
        yield play(starter, tmp_path_factory.mktemp("broken"), steps, environment, monkeypatch, loss="grpo")


@pytest.mark.slow
def test_rollouts_follow_the_plan(broken: SimpleNamespace) -> None:
    drawn = [(t.step, t.task_id, t.sample) for t in broken.trajectories]
    assert drawn == [
        *((1, "task-make", sample) for sample in range(K)),
        *((1, "task-read", sample) for sample in range(K)),
        *((2, "task-where", sample) for sample in range(2 * K)),
    ]
    assert broken.reported == [1, 2]
    assert broken.saved == [2]
    for trajectory in broken.trajectories:
        assert trajectory.id == record_id("traj", trajectory.task_id, trajectory.step, trajectory.sample, SEED)
    assert len({trajectory.id for trajectory in broken.trajectories}) == 4 * K


def test_a_rollout_depends_on_task_step_and_sample_alone(broken: SimpleNamespace, starter: Path) -> None:
    from training.rollout.episodes import EpisodeLimits, EpisodeRequest, run_episodes
    from training.rollout.in_process import InProcessSampler
    from training.rollout.policy import load_policy

    task = small_tasks()[3]
    requests = [
        EpisodeRequest(task=task, seed=derive_seed(SEED, "rollout", task.id, 1, sample)) for sample in (3, 1, 0)
    ]
    settings = broken.settings
    limits = EpisodeLimits(
        max_new_tokens=settings.max_new_tokens, max_tokens=settings.max_tokens, max_actions=settings.max_actions
    )
    policy = load_policy(str(starter), "cpu")
    sampler = InProcessSampler(policy.model)
    results = run_episodes(policy, sampler, BFCLEnvironment(CLASSES), requests, limits, 0.9)
    trajectories = [t for t in broken.trajectories if t.task_id == task.id]
    assert [result.turns for result in results] == [trajectories[sample].turns for sample in (3, 1, 0)]


def test_infrastructure_errors_are_recorded_and_left_out(broken: SimpleNamespace) -> None:
    from training.grpo.advantages import group_advantages

    first = broken.trajectories[: 2 * K]
    failed = [i for i, t in enumerate(first) if t.infrastructure_error is not None]
    assert failed == [1, K + 2]
    assert "the worker died" in first[1].infrastructure_error
    assert first[1].sampled_tokens == 0
    assert "took 60 s" in first[K + 2].infrastructure_error
    assert first[K + 2].sampled_tokens > 0
    for i, trajectory in enumerate(first):
        assert (trajectory.outcome is None) == (trajectory.reward is None) == (i in failed)

    batch = broken.batches[0]
    for group in (range(K), range(K, 2 * K)):
        rewards = [first[i].reward for i in group if i not in failed]
        mean, deviation = torch.tensor(rewards).mean(), torch.tensor(rewards).std()
        for i in group:
            expected = 0.0 if i in failed else float((first[i].reward - mean) / (deviation + 1e-4))
            assert float(batch["advantages"][i]) == pytest.approx(expected, abs=1e-4)
    assert any(float(advantage) != 0 for advantage in batch["advantages"]), "no mixed group: the test shows nothing"
    pure = group_advantages(torch.tensor([math.nan if t.reward is None else t.reward for t in first]), K)
    torch.testing.assert_close(batch["advantages"][: 2 * K], pure, atol=1e-4, rtol=0)
    assert (batch["tool_mask"][failed] * batch["completion_mask"][failed]).sum() == 0


def test_tokens_are_trained_on_as_they_were_sampled(broken: SimpleNamespace, starter: Path) -> None:
    from training.rollout.policy import load_policy

    policy = load_policy(str(starter), "cpu")
    batch = broken.batches[0]
    sampled = (batch["completion_mask"] * batch["tool_mask"]).bool()
    scored = [i for i, t in enumerate(broken.trajectories[: 2 * K]) if t.infrastructure_error is None]
    for i in scored:
        length = int(batch["completion_mask"][i].sum())
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
        completion = batch["completion_ids"][i, :length].tolist()
        logps = hand_logps(policy.model, prompt, completion, broken.settings.temperature)
        mask = sampled[i, :length]
        assert int(mask.sum()) == broken.trajectories[i].sampled_tokens
        torch.testing.assert_close(
            batch["sampling_per_token_logps"][i, :length][mask], logps[mask].float(), atol=1e-4, rtol=0
        )
        observed = policy.tokenizer.decode(batch["completion_ids"][i, :length][~mask].tolist()).split("\n")
        steps = [step for turn in broken.trajectories[i].turns for step in turn.steps]
        assert all(line.startswith("O ") for line in observed if line), "only observations are masked"
        # The observation of the last action is not in the text when there was no room for another action.
        assert len(steps) - 1 <= sum(bool(line) for line in observed) <= len(steps)
    assert any(len(turn.steps) > 0 for i in scored for turn in broken.trajectories[i].turns)


@pytest.mark.parametrize("rows_together", [1, 3, 5, 8])
def test_scoring_like_lengths_together_and_equal_rows_once_changes_nothing(
    rows_together: int, broken: SimpleNamespace, monkeypatch
) -> None:
    from training.grpo.trainer import GRPOTrainer, RoundTrainer

    monkeypatch.setattr("training.grpo.trainer.ROWS_TOGETHER", rows_together)
    batch, model = broken.batches[0], broken.trainer.model
    lengths = batch["completion_mask"].sum(dim=1)
    assert len(lengths) == 2 * K
    assert len(set(lengths.tolist())) > 3, "rows of like length: the test shows nothing"
    rows = torch.tensor([*range(2 * K), 0, 2, 2])
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)[rows]
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)[rows]
    sampled = (batch["completion_mask"] * batch["tool_mask"]).float()[rows]
    sampled *= torch.arange(1, len(rows) + 1)[:, None]  # equal rows may well have other advantages
    found = []
    for trainer in (GRPOTrainer, RoundTrainer):
        logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
            broken.trainer, model, ids, attention, batch["completion_ids"].shape[1], compute_entropy=True
        )
        assert logps.shape == entropies.shape == (len(rows), batch["completion_ids"].shape[1])
        model.zero_grad()
        (logps * sampled).sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        found.append((logps.detach() * sampled, entropies.detach() * sampled, gradients))
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12))
def test_distinct_rows_stand_for_all(rows: list[tuple[int, int]]) -> None:
    from training.grpo.trainer import _distinct

    ids, attended = torch.tensor([[a, 7] for a, _ in rows]), torch.tensor([[1, b] for _, b in rows])
    kept, back = _distinct(ids, attended)
    assert torch.equal(ids[kept][back], ids)
    assert torch.equal(attended[kept][back], attended)
    assert [rows.index(row) for row in dict.fromkeys(rows)] == kept.tolist()


def test_seconds_add_up(broken: SimpleNamespace) -> None:
    assert min(broken.seconds.load, broken.seconds.rollouts, broken.seconds.optimisation, broken.seconds.save) > 0


def test_a_step_without_any_rollout_ends_the_round(starter: Path, tmp_path: Path, monkeypatch) -> None:
    environment = Breaking(lambda number: True, lambda number: False)
    with pytest.raises(RoundFailure, match="failed all 4 rollouts of step 1: EnvironmentFault: the worker died"):
        play(starter, tmp_path, [[small_tasks()[0]]], environment, monkeypatch)


def test_divergence_ends_the_round_before_it_is_saved(starter: Path, tmp_path: Path, monkeypatch) -> None:
    tasks = small_tasks()
    with pytest.raises(RoundFailure, match=r"lower training\.learning_rate"):
        play(
            starter,
            tmp_path,
            [[tasks[2], tasks[3]]] * 4,
            BFCLEnvironment(CLASSES),
            monkeypatch,
            learning_rate=1.0,
            kl=10.0,
        )
    assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.OutOfMemoryError("CUDA out of memory"),
        lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["of CUDA", "of the CPU"],
)
def test_out_of_memory_is_told_as_such(
    made: Callable[[], RuntimeError], starter: Path, tmp_path: Path, monkeypatch
) -> None:
    def exhausted(*_: object) -> tuple[Trajectory, ...]:
        raise made()

    monkeypatch.setattr("training.grpo.group_rollouts.run_episodes", exhausted)
    with pytest.raises(RoundFailure, match=r"out of memory at step 1: set training\.micro_batch"):
        play(starter, tmp_path, [[small_tasks()[0]]], BFCLEnvironment(CLASSES), monkeypatch)


@pytest.mark.parametrize(
    ("loss", "normaliser"),
    [("group_tokens", "dapo"), ("grpo", "grpo"), ("dapo", "dapo")],
)
def test_configuration(loss: str, normaliser: str, tmp_path: Path) -> None:
    from training.grpo.trl_run import trainer_config

    tasks = small_tasks()
    settings = TrainingSettings(loss=loss, kl=0.5, learning_rate=0.25, max_grad_norm=0.125, weight_decay=0.03)
    plan = RoundPlan(run_seed=1, iteration=2, first_step=21, steps=((tasks[0], tasks[1]),) * 7)
    config = trainer_config(settings, plan, tmp_path, 10, on_cpu=True)
    assert (config.loss_type, config.scale_rewards, config.beta) == (normaliser, "group", 0.5)
    assert (config.learning_rate, config.max_grad_norm) == (0.25, 0.125)
    assert (config.max_steps, config.per_device_train_batch_size, config.num_generations) == (27, 16, 8)
    assert config.lr_scheduler_type == "constant"
    assert (config.epsilon, config.epsilon_high, config.delta) == (0.2, 0.28, None)
    assert config.weight_decay == 0.03
    assert trainer_config(TrainingSettings(loss=loss), plan, tmp_path, 10, on_cpu=True).weight_decay == 0.0
    later = RoundPlan(run_seed=1, iteration=3, first_step=28, steps=plan.steps)
    assert trainer_config(settings, later, tmp_path, 10, on_cpu=True).seed != config.seed


def test_the_trainer_is_told_updates_where_settings_count_steps(tmp_path: Path) -> None:
    from training.grpo.trainer import steps_done
    from training.grpo.trl_run import trainer_config

    settings = TrainingSettings(
        tasks_per_step=8, updates_per_step=4, clip_low=0.1, clip_high=0.5, dual_clip=9.0, micro_batch=4
    )
    tasks = small_tasks()
    plan = RoundPlan(run_seed=1, iteration=2, first_step=21, steps=((tasks[0],) * 8,) * 7)
    config = trainer_config(settings, plan, tmp_path, 10, on_cpu=True)
    assert (config.epsilon, config.epsilon_high, config.delta) == (0.1, 0.5, 9.0)
    assert (config.max_steps, config.save_steps) == (4 * 27, 4 * 10)
    assert (config.gradient_accumulation_steps, config.steps_per_generation) == (2 * 8 // 4, 8 * 8 // 4)
    assert config.generation_batch_size == 8 * 8
    assert [steps_done(config, updates) for updates in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
