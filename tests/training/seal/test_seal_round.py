"""SEAL in real rounds: weighted advantages, and a record that a resumed round goes on from."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.late import Late
from support.small_policy import CLASSES, small_settings, small_tasks

from environments.bfcl.benchmark import BFCLEnvironment
from memory.records import Task
from memory.run import RunDirectory, append_jsonl, read_jsonl, write_jsonl
from memory.tasks import admit
from training.seal.seal import Seal, SealSettings, SealStep, first_state

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

K = 4
WEIGHTS = {"weights": {"dynamic": True}, "interface": None}


def two_turns() -> list[Task]:
    """Two tasks of two user turns: the second of each asks for nothing that a tool can do, or for something."""
    make, where = small_tasks()[2], small_tasks()[0]
    return [
        make.model_copy(
            update={"turns": (*make.turns, *where.turns), "reference": (*make.reference, *where.reference)}
        ),
        where.model_copy(update={"turns": (*where.turns, "Thanks."), "reference": (*where.reference, ())}),
    ]


@pytest.fixture(scope="module")
def weighed(starter: Path, tmp_path_factory: pytest.TempPathFactory):
    """One step of the real trainer: its batch, the advantages before they were weighted, and what was played."""
    from training.grpo import trainer as module
    from training.grpo import trl_run
    from training.grpo.group_rollouts import GroupRollouts
    from training.grpo.record import RoundPlan, Stopwatch
    from training.rollout.in_process import InProcessSampler
    from training.rollout.policy import load_policy

    torch.set_num_threads(1)
    seal_and_others = {"seal": WEIGHTS, "loss": "grpo", "length_cost": 0.1}
    settings = small_settings(starter, tasks_per_step=2, rollouts_per_task=K, **seal_and_others).training
    plan = RoundPlan(run_seed=15, iteration=0, first_step=1, steps=(tuple(two_turns()),))
    kept = SimpleNamespace(played=[], steps=[], batches=[], plain=[])
    environment = BFCLEnvironment(CLASSES)
    seal = Seal(settings.seal, environment, first_state(settings.seal), kept.steps.append)
    policy = load_policy(str(starter), "cpu")
    sampler = InProcessSampler(policy.model)
    rollouts = GroupRollouts(plan, policy, sampler, environment, settings, kept.played.extend, Stopwatch(), seal)
    real, bare = module.RoundTrainer._generate_and_score_completions, module.GRPOTrainer._generate_and_score_completions

    def watched(self, inputs):
        kept.batches.append({key: value.clone() for key, value in real(self, inputs).items()})
        return {key: value.clone() for key, value in kept.batches[-1].items()}

    def unweighed(self, inputs):
        batch = bare(self, inputs)
        kept.plain.append(batch["advantages"].clone())
        return batch

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module.RoundTrainer, "_generate_and_score_completions", watched)
        patched.setattr(module.GRPOTrainer, "_generate_and_score_completions", unweighed)
        callback = trl_run.RoundCallback(plan, Stopwatch(), lambda *_: None, lambda step: None)
        config = trl_run.trainer_config(settings, plan, tmp_path_factory.mktemp("weighed"), 100, on_cpu=True)
        trainer = trl_run.train(config, rollouts, callback, None)
    kept.batch, kept.advantages = kept.batches[0], kept.plain[0]
    kept.loss = trainer.state.log_history[0]["loss"]
    return kept


def test_the_loss_is_that_of_weighted_advantages(weighed: SimpleNamespace) -> None:
    """At the first step the ratio is 1 and the policy is the starter, so that the surrogate is all of the loss."""
    mask = weighed.batch["completion_mask"] * weighed.batch["tool_mask"]

    def loss(advantages):
        return float((-(advantages * mask).sum(1) / mask.sum(1).clamp(min=1)).mean())

    assert weighed.loss == pytest.approx(loss(weighed.batch["advantages"][:, None]), abs=1e-4)
    plain = loss(weighed.advantages[:, None])
    assert abs(weighed.loss - plain) > 1e-3, "the weights change no loss: the test shows nothing"


def test_the_weight_of_a_rollout_scales_its_advantage(weighed: SimpleNamespace) -> None:
    factors = [new / old for new, old in zip(weighed.batch["advantages"], weighed.advantages, strict=True) if old]
    assert len({round(float(one), 4) for one in factors}) > 1, "all weights are equal: the test shows nothing"
    assert all(0.5 <= one <= 2.0 for one in factors)


def test_a_round_leaves_its_steps_and_the_next_goes_on_from_them(starter: Path, tmp_path: Path) -> None:
    """The second round's first state is what the first one left; after a kill the record is cut to what is kept."""
    from training.grpo.ranks import ALONE
    from training.grpo.record import RoundSettings
    from training.grpo.round import _Round

    run = RunDirectory.create(tmp_path / "run", small_settings(starter, seal=WEIGHTS))
    admit(run, small_tasks())
    settings = run.settings(RoundSettings).training.seal
    assert settings == SealSettings.model_validate(WEIGHTS)
    seal = Seal(settings, BFCLEnvironment(CLASSES), first_state(settings), lambda step: None)
    seal.take_in(1, [])
    steps = [SealStep(step=number, profile={}, state=seal.state) for number in (1, 2, 3)]
    steps[1] = steps[1].model_copy(update={"state": first_state(settings)})

    round_ = _Round(run, 0, True, lambda progress: None, ALONE)
    assert round_._seal_state(settings) == first_state(settings)
    write_jsonl(round_.files.seal, steps)
    round_._cut(round_.files.seal, SealStep, 2)
    assert read_jsonl(round_.files.seal, SealStep) == steps[:2]
    assert round_._seal_state(settings) == steps[1].state
    append_jsonl(round_.files.seal, [steps[2]])
    assert _Round(run, 1, True, lambda progress: None, ALONE)._seal_state(settings) == seal.state
    round_._cut(round_.files.seal, SealStep, 0)
    assert not run.iteration(0).seal.exists()
