"""Verify tasks deterministically: replay, grounding, minimality, trivial policies, decontamination."""
