"""``python -m benchmarks.grpo_side WORK SIDE POLICY OUT TIMES``: one side of a comparison, in one process.

WORK is ``step`` (rollouts and optimisation) or ``rollouts`` (no optimisation, and no reference model for a KL term). It
is done once for every line that is read, and answered with a line of JSON (``Figures``). Model, tasks, prompts, number
of rollouts, temperature, budget of tokens, reward, loss, KL weight and optimizer are equal on all sides, and each runs
on one thread. The learning rate is so small that the policy stays what it was.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.chat_policy import CLASS, TOOLS, chat_tasks
from benchmarks.grpo_sides import OURS, TRL
from benchmarks.meter import Meter
from benchmarks.trl_environment import environment_class
from environments.bfcl.environment import BFCLEnvironment
from memory.records import Trajectory
from training.grpo.group_rollouts import GroupRollouts, StepBatch, outcome_reward
from training.grpo.record import RoundPlan, Stopwatch
from training.grpo.trl_run import RoundCallback, train, trainer_config
from training.rendering.tool_calls import tool_schema
from training.rollout.in_process import InProcessSampler
from training.rollout.policy import load_policy
from training.settings import TrainingSettings

COMPLETION = 256
"""The limit of tokens after the prompt, sampled and observed: the only limit of TRL's own path."""

NEVER = 10**6

SETTINGS = TrainingSettings(
    tasks_per_step=8,
    rollouts_per_task=8,
    learning_rate=1e-9,
    max_new_tokens=COMPLETION,
    max_tokens=1024,
    max_actions=8,
    length_cost=0.0,
    loss="grpo",  # one that TRL's own trainer has too
)


class MeteredRollouts(GroupRollouts):
    """The rollouts of the in-process sampler, measured."""

    meter: Meter

    def step(self, prompts: Sequence[str], trainer: GRPOTrainer) -> StepBatch:
        """As GroupRollouts, measured."""
        with self.meter.rolling_out():
            batch = super().step(prompts, trainer)
        self.meter.count([row.prompt_ids for row in batch.rows], [row.mask for row in batch.rows])
        return batch


class StepsInTurn(TrainerCallback):
    """Takes each step in turn with the other sides."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Wait for the parent."""
        self.meter.wait()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Answer the parent."""
        self.meter.record()


class RoundTurns(RoundCallback):
    """The callback of a round, in turn with the other sides."""

    meter: Meter

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: object
    ) -> None:
        """Wait for the parent, then begin the step as a round does."""
        self.meter.wait()
        super().on_step_begin(args, state, control, **others)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Answer the parent."""
        self.meter.record()


def our_rollouts(policy: Path, plan: RoundPlan, meter: Meter) -> MeteredRollouts:
    """Play the rollouts of a round with these settings; of their trajectories only the successes are counted."""
    loaded, environment = load_policy(str(policy), "cpu"), BFCLEnvironment((CLASS,))

    def keep(trajectories: Sequence[Trajectory]) -> None:
        meter.successes += sum(trajectory.success for trajectory in trajectories)

    rollouts = MeteredRollouts(
        plan,
        loaded,
        InProcessSampler(loaded.model),
        environment,
        SETTINGS,
        keep=keep,
        keep_demonstrations=lambda _: None,
        stopwatch=Stopwatch(),
    )
    rollouts.meter = meter
    return rollouts


def plain_trainer(rollouts: MeteredRollouts, config: GRPOConfig) -> tuple[GRPOTrainer, list[dict[str, Any]]]:
    """Return TRL's trainer on our rollouts, and its data set."""
    rows = [{"prompt": task.id} for step in rollouts.plan.steps for task in step]
    trainer = GRPOTrainer(
        model=rollouts.policy.model,
        args=config,
        reward_funcs=[outcome_reward],
        train_dataset=Dataset.from_list(rows),
        processing_class=rollouts.policy.tokenizer,
        rollout_func=lambda prompts, trainer: rollouts.step(prompts, trainer).columns(),
    )
    return trainer, rows


def environment_trainer(
    policy: Path, plan: RoundPlan, config: GRPOConfig, meter: Meter
) -> tuple[GRPOTrainer, list[dict[str, Any]]]:
    """Return TRL's trainer on its own path, and its data set. TRL's work around the measured methods is left out.

    The prompts are made equal to ours: TRL would derive schemas with other words from the methods' documentation.
    """

    class Metered(GRPOTrainer):
        def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
            with meter.rolling_out():
                generated: tuple[Any, ...] = super()._generate(prompts)
            meter.count(generated[0], generated[2])
            return generated

        def _calculate_rewards(self, *given: object) -> torch.Tensor:
            with meter.rolling_out():
                rewards: torch.Tensor = super()._calculate_rewards(*given)
            meter.successes += int(rewards.sum())
            return rewards

    environment = BFCLEnvironment((CLASS,))
    tools = environment_class(environment, plan.steps[0])

    class MeteredTools(tools):  # type: ignore[misc, valid-type]
        def reset(self, task_id: str, **others: object) -> None:
            with meter.rolling_out():
                super().reset(task_id, **others)

    loaded = load_policy(str(policy), "cpu")
    rows = [
        {"prompt": [{"role": "user", "content": task.turns[0]}], "task_id": task.id}
        for step in plan.steps
        for task in step
    ]
    trainer = Metered(
        model=loaded.model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=loaded.tokenizer,
        environment_factory=MeteredTools,
    )
    trainer._env_tools = {None: [tool_schema(tool) for tool in environment.tools(TOOLS)]}
    return trainer, rows


def take_steps(side: str, policy: Path, out: Path, plan: RoundPlan, meter: Meter) -> None:
    """Run rollouts and optimisation."""
    if side == TRL:
        settings = SETTINGS.model_copy(update={"max_tokens": COMPLETION})
        config = trainer_config(settings, plan, out, NEVER, on_cpu=True)
        config.max_tool_calling_iterations = SETTINGS.max_actions
        trainer, _ = environment_trainer(policy, plan, config, meter)
    else:
        rollouts = our_rollouts(policy, plan, meter)
        config = trainer_config(SETTINGS, plan, out, NEVER, on_cpu=True)
        if side == OURS:
            callback = RoundTurns(plan, rollouts.stopwatch, lambda _: None, lambda _: None)
            callback.meter = meter
            train(config, rollouts, callback, None)
            return
        trainer, _ = plain_trainer(rollouts, config)
    for printer in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printer)
    trainer.add_callback(StepsInTurn(meter))
    trainer.train()


def roll_out(side: str, policy: Path, out: Path, plan: RoundPlan, meter: Meter) -> None:
    """Run rollouts alone, through the method that TRL's trainer calls for those of a step."""
    settings = SETTINGS.model_copy(update={"kl": 0.0} | ({"max_tokens": COMPLETION} if side == TRL else {}))
    config = trainer_config(settings, plan, out, NEVER, on_cpu=True)
    config.max_tool_calling_iterations = SETTINGS.max_actions
    if side == TRL:
        trainer, rows = environment_trainer(policy, plan, config, meter)
    else:
        trainer, rows = plain_trainer(our_rollouts(policy, plan, meter), config)
    assert trainer.model is not None
    trainer.model.train()
    tasks = len(plan.steps[0])
    for step in range(len(plan.steps)):
        trainer.state.global_step = step
        torch.manual_seed(step)
        batch = [row for row in rows[step * tasks : (step + 1) * tasks] for _ in range(SETTINGS.rollouts_per_task)]
        meter.wait()
        trainer._generate_and_score_completions(batch)
        meter.record()


def main(work: str, side: str, policy: str, out: str, times: str) -> None:
    """Work in turn; output of libraries goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    plan = RoundPlan(run_seed=0, iteration=0, first_step=1, steps=(chat_tasks(),) * int(times))
    meter = Meter(sys.stdin, answers)
    (take_steps if work == "step" else roll_out)(side, Path(policy), Path(out), plan, meter)


if __name__ == "__main__":
    main(*sys.argv[1:])
