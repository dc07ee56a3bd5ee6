"""The test access log: one line per access to a held-out evaluation set, written before anything is scored.

Where a benchmark's held-out sets open for a study alone, a committed study recipe opens them. Elsewhere users score
their own models on them with ``evaluation.run``, which logs each access.
"""

from __future__ import annotations

import hashlib
import operator
import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

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
    """Return the commit that HEAD names beside the first path, when each repository's HEAD has its file as it is here.

    Raises InputError for a file that is not committed or was changed since, and where git gives no answer.
    """
    first, *_ = [_commit_with(path) for path in paths]
    return first


def _commit_with(path: Path) -> str:
    """Return the commit that has the bytes of ``path``, of a folder that can be a stranger's.

    git runs programs that a repository's configuration names, also to look at a file. Here it reads objects and
    references through a folder of our own, which has no configuration, and never a work tree.
    """
    file = path.resolve()
    root = next((one for one in file.parents if (one / ".git").exists()), None)
    if root is None:
        raise InputError(
            f"{path} is in no git repository: test sets open for a committed recipe only, commit it in one"
        )
    own = root / (_line(root / ".git").removeprefix("gitdir:").strip() or ".git")  # elsewhere for a linked work tree
    shared = own / (_line(own / "commondir") or ".")
    with TemporaryDirectory(prefix="coevolve-git-") as folder:
        Path(folder, "HEAD").write_text(f"{_line(own / 'HEAD')}\n", encoding="utf-8")
        for name in ("objects", "refs", "packed-refs"):
            Path(folder, name).symlink_to((shared / name).resolve())
        commit = _git(["--git-dir", folder], "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        name = file.relative_to(root).as_posix()
        blob = _git(["--git-dir", folder], "rev-parse", "--verify", "--quiet", f"HEAD:{name}") if commit else None
    if commit is None or blob is None:
        raise InputError(f"{path} is not committed: test sets open for a committed recipe only, commit it")
    content = file.read_bytes()
    if blob != hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest():
        raise InputError(f"{path} differs from its commit: test sets open for a committed recipe, commit it")
    return commit


def _line(path: Path) -> str:
    """Return the beginning of a small file of git's; empty without the file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(4096).decode(errors="replace").strip()


def current_commit(folder: Path) -> str | None:
    """Return the commit that HEAD names in ``folder``, a checkout of the user's; None without one, git or commit."""
    try:
        return _git(["-C", str(folder)], "rev-parse", "HEAD") if (folder / ".git").exists() else None
    except InputError:
        return None


def commit_changed(folder: Path) -> bool:
    """Return whether tracked files of ``folder``, a checkout of the user's, differ from its commit."""
    return _git(["-C", str(folder)], "diff", "--quiet", "HEAD") is None


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


def _git(where: Sequence[str], *arguments: str) -> str | None:
    """Return what git prints; None when it fails. Raises InputError when it cannot be run or read the repository."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # git sets them in hooks
    try:
        argv = ["git", *where, *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=60, env=ours)
    except (OSError, subprocess.TimeoutExpired):
        raise InputError("git cannot be asked whether the recipe is committed: install it") from None
    if done.returncode == 128:
        raise InputError(f"git cannot read the repository ({done.stderr.strip()}): commit the recipe in another one")
    return done.stdout.strip() if done.returncode == 0 else None
