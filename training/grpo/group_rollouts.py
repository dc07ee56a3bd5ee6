"""The rollouts of one GRPO step: the episodes, their trajectories, and the batch that the trainer learns from.

``GroupRollouts.step`` plays the episodes of a step and returns what TRL asks of a rollout function. Import this module
late: it needs torch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from environments.base import Environment
from memory.jsonl import derive_seed, record_id
from memory.records import Measured, Task, Trajectory
from training.grpo.advantages import reward_of
from training.grpo.ranks import ALONE, Ranks
from training.grpo.record import RoundFailure, RoundPlan, Stopwatch
from training.rollout.episodes import EpisodeRequest, EpisodeResult, limits_of, run_episodes, token_row
from training.rollout.policy import Policy
from training.rollout.sampling import Sampler
from training.seal.seal import Seal
from training.settings import TrainingSettings


@dataclass(eq=False)
class GroupRollouts:
    """Plays the episodes of each step and turns each into a trajectory with its reward.

    Tokens are sampled by ``sampler``, in the precision that the trainer uses. ``keep`` gets the trajectories of each
    step, in the first process. ``weights`` are SEAL's factors of the advantages of the step that was played last, one
    per row of this process; None where the settings turn them off.
    """

    plan: RoundPlan
    policy: Policy
    sampler: Sampler
    environment: Environment
    settings: TrainingSettings
    keep: Callable[[Sequence[Trajectory]], None]
    stopwatch: Stopwatch
    seal: Seal | None = None
    ranks: Ranks = ALONE
    weights: list[float] | None = field(default=None, init=False)

    @property
    def played_in(self) -> Environment:
        """The environment that episodes are played in: with SEAL, behind its learning interface."""
        return self.environment if self.seal is None else self.seal.environment

    def step(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Play the trainer's next step; return what TRL asks of a rollout function, one list item per row.

        ``prompts`` are task ids, each K times in a row. TRL hands ``reward`` on to ``outcome_reward``; ``env_mask``
        marks the tokens that the policy wrote. Raises RoundFailure when the environment failed every rollout.
        """
        step = trainer.state.global_step // self.settings.updates_per_step + 1
        began = time.perf_counter()
        self.sampler.load_weights(step - 1)
        results, own, replaced = self._play(step, prompts, trainer)
        rows, played = chain.from_iterable(self._rows(step)), chain.from_iterable(self.ranks.gather(own))
        by_row = dict(zip(rows, played, strict=True))
        trajectories = [by_row[row] for row in sorted(by_row)]
        trajectories += chain.from_iterable(self.ranks.gather(replaced))
        _check_any_scored(step, trajectories)
        if self.ranks.first:
            self.keep(trajectories)
        if self.seal is not None:
            diagnosing = time.perf_counter()
            if (weights := self.seal.take_in(step, trajectories)) is not None:
                self.weights = [weights[row] for row in self._rows(step)[self.ranks.index]]
            spent = time.perf_counter() - diagnosing
            self.stopwatch.seal += spent
            began += spent  # it counts in no other stage
        filler = int(self.policy.tokenizer.eos_token_id)
        cut = [token_row(one, filler).cut_to(self.settings.max_trained_tokens) for one in results]
        self.stopwatch.rollouts += time.perf_counter() - began
        return {
            "prompt_ids": [row.prompt_ids for row in cut],
            "completion_ids": [row.completion_ids for row in cut],
            "logprobs": [row.logprobs for row in cut],
            "env_mask": [row.mask for row in cut],
            "reward": [one.reward for one in own],
        }

    def prompts(self) -> list[str]:
        """Return the tasks of all steps, by id, in the order in which the processes are to be given them."""
        size, steps = self.settings.rollouts_per_task, range(self.plan.first_step, self.plan.last_step + 1)
        return [self._at(step)[row // size].id for step in steps for own in self._rows(step) for row in own[::size]]

    def _rows(self, step: int) -> list[list[int]]:
        """Return for each rank the rows of ``step`` that it plays, by place in the plan, whose groups have K each.

        Tasks of one kind are adjacent in a plan: where a step has several updates, they take its groups in drawn order.
        Each update is divided evenly, so that it holds the same groups whatever the number of processes.
        """
        groups, updates, ranks = len(self._at(step)), self.settings.updates_per_step, self.ranks.count
        order, size, own = list(range(groups)), groups // updates, groups // updates // ranks
        if updates > 1:
            draw = torch.Generator().manual_seed(step_seed(self.plan.run_seed, (step - 1) * updates))
            order = torch.randperm(groups, generator=draw).tolist()
        starts = [[update + rank * own for update in range(0, groups, size)] for rank in range(ranks)]
        places = [[place for start in rank for place in order[start : start + own]] for rank in starts]
        k = self.settings.rollouts_per_task
        return [[row for place in rank for row in range(place * k, (place + 1) * k)] for rank in places]

    def _at(self, step: int) -> tuple[Task, ...]:
        return self.plan.steps[step - self.plan.first_step]

    def _own(self, step: int, prompts: Sequence[str]) -> list[tuple[Task, int]]:
        """Return the task of each of this process's rows, and its sample index, which counts over all processes.

        A task that a step draws twice has indexes beyond K, and rollouts that replace others have those beyond these.
        Raises RoundFailure when the trainer hands over others than the plan's tasks: steps would be skipped or mixed.
        """
        seen: Counter[str] = Counter()
        rows = []
        for task in self._at(step):
            for _ in range(self.settings.rollouts_per_task):
                rows.append((task, seen[task.id]))
                seen[task.id] += 1
        own = [rows[row] for row in self._rows(step)[self.ranks.index]]
        if list(prompts) != [task.id for task, _ in own]:
            raise RoundFailure(
                f"the trainer gave rank {self.ranks.index} {len(prompts)} rollouts in step {step}, of other tasks than "
                "the plan's: it divides a step in another way than training.launch"
            )
        return own

    def _play(
        self, step: int, prompts: Sequence[str], trainer: GRPOTrainer
    ) -> tuple[list[EpisodeResult], list[Trajectory], list[Trajectory]]:
        """Play ``prompts``, task ids, each K times in a row; return each rollout as tokens and as it is recorded.

        A group whose rewards are all equal has no gradient: it is played anew, ``resamples`` times at most. The last
        are the rollouts that groups had before.
        """
        own, size = self._own(step, prompts), self.settings.rollouts_per_task
        results, played = self._sampled(step, own, trainer)
        replaced: list[Trajectory] = []
        drawn = Counter(task.id for task in self._at(step))
        for again in range(1, self.settings.resamples + 1):
            groups = [range(start, start + size) for start in range(0, len(own), size)]
            alike = [place for group in groups if _are_equal([played[place] for place in group]) for place in group]
            if not alike:
                break
            anew = [(task, sample + again * size * drawn[task.id]) for task, sample in (own[place] for place in alike)]
            replaced += [played[place] for place in alike]
            for place, result, trajectory in zip(alike, *self._sampled(step, anew, trainer), strict=True):
                results[place], played[place] = result, trajectory
        return results, played, replaced

    def _sampled(
        self, step: int, rows: Sequence[tuple[Task, int]], trainer: GRPOTrainer
    ) -> tuple[list[EpisodeResult], list[Trajectory]]:
        """Play rollouts of tasks by their sample indexes."""
        began = time.perf_counter()
        requests = [EpisodeRequest.of_rollout(task, self.plan.run_seed, step, sample) for task, sample in rows]
        device, bfloat16 = self.policy.model.device.type, bool(trainer.args.bf16)
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            limits, temperature = limits_of(self.settings), self.settings.temperature
            results = run_episodes(self.policy, self.sampler, self.played_in, requests, limits, temperature)
        seconds = (time.perf_counter() - began) / len(requests)
        played = zip(results, rows, strict=True)
        return list(results), [self._trajectory(result, step, sample, seconds) for result, (_, sample) in played]

    def _trajectory(self, result: EpisodeResult, step: int, sample: int, seconds: float) -> Trajectory:
        task = result.task
        sampled = sum(result.mask)
        return Trajectory(
            id=record_id("traj", task.id, step, sample, self.plan.run_seed),
            task_id=task.id,
            iteration=self.plan.iteration,
            step=step,
            sample=sample,
            turns=result.turns,
            outcome=result.outcome,
            reward=reward_of(result.outcome, result.turns, task, self.settings),
            infrastructure_error=result.infrastructure_error,
            sampled_tokens=sampled,
            measured=Measured(
                seconds=seconds,
                prompt_tokens=len(result.prompt_ids) + len(result.completion_ids) - sampled,
                completion_tokens=sampled,
            ),
        )


def _are_equal(group: Sequence[Trajectory]) -> bool:
    """Return whether all rewards of a group are equal; without one the environment failed, and would again."""
    return len({one.reward for one in group if one.reward is not None}) == 1


def step_seed(run_seed: int, update: int) -> int:
    """Return the seed of the random state in the update after ``update`` others."""
    return derive_seed(run_seed, "step", update) % 2**32


def _check_any_scored(step: int, trajectories: Sequence[Trajectory]) -> None:
    """Raise RoundFailure when the environment failed every rollout, or no other one had room for a message."""
    causes = [one.infrastructure_error for one in trajectories if one.infrastructure_error is not None]
    if len(causes) == len(trajectories):
        raise RoundFailure(f"the environment failed all {len(causes)} rollouts of step {step}: {causes[0]}")
    if not any(one.sampled_tokens for one in trajectories):
        # A step without a sampled token has no loss: its tokens are what the loss is divided by.
        raise RoundFailure(
            f"no rollout of step {step} has room for a message: the turns before the agent's fill training.max_tokens: "
            "raise it"
        )


def outcome_reward(*, reward: list[float | None], **_: object) -> list[float | None]:
    """Return, as TRL's reward function, what the rollouts computed. None leaves a row out of its group's baseline."""
    return reward
