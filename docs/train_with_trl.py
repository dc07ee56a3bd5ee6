"""Train a chat model on a run's tasks with TRL's own trainer: ``python docs/train_with_trl.py RUN MODEL OUTPUT``."""

import argparse

import torch
from trl import GRPOConfig, GRPOTrainer

from graph.interop.trl_spec import CoEvolveSpec


def main() -> None:
    """Read a run's tasks, train on them, write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="a run's folder")
    parser.add_argument("model", help="folder or hub id of a model whose chat template takes tools")
    parser.add_argument("output", help="folder for the trained model")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rollouts", type=int, default=8, help="of each task")
    parser.add_argument("--tokens", type=int, default=4096, help="of one rollout, after its prompt")
    given = parser.parse_args()

    spec = CoEvolveSpec(given.run)
    config = GRPOConfig(
        given.output,
        max_steps=given.steps,
        num_generations=given.rollouts,
        per_device_train_batch_size=given.rollouts,
        max_completion_length=given.tokens,
        max_tool_calling_iterations=20,  # messages with calls in one rollout
        logging_steps=1,
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
    )
    trainer = GRPOTrainer(
        given.model,
        args=config,
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
    )
    trainer.train()
    trainer.save_model(given.output)


if __name__ == "__main__":
    main()
