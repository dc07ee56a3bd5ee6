"""What a run prints and records about itself: summaries, costs, and the closing page."""
