"""Import a heavy module when a test first uses it: every worker collects every file, and few run those that need it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """Stand for the module ``name``, which is imported at the first look at one of its attributes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") or attribute == "_mock_name":  # pytest asks everything in a module for these
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
