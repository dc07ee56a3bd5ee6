"""What the rollouts of a step hand to the trainer, with a sampler that is not the in-process one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.late import Late
from support.scripted_sampler import ScriptedSampler
from support.small_policy import CLASSES, small_settings, small_tasks

from environments.bfcl.benchmark import BFCLEnvironment
from memory.records import StopReason
from training.grpo.record import RoundPlan, Stopwatch, round_record, step_record

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

K = 3
DONE = 4  # global steps before this one
PARTS = 2  # micro-batches


def step(starter: Path, *texts: str, **training: object) -> SimpleNamespace:
    """One step of two tasks, of which the first is solved by ``pwd``, in which every rollout writes ``texts``."""
    from training.grpo.group_rollouts import GroupRollouts
    from training.rollout.policy import load_policy

    torch.set_num_threads(1)
    policy, tasks = load_policy(str(starter), "cpu"), small_tasks()[:2]
    settings = small_settings(starter, tasks_per_step=2, rollouts_per_task=K, **training).training
    kept = SimpleNamespace(trajectories=[], policy=policy)
    kept.sampler = ScriptedSampler(lambda text: policy.tokenizer.encode(text, add_special_tokens=False), *texts)
    rollouts = GroupRollouts(
        RoundPlan(run_seed=3, iteration=0, first_step=DONE + 1, steps=(tasks,)),
        policy,
        kept.sampler,
        BFCLEnvironment(CLASSES),
        settings,
        kept.trajectories.extend,
        Stopwatch(),
    )
    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=DONE * settings.updates_per_step),
        args=SimpleNamespace(bf16=False, gradient_accumulation_steps=PARTS),
    )
    kept.batch = rollouts.step([task.id for task in tasks for _ in range(K)], trainer)
    return kept


@pytest.mark.slow
def test_the_sampler_is_told_the_weights_of_the_step_and_its_words_are_the_batch(starter: Path) -> None:
    played = step(starter, "A @pwd\n", "A end\n")
    assert played.sampler.versions == [DONE]
    columns = played.batch
    assert set(columns) == {"prompt_ids", "completion_ids", "logprobs", "env_mask", "reward"}
    assert {len(column) for column in columns.values()} == {2 * K}
    assert columns["reward"] == [1.0] * K + [0.0] * K
    for ids, logprobs, mask in zip(columns["completion_ids"], columns["logprobs"], columns["env_mask"], strict=True):
        written = [token for token, own in zip(ids, mask, strict=True) if own]
        assert played.policy.tokenizer.decode(written) == "A @pwd\nA end\n"
        assert [logprob for logprob, own in zip(logprobs, mask, strict=True) if own] == [-1.0] * len(written)
    assert [t.step for t in played.trajectories] == [DONE + 1] * 2 * K


def test_tokens_past_the_limit_are_played_and_not_trained_on(starter: Path) -> None:
    texts = ("A @ls\n", "A @pwd\n", "A end\n")
    whole = step(starter, *texts)
    sizes = list(map(len, whole.batch["completion_ids"]))
    most = min(sizes) - 3
    cut = step(starter, *texts, max_trained_tokens=most)
    assert [t.model_dump(exclude={"measured"}) for t in cut.trajectories] == [
        t.model_dump(exclude={"measured"}) for t in whole.trajectories
    ]
    for name in ("completion_ids", "logprobs", "env_mask"):
        assert cut.batch[name] == [row[:most] for row in whole.batch[name]]
    assert all(sum(mask) < sum(full) for mask, full in zip(cut.batch["env_mask"], whole.batch["env_mask"], strict=True))
    assert cut.batch["reward"] == whole.batch["reward"]
    assert step(starter, *texts, max_trained_tokens=max(sizes)).batch == whole.batch


def test_an_episode_stops_at_its_limit_of_messages_and_is_evaluated_by_what_was_done(starter: Path) -> None:
    cut = step(starter, "A @pwd\n", "A end\n", max_episode_steps=1).trajectories
    assert {turn.stop_reason for one in cut for turn in one.turns} == {StopReason.EPISODE_STEPS}
    assert [one.reward for one in cut] == [1.0] * K + [0.0] * K
    late = step(starter, "A @ls\n", "A @pwd\n", "A end\n", max_episode_steps=1).trajectories
    assert {one.reward for one in late[:K]} == {0.0}
    assert [len(one.turns[0].steps) for one in late] == [1] * 2 * K


def test_a_step_counts_as_one_whatever_its_updates(starter: Path) -> None:
    played = step(starter, "A end\n", updates_per_step=2)
    assert played.sampler.versions == [DONE]
    assert {t.step for t in played.trajectories} == {DONE + 1}


def test_why_turns_stopped_is_counted_by_step_and_by_round(starter: Path) -> None:
    ended = step(starter, "A end\n").trajectories
    cut = step(starter, "A @pwd\n", "A @pwd\n", max_actions=1).trajectories
    assert step_record(5, ended, {}).stop_reasons == {StopReason.END_OF_TURN: 2 * K}
    both = [*ended, *(one.model_copy(update={"step": 6}) for one in cut)]
    record = round_record(
        iteration=0, policy="p", tasks=2, trajectories=both, metrics=[], updates=1, measured=Stopwatch().before
    )
    assert [one.stop_reasons for one in record.steps] == [{StopReason.END_OF_TURN: 6}, {StopReason.ACTIONS: 6}]
    assert record.stop_reasons == {StopReason.END_OF_TURN: 6, StopReason.ACTIONS: 6}
    assert '"stop_reasons":{"end_of_turn":6,"actions":6}' in record.model_dump_json()


def test_a_group_without_a_difference_is_sampled_anew_and_all_of_it_is_kept(starter: Path) -> None:
    played = step(starter, "A @pwd\n", "A end\n", resamples=2)
    assert played.batch["reward"] == [1.0] * K + [0.0] * K
    assert played.sampler.versions == [DONE]
    samples = [(one.task_id, one.sample) for one in played.trajectories]
    assert len(set(samples)) == len(samples) == 3 * 2 * K
    assert sorted(sample for _, sample in samples) == sorted(2 * list(range(3 * K)))
    assert len({one.id for one in played.trajectories}) == len(samples)
    last = [one.sample for one in played.trajectories[: 2 * K]]
    assert last == 2 * list(range(2 * K, 3 * K)), "those that are learnt from come first"


def test_a_group_with_a_difference_is_sampled_once(starter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ScriptedSampler.run

    def varied(self, drivers, **given):
        run(self, drivers[:1], **given)
        self.texts = ("A end\n",)
        run(self, drivers[1:], **given)

    monkeypatch.setattr(ScriptedSampler, "run", varied)
    played = step(starter, "A @pwd\n", "A end\n", resamples=1)
    assert played.batch["reward"] == [1.0] + [0.0] * (2 * K - 1)
    assert [one.sample for one in played.trajectories] == [*range(K), *range(K, 2 * K), *range(K)]


def test_a_group_that_the_environment_failed_is_not_sampled_anew(
    starter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.grpo import group_rollouts

    monkeypatch.setattr(group_rollouts, "reward_of", lambda *_: None)
    assert len(step(starter, "A end\n", resamples=3).trajectories) == 2 * K
