"""Where agents act: the contract, verification, and the benchmarks that implement it."""
