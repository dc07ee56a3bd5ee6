"""Benchmarks of speed and cost against what a user would run instead."""
