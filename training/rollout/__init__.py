"""Rollouts: episodes played in an environment, and the samplers that write the policy's messages."""
