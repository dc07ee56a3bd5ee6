"""How commands end: which errors are told in a sentence, with which status, and which stay tracebacks."""

import errno
import sqlite3
from pathlib import Path
from typing import Literal

import pytest

from environments.base import EnvironmentFault, InputError
from environments.command import StorageError, check_output, exit_statuses, storage_refusal


class TrainingFailure(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (InputError("recipe.yaml: no"), 2, "recipe.yaml: no"),
        (EnvironmentFault("the worker died"), 1, "the worker died"),
        (TrainingFailure("nan"), 1, "nan"),
        (StorageError("training.run_round: full"), 2, "training.run_round: full"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/run/tasks.jsonl"),
            2,
            "/run/tasks.jsonl: No space left on device: free some space there and go on",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/run/run.lock"),
            2,
            "/run/run.lock: Permission denied: give permission there or choose another place",
        ),
        (
            sqlite3.OperationalError("database or disk is full"),
            2,
            "database or disk is full: make room there (disk space, ulimit -f) and go on",
        ),
        (
            Exception("Error while serializing: I/O error: File too large (os error 27)"),
            2,
            "Error while serializing: I/O error: File too large (os error 27): "
            "raise the limit on the size of files (ulimit -f) and go on",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_sentence_and_a_status(
    error: Exception, status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end, exit_statuses(TrainingFailure):
        raise error
    assert end.value.code == status
    assert capsys.readouterr() == ("", f"error: {sentence}\n")


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("a bug"),
        TrainingFailure("not announced"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        RuntimeError("403: Permission denied"),
    ],
    ids=repr,
)
def test_what_is_not_known_stays_a_traceback(error: Exception) -> None:
    with pytest.raises(type(error)), exit_statuses():
        raise error


def test_a_block_that_ends_well_ends_nothing() -> None:
    with exit_statuses():
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EROFS])
def test_a_refusal_is_known_again_by_its_repr_and_by_its_sentence(number: int) -> None:
    error = OSError(number, "in words", "/run/file")
    told = storage_refusal(error)
    assert told is not None
    assert storage_refusal(f"training.run_round: {told}")
    assert storage_refusal(repr(error))
    assert storage_refusal(repr(StorageError(told)))


@pytest.mark.parametrize(
    "text", ["RoleRefused('Permission denied')", "ValueError('File too large')", "OSError(111, 'x')"]
)
def test_words_alone_are_no_refusal(text: str) -> None:
    assert storage_refusal(text) is None


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("new", "file", None),
        ("new/below", "folder", None),
        ("new", "ledger", None),
        ("file", "file", "file exists: choose another --out"),
        ("file", "folder", "file exists: choose another --out"),
        ("file", "ledger", None),
        ("folder", "file", "folder is a folder: name a file"),
        ("folder", "folder", "folder exists: choose another --out"),
        ("folder", "ledger", "folder is a folder: name a file"),
        ("link", "file", "link exists: choose another --out"),
        ("file/below", "file", "lies below the file"),
    ],
)
def test_nothing_that_is_there_is_written_over(
    tmp_path: Path, name: str, kind: Literal["file", "folder", "ledger"], told: str | None
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    if told is None:
        check_output("--out", tmp_path / name, kind)
    else:
        with pytest.raises(InputError, match=told):
            check_output("--out", tmp_path / name, kind)
