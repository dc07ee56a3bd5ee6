"""Builds a small AppWorld of invented people and content, so that the real engine runs where its data is not."""
