"""Rollouts: episodes driven against an environment, and the samplers that continue them token by token."""
