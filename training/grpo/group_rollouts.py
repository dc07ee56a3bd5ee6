"""The rollouts of one GRPO step, in the shape that TRL asks for, and the trajectories kept of them.

Import this module late: it needs torch.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from environments.base import Environment
from memory.jsonl import derive_seed, record_id
from memory.records import Measured, Task, Trajectory
from training.grpo.lending import Row, groups_to_lend, place_in, written_logps
from training.grpo.record import RoundFailure, RoundPlan, Stopwatch
from training.grpo.reward import reward
from training.rollout.episodes import EpisodeLimits, EpisodeRequest, EpisodeResult, play_references, run_episodes
from training.rollout.policy import Policy
from training.seal.seal import Seal, TurnsOfTokens
from training.settings import TrainingSettings


class GroupRollouts:
    """TRL's ``rollout_func``: plays the episodes of one step and turns each into a trajectory with its reward.

    Prompts are task ids, each already repeated K times in a row. Sample ``i`` of a task in a step is seeded by hash,
    so that neither order nor batch composition matters. Tokens are sampled in the precision that the trainer uses.

    With ``lend_reference`` groups without any success are lent their task's reference (see ``lending``). What the
    policy did is kept whole all the same; ``keep_lent`` is given the references that were played.
    """

    def __init__(
        self,
        plan: RoundPlan,
        policy: Policy,
        environment: Environment,
        settings: TrainingSettings,
        keep: Callable[[Sequence[Trajectory]], None],
        keep_lent: Callable[[Sequence[Trajectory]], None],
        stopwatch: Stopwatch,
        seal: Seal | None = None,
    ) -> None:
        self.plan = plan
        self.policy = policy
        self.environment = environment
        self.settings = settings
        self.keep = keep
        self.keep_lent = keep_lent
        self.stopwatch = stopwatch
        self.seal = seal
        self.tasks: Mapping[str, Task] = {task.id: task for step in plan.steps for task in step}
        self.limits = EpisodeLimits(
            max_new_tokens=settings.max_new_tokens, max_tokens=settings.max_tokens, max_actions=settings.max_actions
        )
        self.latest: tuple[Trajectory, ...] = ()
        self._due: deque[tuple[Row, ...]] = deque()
        self._rows: tuple[TurnsOfTokens, ...] = ()
        self._unweighed: frozenset[int] = frozenset()

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """What TRL asks for, a list item a prompt; ``reward`` (None: masked) is read by ``verdict_reward``.

        Raises RoundFailure when the environment failed every rollout of the step.
        """
        step = trainer.state.global_step + 1
        began = time.perf_counter()
        samples = _occurrences(prompts)
        requests = [
            EpisodeRequest(
                task=self.tasks[task_id], seed=derive_seed(self.plan.run_seed, "rollout", task_id, step, sample)
            )
            for task_id, sample in zip(prompts, samples, strict=True)
        ]
        drawn_in = self.environment if self.seal is None else self.seal.environment
        with torch.no_grad(), self._precision(trainer):
            results = run_episodes(self.policy, drawn_in, requests, self.limits, self.settings.temperature)
        seconds = (time.perf_counter() - began) / len(requests)
        self.latest = tuple(
            self._trajectory(result, step, sample, seconds) for result, sample in zip(results, samples, strict=True)
        )
        causes = [t.infrastructure_error for t in self.latest if t.infrastructure_error is not None]
        if len(causes) == len(self.latest):
            raise RoundFailure(f"the environment failed all {len(causes)} rollouts of step {step}: {causes[0]}")
        self.keep(self.latest)
        diagnosing = self._diagnose(step)
        filler = int(self.policy.tokenizer.eos_token_id)
        rows = [_row(result, filler) for result in results]
        rewards = [trajectory.reward for trajectory in self.latest]
        lent = self._lend(step, drawn_in)
        if self.settings.lend_reference == "off_policy":
            self._replace(trainer, lent, rows, rewards)
        else:
            references, parts = [row for row, _ in lent.values()], int(trainer.args.gradient_accumulation_steps)
            self._due = deque(tuple(references[part::parts]) for part in range(parts))
        self._rows = tuple(TurnsOfTokens(row.mask, row.begins) for row in rows)
        self._unweighed = frozenset(lent) if self.settings.lend_reference == "off_policy" else frozenset()
        self.stopwatch.rollouts += time.perf_counter() - began - diagnosing
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "reward": rewards,
        }

    def token_weights(self, advantages: Sequence[float], width: int) -> list[list[float]] | None:
        """SEAL's weights of the step's tokens, by row as they were returned; None where advantages are not weighted."""
        if self.seal is None or self.seal.settings.weights is None:
            return None
        return self.seal.weigh(advantages, self._rows, self.settings.rollouts_per_task, width, self._unweighed)

    def due_references(self) -> tuple[Row, ...]:
        """What the next micro-batch of this step is to learn as a loss of its own; each is handed out once."""
        return self._due.popleft() if self._due else ()

    def _diagnose(self, step: int) -> float:
        """Give SEAL the step's rollouts; the seconds that took."""
        if self.seal is None:
            return 0.0
        began = time.perf_counter()
        self.seal.take_in(step, self.latest, self.tasks)
        seconds = time.perf_counter() - began
        self.stopwatch.seal += seconds
        return seconds

    def _lend(self, step: int, environment: Environment) -> dict[int, tuple[Row, float | None]]:
        """References to learn from in this step, with their rewards, by the row whose place they take.

        They are played in ``environment``, where the rollouts were. One that does not succeed under the limits of an
        episode is kept and not learnt from.
        """
        if self.settings.lend_reference == "none":
            return {}
        size = self.settings.rollouts_per_task
        seed = derive_seed(self.plan.run_seed, "lend", step)
        numbers = groups_to_lend(self.latest, self.tasks, size, self.settings.lend_at_most, seed)
        places = [n * size + place_in(self.latest[n * size : (n + 1) * size]) for n in numbers]
        began = time.perf_counter()
        tasks = [self.tasks[self.latest[place].task_id] for place in places]
        results = play_references(self.policy, environment, tasks, self.limits)
        seconds = (time.perf_counter() - began) / max(1, len(results))
        played = [
            self._trajectory(result, step, self.latest[place].sample, seconds, lent=True)
            for place, result in zip(places, results, strict=True)
        ]
        self.keep_lent(played)
        return {
            place: (_row(result, filler=0), trajectory.reward)
            for place, result, trajectory in zip(places, results, played, strict=True)
            if trajectory.success
        }

    def _replace(
        self,
        trainer: GRPOTrainer,
        lent: Mapping[int, tuple[Row, float | None]],
        rows: list[Row],
        rewards: list[float | None],
    ) -> None:
        """Put references into their places, with the log-probabilities that the policy gives them."""
        if not lent:
            return
        model = self.policy.model
        was_training = model.training
        model.train(False)
        with torch.no_grad(), self._precision(trainer):
            logps, mask = written_logps(trainer, model, [row for row, _ in lent.values()])
        model.train(was_training)
        for (place, (row, worth)), scored in zip(lent.items(), (logps * mask).tolist(), strict=True):
            rows[place] = replace(row, logprobs=scored[: len(row.mask)])
            rewards[place] = worth

    def _precision(self, trainer: GRPOTrainer) -> torch.autocast:
        device = self.policy.model.device.type
        return torch.autocast(device, torch.bfloat16, enabled=bool(trainer.args.bf16))

    def _trajectory(
        self, result: EpisodeResult, step: int, sample: int, seconds: float, lent: bool = False
    ) -> Trajectory:
        task = result.task
        actions = sum(len(turn.steps) for turn in result.turns)
        sampled = 0 if lent else sum(result.mask)
        kind = ("lent",) if lent else ()
        return Trajectory(
            id=record_id("traj", task.id, step, sample, self.plan.run_seed, *kind),
            task_id=task.id,
            iteration=self.plan.iteration,
            step=step,
            sample=sample,
            turns=result.turns,
            outcome=result.outcome,
            reward=None
            if result.outcome is None
            else reward(result.outcome, actions, sum(map(len, task.reference)), self.settings),
            infrastructure_error=result.infrastructure_error,
            sampled_tokens=sampled,
            lent=lent,
            measured=Measured(
                seconds=seconds,
                prompt_tokens=len(result.prompt_ids) + len(result.completion_ids) - sampled,
                completion_tokens=sampled,
            ),
        )


def _occurrences(prompts: Sequence[str]) -> list[int]:
    """How often each prompt came before: the sample index, which goes on past K when a step draws a task twice."""
    seen: Counter[str] = Counter()
    samples = []
    for prompt in prompts:
        samples.append(seen[prompt])
        seen[prompt] += 1
    return samples


def _row(result: EpisodeResult, filler: int) -> Row:
    """The token lists of one result; after an infrastructure error all of them are masked.

    The reward None keeps such a rollout out of the baseline and gives it no advantage; the mask keeps the KL term off
    it. It still counts in the mean of the ``grpo`` loss. TRL needs one token at least.
    """
    prompt_ids = list(result.prompt_ids)
    if not result.completion_ids:
        return Row(prompt_ids, [filler], [0.0], [0], result.turn_begins)
    failed = result.infrastructure_error is not None
    mask = [0] * len(result.mask) if failed else list(result.mask)
    return Row(prompt_ids, list(result.completion_ids), list(result.logprobs), mask, result.turn_begins)


def verdict_reward(*, reward: list[float | None], **_: object) -> list[float | None]:
    """TRL's reward function: hands on what the rollout computed. None leaves a rollout out of its group's baseline."""
    return reward
