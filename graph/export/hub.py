"""Puts an exported folder on the Hugging Face hub: the one place of the project that uploads."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from environments.base import InputError

REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
"""Names of the hub's repositories."""


class HubFailure(RuntimeError):
    """The hub could not be reached or refused the upload; the exported folder is there and can be pushed again."""


def check_push(repository: str) -> None:
    """Raise InputError, before anything is written, for a name that no repository has, and where the hub is off."""
    if not REPOSITORY.fullmatch(repository):
        raise InputError(f"--push {repository!r} is not a repository: write OWNER/NAME")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise InputError("--push needs the hub and HF_HUB_OFFLINE turns it off: unset it, or leave --push out")


def push_folder(folder: Path, repository: str, kind: Literal["dataset", "model"], *, public: bool) -> str:
    """Upload ``folder`` into a new repository, private unless ``public``, and return its address.

    Raises InputError for a repository that exists, which is never written into, and HubFailure for any other refusal.
    """
    from httpx2 import HTTPError as NetworkError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    try:
        if api.repo_exists(repository, repo_type=kind):
            raise InputError(f"--push {repository} exists, and nothing is overwritten: choose another name")
        address = api.create_repo(repository, repo_type=kind, private=not public)
        api.upload_folder(
            repo_id=repository,
            repo_type=kind,
            folder_path=folder,
            commit_message="Exported by coevolve export",
        )
    except (HfHubHTTPError, LocalTokenNotFoundError, NetworkError, OSError) as error:
        cause = " ".join(str(error).split())[:300]
        again = f"hf upload {repository} {folder} . --repo-type {kind} {'--no-private' if public else '--private'}"
        raise HubFailure(f"{repository} was not pushed ({cause}); {folder} is there: push it by {again}") from error
    return str(address)
