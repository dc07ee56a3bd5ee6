"""Resolves the path of a policy: a folder, one of this project's own, or a hub id. Free of torch: it is fast."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from environments.base import InputError
from environments.checkout import PACKAGED_MODEL, ROOT, shipped_policy

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_OURS = {
    *("agents", "benchmarks", "build", "docs", "environments", "evaluation", "graph", "memory"),
    *("notebooks", "recipes", "results", "runs", "tests", "training"),
}
"""The folders of this project. A path that begins with one is never looked up on the hub: an account there may have any
of these names, and its models are not what was meant."""

ANSWER_WITHIN = 10.0
"""Timeout of the hub in seconds; without an answer it counts as out of reach (ours)."""


def policy_folder(path: str) -> str:
    """Return the shipped policy that ``path`` names, else ``path`` where it is a folder, else the hub id.

    Policies that ship with the project (``recipes/starter``) and the model of ``make model`` have their name in every
    working directory; any other relative path is looked up in the working directory, and in the checkout where it
    begins with one of its folders. Raises InputError for a path that is none of these. A hub id is accepted only where
    it is not a mistyped folder.
    """
    folder, shipped = Path(path), shipped_policy(path)
    if shipped is not None and not (folder.is_dir() and folder.samefile(shipped)):
        return str(shipped)
    if path == PACKAGED_MODEL and shipped is None:
        raise InputError(f"the policy {path} is not made here yet: run make model in {ROOT}")
    if folder.is_dir():
        return path
    if folder.exists():
        raise InputError(f"{path} is a file: name the policy's folder")
    ours = not folder.is_absolute() and folder.parts[:1] and folder.parts[0] in _OURS
    if ours and (ROOT / folder).is_dir():
        return str(ROOT / folder)
    beside_folders = folder.parent.is_dir() and folder.parent != Path(".")
    if ours or beside_folders or not _HUB_ID.fullmatch(path):
        raise InputError(
            f"the policy {path} does not exist: name a folder or a hub id, or make an initial policy with "
            "python -m training.warm_start --model embedded"
        )
    return path


def check_policy_path(path: str) -> None:
    """Raise InputError like ``policy_folder``."""
    policy_folder(path)


@functools.cache
def hub_trouble(path: str) -> str | None:
    """Return why the hub cannot be asked for the model ``path``, in a few words; None if it answers, and for a folder.

    Raises InputError when the hub answers that it has no such model.
    """
    # One short request instead of the libraries' retries for every file.
    if Path(path).is_dir():
        return None
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(path, timeout=ANSWER_WITHIN)
    except RepositoryNotFoundError as error:
        raise InputError(
            f"the hub has no model {path} that may be read: check the name, or log in where it is private"
        ) from error
    except Exception as error:  # noqa: BLE001 - whatever the trouble is, the cache may hold the model
        said = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}: {said}"
    return None
