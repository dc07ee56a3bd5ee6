"""Exports of a run: tasks and trajectories as a data set, the policy with its card, trajectories for other tools."""
