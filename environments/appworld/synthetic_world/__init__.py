"""Build a small synthetic AppWorld of invented people and content, to run the real engine without the official data."""
