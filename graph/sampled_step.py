"""What a notebook shows of GRPO by hand: the first step of a run, sampled again, and tables of its groups and losses.

Records hold no log-probabilities. The first step's policy is the initial one, and equal seeds give equal rollouts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from environments.base import InputError
from graph.report.lineage import History
from graph.report.tables import Table, table
from graph.settings import RunSettings
from memory.records import Trajectory
from memory.run import read_json
from training.grpo.record import RoundRecord
from training.settings import SamplingSettings, TrainingSettings

if TYPE_CHECKING:
    import torch

    from training.grpo.loss import LossFigures
    from training.rollout.episodes import TokenRow
    from training.rollout.policy import Policy


class SampledStep(NamedTuple):
    """The rollouts of a step, those of a group one after the other, each with its row of tokens.

    ``logps`` are log-probabilities in nats of the tokens after the prompt, (rows, tokens), with a gradient to the
    policy's weights; ``mask`` is 1 on the tokens that the policy wrote.
    """

    rollouts: tuple[Trajectory, ...]
    rows: tuple[TokenRow, ...]
    policy: Policy
    training: TrainingSettings
    logps: torch.Tensor
    mask: torch.Tensor

    def first_mixed(self) -> slice:
        """Return the rows of the first group with a success and a failure. Raises StopIteration where there is none."""
        size = self.training.rollouts_per_task
        groups = (slice(at, at + size) for at in range(0, len(self.rows), size))
        return next(group for group in groups if len({one.success for one in self.rollouts[group]}) == 2)

    def gradient(self, loss: torch.Tensor) -> tuple[dict[str, torch.Tensor], float]:
        """Return the gradient of a loss of ``logps`` by the names of the weights, and its norm."""
        import torch

        weights = dict(self.policy.model.named_parameters())
        found = torch.autograd.grad(loss, tuple(weights.values()), retain_graph=True)
        return dict(zip(weights, found, strict=True)), float(torch.stack([one.norm() for one in found]).norm())


def sampled_step(history: History) -> SampledStep:
    """Sample the first step of a run again.

    Raises InputError where a rollout is not as it was recorded, as after an expert step, or has no outcome.
    """
    import torch

    with warnings.catch_warnings(action="ignore"):  # in a notebook its progress bars ask for widgets
        import transformers.utils  # noqa: F401

    from training.rollout.engines import open_sampler
    from training.rollout.episodes import EpisodeRequest, limits_of, run_episodes, token_row
    from training.rollout.policy import load_initial_policy

    settings = history.run.settings(RunSettings)
    training, policy = settings.training, load_initial_policy(settings.policy)
    first = [one for group in history.groups_in(0) if group.step == 1 for one in group.rollouts]
    rollouts = tuple(history.trajectories(first))
    requests = [
        EpisodeRequest.of_rollout(history.tasks[one.task_id], settings.seed, one.step, one.sample) for one in rollouts
    ]
    environment, folder = settings.environment.open(), history.run.root  # no engine writes weights
    sampler = open_sampler(SamplingSettings(), policy, folder, bfloat16=False, adapter=False)
    played = run_episodes(policy, sampler, environment, requests, limits_of(training), training.temperature)
    if any(one.outcome is None or one.turns != was.turns for one, was in zip(played, rollouts, strict=True)):
        raise InputError(
            f"the initial policy of {history.run.root} does not play the recorded rollouts of step 1 again: name a run "
            "of this machine without an expert step, SEAL and faults of its environment"
        )
    filler, size = int(policy.tokenizer.eos_token_id), training.rollouts_per_task
    rows = tuple(token_row(one, filler).cut_to(training.max_trained_tokens) for one in played)
    mask = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.mask) for row in rows], batch_first=True)
    groups = [rows[at : at + size] for at in range(0, len(rows), size)]
    logps = torch.cat([_logps(policy, group, mask.shape[1], training.temperature) for group in groups])
    return SampledStep(rollouts, rows, policy, training, logps, mask)


def _logps(
    policy: Policy,
    group: Sequence[TokenRow],
    width: int,
    temperature: float,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return the log-probabilities of a group's tokens, (rows, width), by other weights of the policy if given."""
    import torch

    written = [torch.tensor(row.prompt_ids + row.completion_ids) for row in group]
    ids = torch.nn.utils.rnn.pad_sequence(written, batch_first=True)
    first = len(group[0].prompt_ids)  # a group has one prompt
    output = torch.func.functional_call(policy.model, dict(weights or {}), kwargs={"input_ids": ids})
    logps = torch.log_softmax(output.logits[:, first - 1 : -1] / temperature, dim=-1)
    logps = logps.gather(2, ids[:, first:, None])[..., 0]
    return torch.nn.functional.pad(logps, (0, width - logps.shape[1]))


def group_table(
    step: SampledStep, rows: slice, rewards: torch.Tensor, advantages: torch.Tensor, factors: torch.Tensor
) -> Table:
    """Show a row for each rollout of a group; ``tokens`` are those that the policy wrote."""
    cells = []
    for at in range(len(step.rows))[rows]:
        one, tokens = step.rollouts[at], int(step.mask[at].sum())
        result = "success" if one.success else "failure"
        cells.append((one.sample, result, f"{rewards[at]:.1f}", f"{advantages[at]:+.3f}", tokens, f"{factors[at]:.2f}"))
    return table(("rollout", "result", "reward", "advantage", "tokens", "per_group"), cells)


def losses_table(history: History, step: SampledStep, losses: Mapping[str, torch.Tensor]) -> Table:
    """Show losses of the whole step with the norms of their gradients, and what the trainer recorded of its own.

    They can be compared where a step has one update.
    """
    found = read_json(history.run.iteration(0).round, RoundRecord).steps[0]
    figures = {name: (float(loss.detach()), step.gradient(loss)[1]) for name, loss in losses.items()}
    figures[f"{step.training.loss}, as the trainer recorded it"] = (found.loss or 0.0, found.grad_norm or 0.0)
    rows = [(name, f"{value:+.4f}", f"{norm:.4f}") for name, (value, norm) in figures.items()]
    return table(("loss", "value", "norm of the gradient"), rows)


def moves_table(
    step: SampledStep, rows: slice, loss: Callable[[torch.Tensor], LossFigures], moves: Sequence[float]
) -> Table:
    """Show a group's loss after moves of the weights against its gradient, a row for each length of a move.

    ``successes`` and ``failures``: by how many nats the log-probability of such a rollout rose, the mean.
    """
    import torch

    old, mask = step.logps[rows].detach(), step.mask[rows]
    gradient, norm = step.gradient(loss(step.logps[rows]).loss)
    won = torch.tensor([one.success for one in step.rollouts[rows]])
    cells = []
    for move in moves:
        weights = {name: one - move / norm * gradient[name] for name, one in step.policy.model.named_parameters()}
        with torch.no_grad():
            logps = _logps(step.policy, step.rows[rows], mask.shape[1], step.training.temperature, weights)
        found, moved = loss(logps), (logps - old) * mask
        ratios, rose = moved.exp()[mask.bool()], moved.sum(dim=1)
        shown = (f"{ratios.min():.2f} to {ratios.max():.2f}", f"{found.clipped:.0%}", f"{found.kl:.3f}")
        risen = (f"{rose[won].mean():+.2f}", f"{rose[~won].mean():+.2f}")
        cells.append((f"{move:g}", *shown, f"{found.loss:+.4f}", *risen))
    return table(("move", "ratios", "clipped", "KL", "loss", "successes", "failures"), cells)
