"""Training: rounds of GRPO and the signals found in their rollouts. Importing this package imports no torch."""
