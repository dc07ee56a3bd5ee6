"""Held-out evaluation sets sliced from BFCL's reference paths, with templated user turns."""
