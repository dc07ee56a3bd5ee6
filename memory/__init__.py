"""Keep what outlives an iteration: records, the run directory, the task set, the failure memory."""
