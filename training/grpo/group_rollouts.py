"""The rollouts of one GRPO step: the episodes, their trajectories, and the batch that the trainer learns from.

``GroupRollouts.step`` plays the episodes of a step and returns a ``StepBatch``, which is all that the trainer gets of
them. Import this module late: it needs torch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from environments.base import Environment
from memory.jsonl import derive_seed, record_id
from memory.records import Measured, Task, Trajectory
from training.grpo.off_policy_demonstrations import TokenRow, groups_to_demonstrate, place_in, written_logps
from training.grpo.ranks import ALONE, Ranks, places_of
from training.grpo.record import RoundFailure, RoundPlan, Stopwatch
from training.grpo.reward import reward
from training.rollout.episodes import EpisodeLimits, EpisodeRequest, EpisodeResult, play_references, run_episodes
from training.rollout.policy import Policy
from training.rollout.sampling import Sampler
from training.seal.seal import Seal, SealHandover, TurnsOfTokens
from training.settings import TrainingSettings

Redraw = Callable[[int, int, Collection[str]], Sequence[Task]]
"""Returns tasks for a step, so many at most, whose ids are not among those given."""


class _Played(NamedTuple):
    """One rollout: as tokens and as it is recorded."""

    result: EpisodeResult
    trajectory: Trajectory


_Group = Sequence[_Played]


@dataclass(frozen=True)
class StepBatch:
    """The hand-over of one step's rollouts to the trainer.

    ``rows`` are episodes as tokens, in the order of the prompts: groups of K, one after the other. ``rewards`` go with
    them; None leaves a row out of its group's baseline. ``demonstrations`` are the indexes of the rows that hold an
    off-policy demonstration in place of the policy's rollout. ``references`` are demonstrations that are learnt as a
    loss term of their own, one tuple per micro-batch of the step (empty: none).
    """

    rows: tuple[TokenRow, ...]
    rewards: tuple[float | None, ...]
    demonstrations: frozenset[int] = frozenset()
    references: tuple[tuple[TokenRow, ...], ...] = ()

    def columns(self) -> dict[str, list[Any]]:
        """Return what TRL asks of a rollout function, one list item per row.

        TRL hands ``reward`` on to ``outcome_reward``; the mask marks the tokens that the policy wrote.
        """
        return {
            "prompt_ids": [row.prompt_ids for row in self.rows],
            "completion_ids": [row.completion_ids for row in self.rows],
            "logprobs": [row.logprobs for row in self.rows],
            "env_mask": [row.mask for row in self.rows],
            "reward": list(self.rewards),
        }


class GroupRollouts:
    """Plays the episodes of each step and turns each into a trajectory with its reward.

    Tokens are sampled by ``sampler``, in the precision that the trainer uses. ``keep`` gets the trajectories of each
    step. With ``lend_reference`` groups without any success get their task's reference as a demonstration: what the
    policy did is kept unchanged, and ``keep_demonstrations`` gets the references that were played. With
    ``dynamic_sampling`` groups without a signal are replaced by groups of tasks that ``redraw`` names: what was played
    is kept too, and marked. Demonstrations go to those that are left.
    """

    def __init__(
        self,
        plan: RoundPlan,
        policy: Policy,
        sampler: Sampler,
        environment: Environment,
        settings: TrainingSettings,
        keep: Callable[[Sequence[Trajectory]], None],
        keep_demonstrations: Callable[[Sequence[Trajectory]], None],
        stopwatch: Stopwatch,
        seal: Seal | None = None,
        redraw: Redraw = lambda step, count, taken: (),
        ranks: Ranks = ALONE,
    ) -> None:
        self.plan = plan
        self.policy = policy
        self.sampler = sampler
        self.environment = environment
        self.settings = settings
        self.keep = keep
        self.keep_demonstrations = keep_demonstrations
        self.stopwatch = stopwatch
        self.seal = seal
        self.redraw = redraw
        self.ranks = ranks
        self.tasks: dict[str, Task] = {task.id: task for step in plan.steps for task in step}
        self.limits = EpisodeLimits(
            max_new_tokens=settings.max_new_tokens,
            max_tokens=settings.max_tokens,
            max_actions=settings.max_actions,
            strict_messages=settings.strict_messages,
            max_steps=settings.max_episode_steps,
            held_to_tools=settings.held_to_tools,
        )

    @property
    def played_in(self) -> Environment:
        """The environment that episodes are played in: with SEAL, behind its learning interface."""
        return self.environment if self.seal is None else self.seal.environment

    def step(self, prompts: Sequence[str], trainer: GRPOTrainer) -> StepBatch:
        """Play the trainer's next step.

        ``prompts`` are task ids, each K times in a row. Raises RoundFailure when the environment failed every rollout.
        """
        done = trainer.state.global_step // self.settings.updates_per_step
        step = done + 1
        began = time.perf_counter()
        self.sampler.load_weights(done)
        environment = self.played_in
        with self.ranks.agreeing():
            groups = self._play(step, prompts, trainer, environment, self._samples(step, prompts))
        whole = self._of_all_ranks(step, groups)
        with self.ranks.agreeing():
            everything = [one.trajectory for group in groups for one in group] if whole is None else list(whole)
            causes = [t.infrastructure_error for t in everything if t.infrastructure_error is not None]
            if len(causes) == len(everything) and self.ranks.first:
                raise RoundFailure(f"the environment failed all {len(causes)} rollouts of step {step}: {causes[0]}")
        groups, replaced = self._with_signals(step, groups, trainer, environment)
        results = [one.result for group in groups for one in group]
        trajectories = tuple(one.trajectory for group in groups for one in group)
        with self.ranks.agreeing():
            if self.ranks.first:
                self.keep(_in_order((*everything, *replaced), trajectories if whole is None else whole))
        diagnosing = self._diagnose(step, trajectories if whole is None else whole)
        filler = int(self.policy.tokenizer.eos_token_id)
        rows = [token_row(result, filler).cut_to(self.settings.max_trained_tokens) for result in results]
        rewards = [trajectory.reward for trajectory in trajectories]
        demonstrations = self._demonstrate(step, trajectories, environment)
        if self.settings.experimental.lend_reference == "off_policy":
            self._replace(trainer, demonstrations, rows, rewards)
            batch = StepBatch(tuple(rows), tuple(rewards), demonstrations=frozenset(demonstrations))
        else:
            # Dealt round, so that micro-batches differ by one reference at most.
            references = [row for row, _ in demonstrations.values()]
            parts = int(trainer.args.gradient_accumulation_steps) * self.settings.updates_per_step
            dealt = tuple(tuple(references[part::parts]) for part in range(parts))
            batch = StepBatch(tuple(rows), tuple(rewards), references=dealt)
        self.stopwatch.rollouts += time.perf_counter() - began - diagnosing
        return batch

    def prompts(self) -> list[str]:
        """Return the tasks of all steps, by id, in the order in which the processes are to be given them."""
        if self.ranks.count == 1:
            return [task.id for step in self.plan.steps for task in step]
        steps = range(self.plan.first_step, self.plan.last_step + 1)
        return [task.id for step in steps for places in self._places(step) for task in self._at(step, places)]

    def _places(self, step: int) -> tuple[tuple[int, ...], ...]:
        """Return for each rank the places in the plan of the groups that it plays in ``step``."""
        order: Sequence[int] = range(len(self._at(step)))
        updates = self.settings.updates_per_step
        if self.ranks.count > 1 and updates > 1:
            order = drawn_order(len(order), self.plan.run_seed, (step - 1) * updates)
        return tuple(places_of(rank, self.ranks.count, order, updates) for rank in range(self.ranks.count))

    def _at(self, step: int, places: Sequence[int] | None = None) -> list[Task]:
        tasks = self.plan.steps[step - self.plan.first_step]
        return list(tasks) if places is None else [tasks[place] for place in places]

    def _samples(self, step: int, prompts: Sequence[str]) -> list[int]:
        """Return the sample index of each row, counted over all processes.

        Raises RoundFailure when the trainer hands over others than the plan's tasks: steps would be skipped or mixed.
        """
        if self.ranks.count == 1:
            return _occurrences(prompts)
        size, own = self.settings.rollouts_per_task, self._places(step)[self.ranks.index]
        expected = [task.id for task in self._at(step, own) for _ in range(size)]
        if list(prompts) != expected:
            raise RoundFailure(
                f"the trainer gave rank {self.ranks.index} {len(prompts)} rollouts in step {step}, of other tasks than "
                "the plan's: it divides a step in another way than training.launch"
            )
        samples = _occurrences([task.id for task in self._at(step) for _ in range(size)])
        return [sample for place in own for sample in samples[place * size : (place + 1) * size]]

    def _of_all_ranks(self, step: int, groups: Sequence[_Group]) -> tuple[Trajectory, ...] | None:
        """Return the trajectories of a step from all processes, in the plan's order, on the first; else None."""
        if self.ranks.count == 1:
            return None
        gathered = self.ranks.gather([[one.trajectory for one in group] for group in groups])
        if gathered is None:
            return None
        by_place = {
            place: group
            for places, played in zip(self._places(step), gathered, strict=True)
            for place, group in zip(places, played, strict=True)
        }
        return tuple(one for place in sorted(by_place) for one in by_place[place])

    def _play(
        self,
        step: int,
        prompts: Sequence[str],
        trainer: GRPOTrainer,
        environment: Environment,
        samples: Sequence[int],
    ) -> list[_Group]:
        """Play the groups of ``prompts``, task ids, each K times in a row; ``samples`` are their indexes."""
        began = time.perf_counter()
        # Sample i of a task in a step is seeded by hash, so that neither order nor batch composition matters.
        requests = [
            EpisodeRequest(
                task=self.tasks[task_id], seed=derive_seed(self.plan.run_seed, "rollout", task_id, step, sample)
            )
            for task_id, sample in zip(prompts, samples, strict=True)
        ]
        with torch.no_grad(), self._precision(trainer):
            results = run_episodes(
                self.policy, self.sampler, environment, requests, self.limits, self.settings.temperature
            )
        seconds = (time.perf_counter() - began) / len(requests)
        played = [
            _Played(result, self._trajectory(result, step, sample, seconds))
            for result, sample in zip(results, samples, strict=True)
        ]
        size = self.settings.rollouts_per_task
        return [played[start : start + size] for start in range(0, len(played), size)]

    def _with_signals(
        self, step: int, groups: list[_Group], trainer: GRPOTrainer, environment: Environment
    ) -> tuple[list[_Group], list[Trajectory]]:
        """Return the groups to learn from, and the trajectories of all groups that were played beyond those given.

        Groups without a signal are replaced as long as other tasks and the number of groups that may be played last.
        """
        learnt, further = list(groups), list[Trajectory]()
        left = self.settings.experimental.dynamic_sampling or 0
        taken = {group[0].trajectory.task_id for group in groups}
        while left and (silent := [place for place, group in enumerate(learnt) if not _has_signal(group)]):
            tasks = self.redraw(step, min(left, len(silent)), taken)
            if not tasks:
                break
            left -= len(tasks)
            taken |= {task.id for task in tasks}
            self.tasks.update((task.id, task) for task in tasks)
            prompts = [task.id for task in tasks for _ in range(self.settings.rollouts_per_task)]
            for group in self._play(step, prompts, trainer, environment, _occurrences(prompts)):
                further += [one.trajectory for one in group]
                if _has_signal(group):
                    learnt[silent.pop(0)] = group
        return learnt, further

    def token_weights(self, batch: StepBatch, advantages: Sequence[float], width: int) -> list[list[float]] | None:
        """Return SEAL's weights of the batch's tokens, in rows of ``width``; None where advantages are not weighted."""
        if self.seal is None or self.seal.settings.weights is None:
            return None
        turns = [TurnsOfTokens(row.mask, row.begins) for row in batch.rows]
        return self.seal.weigh(advantages, turns, self.settings.rollouts_per_task, width, batch.demonstrations)

    def _diagnose(self, step: int, trajectories: Sequence[Trajectory]) -> float:
        """Give SEAL the step's rollouts; return the seconds that took."""
        if self.seal is None:
            return 0.0
        began = time.perf_counter()
        if self.ranks.count == 1:
            self.seal.take_in(step, trajectories, self.tasks)
        else:
            size = self.settings.rollouts_per_task
            seal, places = self.seal, self._places(step)[self.ranks.index]

            def by_first() -> SealHandover:
                seal.take_in(step, trajectories, self.tasks)
                return seal.handover()

            seal.go_on(self.ranks.by_first(by_first), [place * size + k for place in places for k in range(size)])
        seconds = time.perf_counter() - began
        self.stopwatch.seal += seconds
        return seconds

    def _demonstrate(
        self, step: int, trajectories: Sequence[Trajectory], environment: Environment
    ) -> dict[int, tuple[TokenRow, float | None]]:
        """Return the references to learn from in this step, with their rewards, by the index of the row they replace.

        They are played in ``environment``, as the rollouts were. One that does not succeed under the limits of an
        episode is kept and not learnt from.
        """
        if self.settings.experimental.lend_reference == "none":
            return {}
        size = self.settings.rollouts_per_task
        seed = derive_seed(self.plan.run_seed, "lend", step)
        numbers = groups_to_demonstrate(trajectories, self.tasks, size, self.settings.experimental.lend_at_most, seed)
        places = [n * size + place_in(trajectories[n * size : (n + 1) * size]) for n in numbers]
        began = time.perf_counter()
        tasks = [self.tasks[trajectories[place].task_id] for place in places]
        results = play_references(self.policy, environment, tasks, self.limits)
        seconds = (time.perf_counter() - began) / max(1, len(results))
        played = [
            self._trajectory(result, step, trajectories[place].sample, seconds, demonstration=True)
            for place, result in zip(places, results, strict=True)
        ]
        self.keep_demonstrations(played)
        return {
            place: (token_row(result, filler=0).cut_to(self.settings.max_trained_tokens), trajectory.reward)
            for place, result, trajectory in zip(places, results, played, strict=True)
            if trajectory.success
        }

    def _replace(
        self,
        trainer: GRPOTrainer,
        demonstrations: Mapping[int, tuple[TokenRow, float | None]],
        rows: list[TokenRow],
        rewards: list[float | None],
    ) -> None:
        """Put references into their places, with the log-probabilities that the policy gives them."""
        if not demonstrations:
            return
        model = self.policy.model
        was_training = model.training
        # Without dropout, as rollouts are sampled: both kinds of rows then report log-probabilities of one policy.
        model.train(False)
        with torch.no_grad(), self._precision(trainer):
            logps, mask = written_logps(trainer, model, [row for row, _ in demonstrations.values()])
        model.train(was_training)
        for (place, (row, worth)), scored in zip(demonstrations.items(), (logps * mask).tolist(), strict=True):
            rows[place] = replace(row, logprobs=scored[: len(row.mask)])
            rewards[place] = worth

    def _precision(self, trainer: GRPOTrainer) -> torch.autocast:
        device = self.policy.model.device.type
        return torch.autocast(device, torch.bfloat16, enabled=bool(trainer.args.bf16))

    def _trajectory(
        self, result: EpisodeResult, step: int, sample: int, seconds: float, demonstration: bool = False
    ) -> Trajectory:
        task = result.task
        actions = sum(len(turn.steps) for turn in result.turns)
        sampled = 0 if demonstration else sum(result.mask)
        kind = ("lent",) if demonstration else ()
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
            lent=demonstration,
            measured=Measured(
                seconds=seconds,
                prompt_tokens=len(result.prompt_ids) + len(result.completion_ids) - sampled,
                completion_tokens=sampled,
            ),
        )


def drawn_order(groups: int, run_seed: int, update: int) -> list[int]:
    """Return the order in which the updates of a step take its ``groups``; ``update`` are those done before it.

    It is the order that one process draws after the random state of the step is set.
    """
    generator = torch.Generator().manual_seed(step_seed(run_seed, update))
    return torch.randperm(groups, generator=generator).tolist()


def step_seed(run_seed: int, update: int) -> int:
    """Return the seed of the random state in the update after ``update`` others."""
    return derive_seed(run_seed, "step", update) % 2**32


def _has_signal(group: _Group) -> bool:
    """Return whether two rewards of a group differ: else all its advantages are 0. Failed rollouts have none."""
    return len({one.trajectory.reward for one in group if one.trajectory.reward is not None}) > 1


def _in_order(played: Iterable[Trajectory], learnt: Iterable[Trajectory]) -> tuple[Trajectory, ...]:
    """Return what was played, in that order; what is not among ``learnt`` is marked as discarded."""
    kept = {trajectory.id for trajectory in learnt}
    return tuple(one if one.id in kept else one.model_copy(update={"discarded": True}) for one in played)


def _occurrences(prompts: Sequence[str]) -> list[int]:
    """Return how often each prompt came before: the sample index, which exceeds K when a step draws a task twice."""
    seen: Counter[str] = Counter()
    samples = []
    for prompt in prompts:
        samples.append(seen[prompt])
        seen[prompt] += 1
    return samples


def token_row(result: EpisodeResult, filler: int) -> TokenRow:
    """Return the tokens of one result; after an infrastructure error all of them are masked."""
    prompt_ids = list(result.prompt_ids)
    if not result.completion_ids:
        # TRL needs at least one token per row.
        return TokenRow(prompt_ids, [filler], [0.0], [0], result.turn_begins, result.withheld)
    failed = result.infrastructure_error is not None
    # The reward None keeps the rollout out of the baseline and gives it no advantage; the mask keeps the KL term off
    # it.
    mask = [0] * len(result.mask) if failed else list(result.mask)
    ids, logprobs = list(result.completion_ids), list(result.logprobs)
    return TokenRow(prompt_ids, ids, logprobs, mask, result.turn_begins, result.withheld)


def outcome_reward(*, reward: list[float | None], **_: object) -> list[float | None]:
    """Return, as TRL's reward function, what the rollouts computed. None leaves a row out of its group's baseline."""
    return reward
