"""Environments by name."""

from __future__ import annotations

from environments.base import Environment
from environments.settings import EnvironmentSettings


def open_environment(settings: EnvironmentSettings) -> Environment:
    """The environment that ``settings`` names. Raises InputError when what it needs is not installed."""
    from environments.bfcl.environment import BFCLEnvironment

    return BFCLEnvironment(settings.classes, settings.max_steps)
