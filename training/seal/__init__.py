"""SEAL (arXiv 2605.24426): turn-level diagnosis, the adapting training interface, diagnosis-weighted advantages."""
