"""The test access log: one line per access to a held-out evaluation set, written before anything is scored.

Where a benchmark's held-out sets open for a study alone, a committed study recipe opens them. Elsewhere users score
their own models on them with ``evaluation.run``, which logs each access.
"""

from __future__ import annotations

import operator
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from environments.base import InputError, Record
from memory.jsonl import append_jsonl, read_existing

ACCESS_LOG_FILE = "openings.jsonl"
"""Name of a study's test access log. The committed studies have it, so the old word stays."""


class Access(Record):
    """One access to held-out evaluation sets, logged before any of their tasks is read.

    ``date`` is in UTC, ISO 8601. ``commit`` is that of a study's recipe, else of this project, None outside a
    repository. ``panels`` maps the sets' names to the hashes of their tasks. A study has the hash of its ``recipe``,
    and by arm the ``seeds`` that were to be scored; a user's evaluation the ``model``, a folder, a hub id or an
    endpoint's, and the number of first ``tasks``.
    """

    date: str
    commit: str | None
    panels: dict[str, str]
    recipe: str | None = Field(None, exclude_if=operator.not_)
    seeds: dict[str, tuple[int, ...]] = Field({}, exclude_if=operator.not_)
    model: str | None = Field(None, exclude_if=operator.not_)
    tasks: int | None = Field(None, exclude_if=operator.not_)


def log_access(log: Path, access: Access) -> None:
    """Append one line to the log, on the disk before this returns. Raises InputError for a file of other lines."""
    read_existing(log, Access)
    append_jsonl(log, [access])


def now() -> str:
    """Return the date of an access."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def committed(paths: Sequence[Path]) -> str:
    """Return the commit that HEAD names, when it has every file of ``paths`` as it is in the work tree.

    Raises InputError for a file that is not committed or was changed since, and where git gives no answer.
    """
    for path in paths:
        folder = path.resolve().parent
        if _git(folder, "ls-files", "--error-unmatch", path.resolve().name) is None:
            raise InputError(f"{path} is not committed: test sets open for a committed recipe only, commit it")
        if _git(folder, "diff", "--quiet", "HEAD", "--", path.resolve().name) is None:
            raise InputError(f"{path} differs from its commit: test sets open for a committed recipe, commit it")
    commit = _git(paths[0].resolve().parent, "rev-parse", "HEAD")
    assert commit is not None, "a file that is committed has a commit"
    return commit


def current_commit(folder: Path) -> str | None:
    """Return the commit that HEAD names in ``folder``; None without a repository, git or commit."""
    try:
        return _git(folder, "rev-parse", "HEAD")
    except InputError:
        return None


def commit_changed(folder: Path) -> bool:
    """Return whether tracked files of ``folder``'s repository differ from its commit."""
    return _git(folder, "diff", "--quiet", "HEAD") is None


def is_of_study(log: Path) -> bool:
    """Return whether the file is the log of a study. Raises InputError for a file of other lines."""
    return any(access.recipe is not None for access in read_existing(log, Access))


def check_opened(log: Path | None, name: str, sha256: str) -> None:
    """Raise InputError unless a study's log has an access to the evaluation set ``name`` with this hash."""
    accesses = [] if log is None else read_existing(log, Access)
    if not any(access.recipe is not None and access.panels.get(name) == sha256 for access in accesses):
        raise InputError(
            f"--evaluation-set {name}: it is held out, and no test access log has an access to it: score it with "
            "python -m evaluation.study RECIPE --split test, or choose a development set"
        )


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints; None when it fails. Raises InputError when it cannot be run or finds no repository."""
    argv = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise InputError("git cannot be asked whether the recipe is committed: install it") from None
    if done.returncode == 128:
        raise InputError(f"git says nothing about {folder} ({done.stderr.strip()}): commit the recipe in a repository")
    return done.stdout.strip() if done.returncode == 0 else None
