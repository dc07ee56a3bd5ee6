"""Renderings: how an episode becomes tokens, and how sampled tokens become actions."""
