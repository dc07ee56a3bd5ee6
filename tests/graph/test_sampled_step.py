"""A step sampled again: its loss and gradient by hand are those that TRL recorded in another process."""

from __future__ import annotations

import pytest
from support.commands import run_process
from support.small_policy import make_policy, small_settings, small_tasks

from environments.base import InputError
from graph.report.lineage import History
from graph.sampled_step import SampledStep, group_table, losses_table, moves_table, sampled_step
from memory.run import RunDirectory
from memory.tasks import admit

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]


@pytest.fixture(scope="module", params=["grpo", "group_tokens"])
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> History:
    root = tmp_path_factory.mktemp("runs")
    make_policy(root / "starter", small_tasks())
    settings = small_settings(root / "starter", loss=request.param, kl=0.04, length_cost=0.1, steps=1)
    run = RunDirectory.create(root / "run", settings)
    admit(run, small_tasks())
    done = run_process("training.run_round", "--run", str(run.root), "--iteration", "0")
    assert done.returncode == 0, done.stderr
    return History.read(run)


@pytest.fixture(scope="module")
def step(history: History) -> SampledStep:
    return sampled_step(history)


def test_the_pure_functions_give_the_loss_and_the_gradient_that_the_trainer_recorded(
    history: History, step: SampledStep
) -> None:
    import torch

    from training.grpo.advantages import group_advantages, per_group
    from training.grpo.loss import Clip, grpo_loss

    training, old, tokens = step.training, step.logps.detach(), step.mask.sum(dim=1)
    size = training.rollouts_per_task
    assert tokens.tolist() == [one.sampled_tokens for one in step.rollouts]
    sampled = torch.tensor([value for row in step.rows for value in row.logprobs])
    scored = torch.cat([values[: len(row.logprobs)] for values, row in zip(old, step.rows, strict=True)])
    written = torch.tensor([bool(one) for row in step.rows for one in row.mask])
    torch.testing.assert_close(scored[written], sampled[written], atol=1e-4, rtol=0)
    rewards = torch.tensor([one.reward for one in step.rollouts])
    advantages, factors = group_advantages(rewards, size), per_group(tokens, tokens.sum(), size)
    normaliser = "grpo" if training.loss == "grpo" else "dapo"
    factor = advantages if training.loss == "grpo" else advantages * factors

    def loss(logps, rows=slice(None)):
        given = (logps, old[rows], old[rows], factor[rows], step.mask[rows])
        return grpo_loss(*given, clip=Clip(), kl=training.kl, normaliser=normaliser)

    by_hand, recorded = losses_table(history, step, {"by hand": loss(step.logps).loss}).rows
    assert recorded[0].startswith(training.loss)
    assert [float(one) for one in by_hand[1:]] == pytest.approx([float(one) for one in recorded[1:]], abs=2e-4)
    assert float(by_hand[2]) > 0.01
    group = step.first_mixed()
    shown = group_table(step, group, rewards, advantages, factors).rows
    assert [row[1] == "success" for row in shown] == [one.success for one in step.rollouts[group]]
    still, moved = moves_table(step, group, lambda logps: loss(logps, group), (0, 0.03)).rows
    assert still[1:4] == ("1.00 to 1.00", "0%", "0.000")
    assert float(moved[4]) < float(still[4])
    assert float(moved[5]) > 0 > float(moved[6]), "successes rise, failures fall"


def test_a_step_that_is_not_played_again_as_recorded_is_refused(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.rollout.episodes import EpisodeRequest

    drawn = EpisodeRequest.of_rollout
    monkeypatch.setattr(EpisodeRequest, "of_rollout", lambda task, seed, *place: drawn(task, seed + 1, *place))
    with pytest.raises(InputError, match="does not play the recorded rollouts of step 1 again"):
        sampled_step(history)
