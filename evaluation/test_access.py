"""The ledger of openings: what is opened of a held-out panel, each opening a line noted before anything is scored.

Where a benchmark's held-out sets open for a study alone, a committed study recipe opens them. Elsewhere users score
their own models on them with ``evaluation.run``, which notes each opening.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from environments.base import InputError, Record
from memory.jsonl import append_jsonl, read_jsonl

OPENINGS_FILE = "openings.jsonl"


class Opening(Record):
    """One opening of held-out panels, noted before anything is scored on them.

    ``recipe`` is the study's hash, ``panels`` maps names to the hashes of their tasks, ``seeds`` arms to the seeds that
    were to be scored. ``date`` is in UTC, ISO 8601.
    """

    date: str
    commit: str
    recipe: str
    panels: dict[str, str]
    seeds: dict[str, tuple[int, ...]]


class SplitOpening(Record):
    """One opening of a held-out set by a user, noted before any of its tasks is read.

    ``date`` is in UTC, ISO 8601. ``commit`` is that of the folder the command was started in, None where it is in no
    repository. ``sha256`` is that of the split's ids, of which the first ``tasks`` were to be scored; ``model`` is the
    folder or hub id.
    """

    date: str
    commit: str | None
    panel: str
    sha256: str
    tasks: int
    model: str


def note_split_opening(ledger: Path, panel: str, sha256: str, tasks: int, model: str) -> None:
    """Append one line to the ledger, on the disk before this returns. Raises InputError for a file of other lines."""
    if ledger.exists():
        read_jsonl(ledger, SplitOpening)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    commit = current_commit(Path.cwd())
    append_jsonl(ledger, [SplitOpening(date=date, commit=commit, panel=panel, sha256=sha256, tasks=tasks, model=model)])


def committed(paths: Sequence[Path]) -> str:
    """The commit that HEAD names, when every file of ``paths`` stands in it as it lies in the work tree.

    Raises InputError for a file that is not committed, or changed since, and where git has nothing to say.
    """
    for path in paths:
        folder = path.resolve().parent
        if _git(folder, "ls-files", "--error-unmatch", path.resolve().name) is None:
            raise InputError(f"{path} is not committed: the test panel opens for a committed recipe only, commit it")
        if _git(folder, "diff", "--quiet", "HEAD", "--", path.resolve().name) is None:
            raise InputError(f"{path} differs from its commit: the test panel opens for a committed recipe, commit it")
    commit = _git(paths[0].resolve().parent, "rev-parse", "HEAD")
    assert commit is not None, "a file that is committed has a commit"
    return commit


def current_commit(folder: Path) -> str | None:
    """The commit that HEAD names in ``folder``; None where there is none to tell."""
    try:
        return _git(folder, "rev-parse", "HEAD")
    except InputError:
        return None


def note_opening(ledger: Path, opening: Opening) -> None:
    """Append one line to the ledger, on the disk before this returns."""
    append_jsonl(ledger, [opening])


def read_openings(ledger: Path) -> list[Opening]:
    """Every opening so far, none when there is no ledger. Raises InputError for a corrupt line."""
    return read_jsonl(ledger, Opening) if ledger.exists() else []


def check_opened(ledger: Path | None, panel: str, sha256: str) -> None:
    """Raises InputError unless the ledger notes an opening of the panel with this hash."""
    noted = [] if ledger is None else read_openings(ledger)
    if not any(opening.panels.get(panel) == sha256 for opening in noted):
        raise InputError(
            f"--panel {panel}: it is held out, and no ledger of openings notes that it was opened: score it with "
            "python -m evaluation.study RECIPE --panel test, or choose a development panel"
        )


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None when it says no. Raises InputError when it cannot be run or finds no repository."""
    argv = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise InputError("git cannot be asked whether the recipe is committed: install it") from None
    if done.returncode == 128:
        raise InputError(f"git says nothing about {folder} ({done.stderr.strip()}): commit the recipe in a repository")
    return done.stdout.strip() if done.returncode == 0 else None
