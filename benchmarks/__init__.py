"""Speed and cost, against what a user would run instead."""
