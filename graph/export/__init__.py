"""Exports of a run: tasks and trajectories as a data set with a card."""
