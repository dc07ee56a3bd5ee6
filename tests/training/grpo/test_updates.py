"""Several updates per step: what is split, when the clip acts, and that everything else counts steps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.late import Late
from support.played_round import K, play
from support.small_policy import CLASSES, small_settings, small_tasks

from environments.bfcl.benchmark import BFCLEnvironment
from memory.records import Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import admit
from training.grpo.ranks import Ranks
from training.grpo.record import RoundProgress, RoundRecord, StepMetrics

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

pytestmark = pytest.mark.slow

UPDATES = 2
RATE = 1e-3
SETTINGS = {"updates_per_step": UPDATES, "learning_rate": RATE, "dual_clip": 3.0, "length_cost": 0.1}


def steps() -> list[list]:
    where, what, make, read, enter = small_tasks()
    return [[make, read, where, enter], [what, make, enter, read]]


def weights(folder: Path, step: int) -> dict:
    from safetensors.torch import load_file

    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


@pytest.fixture(scope="module")
def played(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Two steps of four groups, two updates each, and what each update learnt from."""
    from training.grpo import trainer as module

    folder, updates = tmp_path_factory.mktemp("updates"), []
    real = module.RoundTrainer.compute_loss

    def watched(self, model, inputs, *args, **kwargs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            logps, _, _ = self._get_per_token_logps_and_entropies(
                model, ids, attended, inputs["completion_ids"].shape[1]
            )
        updates.append({"logps": logps, **{name: value.clone() for name, value in inputs.items()}})
        loss = real(self, model, inputs, *args, **kwargs)
        updates[-1]["loss"] = loss.detach()
        return loss

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module.RoundTrainer, "compute_loss", watched)
        run = play(starter, folder, steps(), BFCLEnvironment(CLASSES), patched, checkpoint_steps=1, **SETTINGS)
    run.folder, run.updates = folder, updates
    return run


def test_rollouts_reports_and_checkpoints_count_steps(played: SimpleNamespace) -> None:
    drawn = [(t.step, t.task_id, t.sample) for t in played.trajectories]
    assert drawn == [(s, task.id, k) for s, step in enumerate(steps(), start=1) for task in step for k in range(K)]
    assert played.reported == played.saved == [1, 2]
    assert sorted(path.name for path in played.folder.iterdir()) == ["checkpoint-1", "checkpoint-2"]
    states = [json.loads((played.folder / f"checkpoint-{n}" / "trainer_state.json").read_text()) for n in (1, 2)]
    assert [state["global_step"] for state in states] == [UPDATES, 2 * UPDATES]
    assert len(played.batches) == 2, "rollouts of a step are drawn at once"
    assert len(played.updates) == 2 * UPDATES


def test_each_update_has_whole_groups_in_a_drawn_order(played: SimpleNamespace) -> None:
    for step, batch in enumerate(played.batches):
        rows = [tuple(row) for row in torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1).tolist()]
        groups = [sorted(rows[start : start + K]) for start in range(0, len(rows), K)]
        learnt = []
        for update in played.updates[step * UPDATES : (step + 1) * UPDATES]:
            own = [tuple(row) for row in torch.cat([update["prompt_ids"], update["completion_ids"]], dim=1).tolist()]
            assert len(own) == 2 * K
            learnt += [groups.index(sorted(own[start : start + K])) for start in (0, K)]
        assert learnt == [0, 1, 2, 3], "each group is in one update, in the order of play"
    drawn, plan = played.trainer.rollouts.prompts(), [task.id for step in steps() for task in step]
    assert drawn != plan
    assert [sorted(drawn[start : start + 4]) for start in (0, 4)] == [sorted(plan[:4]), sorted(plan[4:])]


def test_the_ratio_is_to_the_policy_that_sampled(played: SimpleNamespace) -> None:
    moved = []
    for number, update in enumerate(played.updates):
        sampled = (update["completion_mask"] * update["tool_mask"]).bool()
        # The sampler's own log-probabilities are those of the policy that sampled, of logits at the same temperature.
        torch.testing.assert_close(
            update["old_per_token_logps"][sampled], update["sampling_per_token_logps"][sampled], atol=1e-4, rtol=0
        )
        difference = (update["logps"] - update["old_per_token_logps"])[sampled].abs().max()
        assert (difference < 1e-4) == (number % UPDATES == 0), "the first update of a step is of the policy itself"
        moved.append(float(difference))
    assert min(moved[1::UPDATES]) > 1e-3


def test_the_gap_of_an_update_is_over_its_written_tokens_to_the_policy_before_it(
    played: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler whose log-probabilities are 0.5 too low, and 2 on one token; what is not written does not count."""
    trainer, update = played.trainer, dict(played.updates[1])
    update.pop("logps")
    written = (update["completion_mask"] * update["tool_mask"]).bool()
    row, column = written.nonzero()[0]
    sampled = update["old_per_token_logps"] - 0.5
    sampled[row, column] -= 1.5
    update["sampling_per_token_logps"] = torch.where(written, sampled, 99.0)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    monkeypatch.setattr(trainer, "_gaps", [])
    trainer.compute_loss(trainer.model, update)
    logs: dict[str, float] = {}
    with monkeypatch.context() as alone:
        alone.setattr("transformers.Trainer.log", lambda *_: None)
        trainer.log(logs)
    tokens = int(written.sum())
    assert logs["sampling/sampling_logp_difference/mean"] == pytest.approx(0.5 + 1.5 / tokens, rel=1e-5)
    assert logs["sampling/sampling_logp_difference/max"] == pytest.approx(2.0, rel=1e-5)


def test_the_log_of_a_step_is_the_mean_over_its_updates(played: SimpleNamespace) -> None:
    logs = [log for log in played.trainer.state.log_history if "loss" in log]
    assert [log["step"] for log in logs] == [UPDATES, 2 * UPDATES]
    for step, log in enumerate(logs):
        losses = [float(one["loss"]) for one in played.updates[step * UPDATES : (step + 1) * UPDATES]]
        assert abs(losses[0] - losses[1]) > 1e-3, "a log of the last update alone would not show"
        assert log["loss"] == pytest.approx(sum(losses) / UPDATES, abs=1e-4)


def one_token_rows(played: SimpleNamespace, monkeypatch, ratios: list[float], advantages: list[float]) -> list[float]:
    """Gradients of TRL's loss in the log-probabilities of rows of one token, with these ratios to the old policy."""
    trainer, rows = played.trainer, len(ratios)
    logps = torch.full((rows, 1), -1.0).requires_grad_()
    scored = (logps, torch.zeros(rows, 1), None)
    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: scored)
    monkeypatch.setattr(trainer, "beta", 0.0)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    ones = torch.ones(rows, 1, dtype=torch.long)
    batch = {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": ones,
        "completion_mask": ones,
        "tool_mask": ones,
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(float(rows)),
        "old_per_token_logps": logps.detach() - torch.tensor(ratios).log()[:, None],
        "sampling_per_token_logps": logps.detach(),
    }
    trainer.compute_loss(trainer.model, batch).backward()
    return logps.grad[:, 0].tolist()


def test_beyond_the_clip_a_token_has_no_gradient(played: SimpleNamespace, monkeypatch) -> None:
    """1 - 0.20 .. 1 + 0.28, each on the side that the advantage pushes to; 3.0 where it is negative."""
    ratios = [0.79, 0.79, 0.81, 1.27, 1.27, 1.29, 1.29, 2.9, 3.1]
    advantages = [1.0, -1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0]
    acts = [gradient != 0 for gradient in one_token_rows(played, monkeypatch, ratios, advantages)]
    assert acts == [True, False, True, True, True, False, True, True, False]


def test_the_loss_has_one_normaliser_per_group(played: SimpleNamespace, monkeypatch) -> None:
    """Eq. 1 of the paper, computed by hand from the rewards of the trajectories, for each update of the first step."""
    trainer, size = played.trainer, K
    monkeypatch.setattr(trainer, "beta", 0.0)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = played.batches[0]
    order = [row // K for row in trainer.rollouts._rows(1)[0][::K]]
    rewards = torch.tensor([t.reward for t in played.trajectories[: 4 * K]]).reshape(-1, size)[order]
    plain = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    rows = [tuple(row) for row in torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1).tolist()]
    for update in played.updates[:UPDATES]:
        mask = (update["completion_mask"] * update["tool_mask"]).float()
        assert len(set(mask.sum(1).tolist())) > 1, "rollouts of one length: the normaliser would not show"
        draw = torch.Generator().manual_seed(1)
        logps = update["old_per_token_logps"] + 0.5 * torch.randn(mask.shape, generator=draw)
        scored = (logps, torch.zeros(mask.shape), None)
        monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", lambda *_, scored=scored, **__: scored)
        ids = torch.cat([update["prompt_ids"], update["completion_ids"]], dim=1)
        own = plain[[rows.index(tuple(row)) for row in ids.tolist()]]
        ratio = (logps - update["old_per_token_logps"]).exp()
        bounded = torch.where(own[:, None] < 0, ratio.clamp(max=3.0), ratio)
        surrogate = torch.min(bounded * own[:, None], ratio.clamp(0.8, 1.28) * own[:, None])
        by_group = (surrogate * mask).reshape(-1, size * mask.shape[1]).sum(1) / mask.reshape(
            -1, size * mask.shape[1]
        ).sum(1)
        fields = {name: value for name, value in update.items() if name != "logps"}
        assert float(by_group.abs().sum()) > 0.01, "no group with a signal: the test shows nothing"
        assert float(trainer.compute_loss(trainer.model, fields)) == pytest.approx(-float(by_group.mean()), rel=1e-4)


def test_the_loss_is_that_of_the_pure_functions(played: SimpleNamespace, monkeypatch) -> None:
    """Rewards to loss and gradient: ``group_advantages``, ``per_group``, ``grpo_loss`` with a KL term; two updates."""
    from training.grpo.advantages import group_advantages, per_group
    from training.grpo.loss import Clip, grpo_loss

    trainer = played.trainer
    monkeypatch.setattr(trainer, "beta", 0.5)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    updates = played.updates[:UPDATES]
    order = trainer.rollouts._rows(1)[0]
    rewards = torch.tensor([played.trajectories[row].reward for row in order])
    masks = [update["completion_mask"] * update["tool_mask"] for update in updates]
    written = torch.cat([mask.sum(1) for mask in masks])
    scaled = group_advantages(rewards, K) * per_group(written, written.sum(), K)
    draw = torch.Generator().manual_seed(2)
    for update, mask, own in zip(updates, masks, scaled.split(2 * K), strict=True):
        old = update["old_per_token_logps"]
        logps, reference = (old + 0.5 * torch.randn(old.shape, generator=draw) for _ in range(2))
        scored = (logps.requires_grad_(), torch.zeros(old.shape), None)
        monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", lambda *_, scored=scored, **__: scored)
        fields = {name: value for name, value in update.items() if name != "logps"} | {"ref_per_token_logps": reference}
        theirs = trainer.compute_loss(trainer.model, fields)
        divisor = float(written.sum()) / UPDATES
        ours = grpo_loss(logps, old, reference, own, mask, clip=Clip(dual=3.0), kl=0.5, divisor=divisor)
        assert float(mask.sum()) != divisor, "updates of as many tokens: the divisor would not show"
        assert ours.kl > 0.1
        assert 0 < ours.clipped < 1
        torch.testing.assert_close(ours.loss, theirs, rtol=1e-4, atol=1e-6)
        gradient, (expected,) = torch.autograd.grad(ours.loss, logps)[0], torch.autograd.grad(theirs, logps)
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("settled", ["some", "all"])
def test_rows_without_an_advantage_are_scored_without_a_gradient(
    played: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, settled: str
) -> None:
    """The loss, the entropy that TRL logs and the gradient are those of scoring every row alike."""
    trainer, batch = played.trainer, dict(played.batches[0])
    batch["advantages"] = torch.linspace(-1, 1, len(batch["advantages"]))
    batch["advantages"][: None if settled == "all" else -K] = 0.0
    monkeypatch.setattr(trainer, "beta", 0.0)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    scored, found = [], []

    def count(*_: object) -> None:
        scored.append(torch.is_grad_enabled())

    handle = trainer.model.register_forward_hook(count)
    for apart in (True, False):
        if not apart:
            monkeypatch.setattr(trainer.rollouts, "ranks", Ranks(count=2))
        scored.clear()
        trainer._metrics["train"]["entropy"].clear()
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        gradients = [one.grad.clone() for one in trainer.model.parameters()]
        found.append((float(loss.detach()), trainer._metrics["train"]["entropy"][-1], gradients, tuple(scored)))
    handle.remove()
    (loss, entropy, gradients, learnt), (plain_loss, plain_entropy, plain, every) = found
    assert loss == pytest.approx(plain_loss, abs=1e-6)
    assert entropy == pytest.approx(plain_entropy, rel=1e-4)
    torch.testing.assert_close(gradients, plain, rtol=1e-4, atol=1e-6)
    assert all(every)
    assert sum(learnt) == 1, "one forward has the few rows that have a gradient, or the one that the loss hangs on"
    assert len(learnt) > 1
    assert sum(float(one.abs().sum()) for one in gradients) > 0 or settled == "all"


def test_a_round_resumes_at_a_step_to_the_same_weights(played: SimpleNamespace, starter: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        again = play(
            starter,
            tmp_path,
            steps()[1:],
            BFCLEnvironment(CLASSES),
            patched,
            first_step=2,
            checkpoint=played.folder / "checkpoint-1",
            **SETTINGS,
        )
    assert (again.reported, again.saved) == ([2], [2])
    assert [t.turns for t in again.trajectories] == [t.turns for t in played.trajectories[4 * K :]]
    resumed, straight = weights(tmp_path, 2), weights(played.folder, 2)
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
    first = weights(played.folder, 1)
    assert not all(torch.equal(first[name], straight[name]) for name in straight)


class Killed(BaseException):
    """Ends a round where it is, without any of its own handling."""


def test_a_killed_round_leaves_the_records_of_an_undisturbed_one(starter: Path, tmp_path: Path, monkeypatch) -> None:
    """Killed behind a checkpoint, with the rollouts of a step logged and not learnt from."""
    from training.grpo import round as module

    monkeypatch.setattr(module, "CHECKPOINT_STEPS", 2)
    log, progress = module.append_jsonl, []

    def run(name: str, *kills: int) -> RunDirectory:
        settings = small_settings(starter, rollouts_per_task=4, updates_per_step=2)
        made = RunDirectory.create(tmp_path / name, settings)
        admit(made, small_tasks())
        for kill in (*kills, None):
            calls = []

            def logged(path, records, kill=kill, calls=calls):
                log(path, records)
                calls.extend([path] if path == made.iteration(0).trajectories else [])
                if len(calls) == kill:
                    raise Killed

            monkeypatch.setattr(module, "append_jsonl", logged)
            lines: list[RoundProgress] = []
            progress.append(lines)
            try:
                module.run_round(made.root, 0, True, lines.append)
            except Killed:
                assert kill is not None
        return made

    straight, disturbed = run("straight"), run("disturbed", 3)
    assert [[line.step for line in lines] for lines in progress] == [[1, 2, 3], [1, 2], [3]]
    rounds = [read_json(one.iteration(0).round, RoundRecord) for one in (straight, disturbed)]
    assert rounds[0].model_dump(exclude={"measured"}) == rounds[1].model_dump(exclude={"measured"})
    played = [read_jsonl(one.iteration(0).trajectories, Trajectory) for one in (straight, disturbed)]
    assert [t.model_copy(update={"measured": None}) for t in played[0]] == [
        t.model_copy(update={"measured": None}) for t in played[1]
    ]
    kept = [read_jsonl(one.iteration(0).metrics, StepMetrics) for one in (straight, disturbed)]
    assert [one.model_copy(update={"measured": {}}) for one in kept[0]] == [
        one.model_copy(update={"measured": {}}) for one in kept[1]
    ]
    assert [one.trainer["loss"] for one in kept[0]] == pytest.approx([step.loss for step in rounds[0].steps])
    assert [(step.step, step.clipped is None) for step in rounds[0].steps] == [(1, False), (2, False), (3, False)]
    assert rounds[0].policy == "policy/checkpoint-3"
    left = [weights(one.policy_path, 3) for one in (straight, disturbed)]
    assert all(torch.equal(left[0][name], left[1][name]) for name in left[0])
