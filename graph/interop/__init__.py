"""Environments and tasks of ours in the protocols of other frameworks: OpenEnv, and verifiers."""
