"""The learning interface (SEAL, arXiv 2605.24426): an environment wrapper that adds cues, for training only."""
