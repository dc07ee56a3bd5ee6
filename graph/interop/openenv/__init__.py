"""Tasks of ours for OpenEnv's clients."""
