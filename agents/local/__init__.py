"""Roles that a small language model plays on this machine: it proposes calls, and words them (ours)."""
