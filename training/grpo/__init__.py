"""One round of GRPO on TRL: tasks, rollouts, rewards, the trainer, its checkpoints and its record."""
