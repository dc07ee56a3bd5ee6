"""Studies: variants and seeds of a run, scored on fixed evaluation sets and compared (python -m evaluation.study)."""
