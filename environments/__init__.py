"""Environments that agents act in: the interface, verification, and the benchmarks that implement it."""
