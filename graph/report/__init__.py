"""The reports of a run: summaries, costs, and the closing page."""
