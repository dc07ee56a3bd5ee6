"""Rule-based roles: no model, no key, deterministic by seed."""
