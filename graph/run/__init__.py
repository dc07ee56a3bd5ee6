"""The loop over iterations: rounds, evaluations and graphs as stages; the initial task set; interruption, progress."""
