"""What several tests share: builders, servers and scripts. Nothing here is collected."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""
