"""Deterministic verification of tasks: replay, grounding, minimality, trivial policies, decontamination."""
