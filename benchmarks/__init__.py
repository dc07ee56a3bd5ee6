"""Benchmarks of speed against what a user would run instead."""
