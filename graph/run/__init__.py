"""The loop over iterations: rounds, evaluations and graphs as stages; the initial task set; progress and signals."""
