"""The test access log: one line per access to a held-out evaluation set, written before anything is scored.

Where a benchmark's held-out sets open for a study alone, a committed study recipe opens them. Elsewhere users score
their own models on them with ``evaluation.run``, which logs each access.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from environments.base import InputError, Record
from environments.checkout import ROOT
from memory.jsonl import append_jsonl, read_existing, read_jsonl

ACCESS_LOG_FILE = "openings.jsonl"
"""Name of a study's test access log. The committed studies have it, so the old word stays."""


class StudyAccess(Record):
    """One access of a study to held-out evaluation sets.

    ``recipe`` is the study's hash, ``panels`` maps the sets' names to the hashes of their tasks, ``seeds`` arms to the
    seeds that were to be scored. ``date`` is in UTC, ISO 8601.
    """

    date: str
    commit: str
    recipe: str
    panels: dict[str, str]
    seeds: dict[str, tuple[int, ...]]


class SplitAccess(Record):
    """One access of a user to a held-out set, logged before any of its tasks is read.

    ``date`` is in UTC, ISO 8601. ``commit`` is that of the folder the command was started in, None outside a
    repository. ``panel`` is the split, ``sha256`` the hash of its ids, of which the first ``tasks`` were to be scored;
    ``model`` is the folder or hub id.
    """

    date: str
    commit: str | None
    panel: str
    sha256: str
    tasks: int
    model: str


def log_split_access(log: Path, split: str, sha256: str, tasks: int, model: str) -> None:
    """Append one line to the log, on the disk before this returns. Raises InputError for a file of other lines."""
    if log.exists():
        read_jsonl(log, SplitAccess)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    commit = current_commit(ROOT)
    append_jsonl(log, [SplitAccess(date=date, commit=commit, panel=split, sha256=sha256, tasks=tasks, model=model)])


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
    """Return whether the file is the log of a study, by its first line."""
    if not log.is_file():
        return False
    with log.open("rb") as file:
        first = file.readline()
    try:
        StudyAccess.model_validate_json(first)
    except ValidationError:
        return False
    return True


def check_opened(log: Path | None, name: str, sha256: str) -> None:
    """Raise InputError unless the log has an access to the evaluation set ``name`` with this hash."""
    accesses = [] if log is None else read_existing(log, StudyAccess)
    if not any(access.panels.get(name) == sha256 for access in accesses):
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
