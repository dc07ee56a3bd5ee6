"""Whether a policy's path can be one: a folder, or what looks like a hub id. No torch, so that it is known at once."""

from __future__ import annotations

import re
from pathlib import Path

from environments.base import InputError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def check_policy_path(path: str) -> None:
    """Raises InputError for a path that is neither. A hub id is only believed where it is no mistyped folder."""
    folder = Path(path)
    if folder.is_dir():
        return
    if folder.exists():
        raise InputError(f"{path} is a file: name the policy's folder")
    beside_folders = folder.parent.is_dir() and folder.parent != Path(".")
    if beside_folders or not _HUB_ID.fullmatch(path):
        raise InputError(
            f"the policy {path} does not exist: name a folder or a hub id, or make a starter with "
            "python -m training.warm_start"
        )
