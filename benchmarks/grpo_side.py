"""``python -m benchmarks.grpo_side SIDE POLICY OUT STEPS [model]``: a side of the comparison with TRL, in a process.

A step, rollouts and optimisation, is done for every line that is read, and answered with a line of JSON (``Figures``).
Model, tasks, prompts, number of rollouts, temperature, budget of tokens, reward, loss, KL weight and optimizer are
equal on both sides, and each runs on one thread. The learning rate is so small that the policy stays what it was. With
``model`` it is a language model, on the GPU where there is one, in bfloat16 and micro-batches of a group.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import IO, Any

import torch
from datasets import Dataset
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.chat_policy import CLASS, TOOLS, chat_tasks
from benchmarks.grpo import OURS, Figures
from environments.bfcl.benchmark import BFCLEnvironment
from graph.interop.trl_spec import environment_class, outcome_reward
from memory.processes import ORPHANED
from memory.records import Trajectory
from training.grpo.group_rollouts import GroupRollouts
from training.grpo.record import RoundPlan, Stopwatch
from training.grpo.trl_run import RoundCallback, train, trainer_config
from training.rendering.tool_calls import tool_schema
from training.rollout.in_process import InProcessSampler
from training.rollout.policy import Policy, load_policy
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


class Meter:
    """Waits for a line before a step, and reports its duration where the next one begins."""

    def __init__(self, commands: IO[str], answers: IO[str]) -> None:
        self.answers = answers
        self.begun = False
        self.turns: SimpleQueue[str] = SimpleQueue()
        self.parameters, self.products = 0, 0.0
        threading.Thread(target=self._listen, args=(commands,), daemon=True).start()

    def _listen(self, commands: IO[str]) -> None:
        """Queue the parent's lines; without a parent this process ends at once, in the middle of its work too."""
        for line in commands:
            self.turns.put(line)
        os._exit(ORPHANED)

    def turn(self) -> None:
        """Report the step that ends here, if there is one; then wait for the parent, and begin the next."""
        if self.begun:
            self.record()
        self.begun = True
        self.turns.get()
        self.rollouts = self.successes = self.sampled_tokens = self.prompt_tokens = 0
        self.rollout_wall = self.rollout_cpu = 0.0
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    @contextmanager
    def rolling_out(self) -> Iterator[None]:
        """Count the time inside as rollouts."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.rollout_wall += time.perf_counter() - wall
        self.rollout_cpu += time.process_time() - cpu

    def count(self, prompt_ids: Sequence[Sequence[int]], mask: Sequence[Sequence[int]]) -> None:
        """Add rollouts: their prompts, and masks that are 1 where a token was sampled."""
        self.rollouts += len(prompt_ids)
        self.prompt_tokens += sum(map(len, prompt_ids))
        self.sampled_tokens += sum(map(sum, mask))

    def record(self) -> None:
        """Answer the parent."""
        figures = Figures(
            rollouts=self.rollouts,
            successes=self.successes,
            sampled_tokens=self.sampled_tokens,
            prompt_tokens=self.prompt_tokens,
            rollout_wall=self.rollout_wall,
            rollout_cpu=self.rollout_cpu,
            wall=time.perf_counter() - self.wall,
            cpu=time.process_time() - self.cpu,
            parameters=self.parameters,
            products=self.products,
        )
        print(figures.model_dump_json(), file=self.answers, flush=True)


class MeteredRollouts(GroupRollouts):
    """The rollouts of the in-process sampler, measured."""

    meter: Meter

    def step(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Begin a step of the round: as GroupRollouts, measured."""
        self.meter.turn()
        with self.meter.rolling_out():
            batch = super().step(prompts, trainer)
        self.meter.count(batch["prompt_ids"], batch["env_mask"])
        return batch


def our_rollouts(loaded: Policy, plan: RoundPlan, meter: Meter, settings: TrainingSettings) -> MeteredRollouts:
    """Play the rollouts of a round with these settings; of their trajectories only the successes are counted."""
    environment = BFCLEnvironment((CLASS,))

    def keep(trajectories: Sequence[Trajectory]) -> None:
        meter.successes += sum(trajectory.success for trajectory in trajectories)

    rollouts = MeteredRollouts(
        plan,
        loaded,
        InProcessSampler(loaded.model),
        environment,
        settings,
        keep=keep,
        stopwatch=Stopwatch(),
    )
    rollouts.meter = meter
    return rollouts


def environment_trainer(loaded: Policy, plan: RoundPlan, config: GRPOConfig, meter: Meter) -> GRPOTrainer:
    """Return TRL's trainer on its own path. TRL's work around the measured methods is left out of the rollouts.

    The prompts are made equal to ours: TRL derives schemas without double spaces from the methods' documentation.
    """

    class Metered(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
            meter.turn()
            scored: dict[str, Any] = super()._generate_and_score_completions(inputs)
            return scored

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
    tools = environment_class(environment, plan.steps[0], SETTINGS)

    class MeteredTools(tools):  # type: ignore[misc, valid-type]
        def reset(self, task_id: str, **others: object) -> None:
            with meter.rolling_out():
                super().reset(task_id, **others)

    tasks = [task for step in plan.steps for task in step]
    rows = [{"prompt": [{"role": "user", "content": task.turns[0]}], "task_id": task.id} for task in tasks]
    trainer = Metered(
        model=loaded.model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=loaded.tokenizer,
        environment_factory=MeteredTools,
        reward_funcs=outcome_reward,
    )
    trainer._env_tools = {None: [tool_schema(tool) for tool in environment.tools(TOOLS)]}
    return trainer


def operations_per_second(device: torch.device, size: int = 8192) -> float:
    """Return what a bfloat16 product of square matrices does there: the median of five."""
    size = size if device.type == "cuda" else size // 8
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    taken = []
    for _ in range(6):
        began = time.perf_counter()
        (left @ right)[0, 0].item()  # waits for the device
        taken.append(time.perf_counter() - began)
    return float(2 * size**3 / median(taken[1:]))


def main(side: str, policy: str, out: str, steps: str, what: str = "") -> None:
    """Take steps in turn with the other side; output of libraries goes to stderr.

    The last step of the plan is never taken: it would end with a checkpoint.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    plan = RoundPlan(run_seed=0, iteration=0, first_step=1, steps=(chat_tasks(),) * (int(steps) + 1))
    meter = Meter(sys.stdin, answers)
    large = what == "model"
    loaded = load_policy(policy, "auto" if large else "cpu")
    device = next(loaded.model.parameters()).device
    settings = SETTINGS
    if large:
        meter.parameters, meter.products = loaded.model.num_parameters(), operations_per_second(device)
        settings = SETTINGS.model_copy(update={"micro_batch": SETTINGS.rollouts_per_task})
    on_cpu = device.type == "cpu"
    if side == OURS:
        rollouts = our_rollouts(loaded, plan, meter, settings)
        config = trainer_config(settings, plan, Path(out), NEVER, on_cpu=on_cpu, bfloat16=large)
        train(config, rollouts, RoundCallback(plan, rollouts.stopwatch, lambda *_: None, lambda _: None), None)
        return
    settings = settings.model_copy(update={"max_tokens": COMPLETION})
    config = trainer_config(settings, plan, Path(out), NEVER, on_cpu=on_cpu, bfloat16=large)
    config.max_tool_calling_iterations = SETTINGS.max_actions
    trainer = environment_trainer(loaded, plan, config, meter)
    for printer in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printer)
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
