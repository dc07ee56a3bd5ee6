"""End every command alike: one sentence on stderr, and an exit status for the kind of failure.

Wrong options of a command are reported in the same way (``OneSentence``).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NoReturn

from typer.core import TyperCommand, TyperGroup

from environments.base import EnvironmentFault, InputError
from environments.terminal import say

FAILURE = 1
"""Exit status of work that failed though its input was right."""

MISTAKE = 2
"""Exit status of an error that the user can correct: wrong input, or an output path that is not writable."""

NOTHING = 4
"""Exit status of work that ended without an error and without a result: no task, and no trained policy."""

_ADVICE = {
    errno.ENOSPC: "free some space there and go on",
    errno.EDQUOT: "free some space there and go on",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f) and go on",
    errno.EROFS: "make it writable or choose another place",
    errno.EACCES: "give permission there or choose another place",
    errno.EPERM: "give permission there or choose another place",
    errno.EEXIST: "choose another path",
    errno.EISDIR: "choose another path",
    errno.ENOTDIR: "choose another path",
    errno.ENAMETOOLONG: "choose a shorter path",
}
_ROOM = "make room there (disk space, ulimit -f) and go on"
_IN_WORDS = {
    # SQLite, also inside Chroma, and torch's writer of weights omit the operating system's error number.
    "database or disk is full": _ROOM,
    "disk I/O error": _ROOM,
    "PytorchStreamWriter failed writing": _ROOM,
    "readonly database": _ADVICE[errno.EROFS],
    "unable to open database file": _ADVICE[errno.EACCES],
}
_TORN = "[enforce fail at inline_container.cc"  # torch's writer, which notices that its file is too short
_SENTENCES = {number: f"{os.strerror(number)}: {advice}" for number, advice in _ADVICE.items()}
_IN_RUST = re.compile(r"\(os error (\d+)\)")  # safetensors and Chroma
_REPR = re.compile(r"\w*Error\((\d+), ")


class StorageError(RuntimeError):
    """A write failed for lack of space or permission. Files written before are intact, so the work can go on."""


def storage_refusal(error: BaseException | str) -> str | None:
    """Return one sentence for a full disk, a limit on a file's size or a path that is not writable, else None.

    The sentence names the file where the error does. A text is the error of another process: its sentence, or its
    ``repr``.
    """
    text = " ".join(str(error).split())
    if isinstance(error, StorageError):
        return text
    if isinstance(error, OSError):
        place = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return place + _SENTENCES[error.errno] if error.errno in _SENTENCES else None
    if isinstance(error, str):
        if _ROOM in text or any(sentence in text for sentence in _SENTENCES.values()):
            return text
        if found := _REPR.match(text):
            return _SENTENCES.get(int(found[1]))
    if _TORN in text:
        return f"it could not be written in full: {_ROOM}"
    found = _IN_RUST.search(text)
    advice = (
        _ADVICE.get(int(found[1])) if found else next((_IN_WORDS[words] for words in _IN_WORDS if words in text), None)
    )
    return f"{text}: {advice}" if advice else None


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Raise StorageError that names ``place`` where a library's error about storage does not name a path."""
    try:
        yield
    except Exception as error:
        refusal = storage_refusal(error)
        if refusal is None or isinstance(error, StorageError | OSError):
            raise
        raise StorageError(f"{place}: {refusal}") from error


def check_output(option: str, path: Path, kind: Literal["file", "folder", "ledger"] = "file") -> None:
    """Check before long work that ``path``, which a user named, can be written at its end; else raise InputError.

    Existing files are not overwritten: a file and a folder must be new. A "ledger" is a log that grows.
    """
    if kind != "folder" and path.is_dir():
        raise InputError(f"{option} {path} is a folder: name a file")
    if kind != "ledger" and (path.exists() or path.is_symlink()):
        raise InputError(f"{path} exists: choose another {option}")
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise InputError(f"{option} {path} lies below the file {nearest}: choose another path")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path} needs permission to write in {nearest}: choose another path")


@contextmanager
def exit_statuses(*failures: type[Exception]) -> Iterator[None]:
    """End the process with one sentence when the block raises an expected error; only bugs end with a traceback.

    Status 2 for an InputError and for a failed write, 1 for an EnvironmentFault and the given ``failures``. The
    sentence follows "error: " on stderr.
    """
    work: tuple[type[Exception], ...] = (EnvironmentFault, *failures)
    try:
        yield
    except InputError as mistake:
        _leave(MISTAKE, str(mistake))
    except work as failure:
        _leave(FAILURE, str(failure))
    except Exception as error:
        refusal = storage_refusal(error)
        if refusal is None:
            raise
        _leave(MISTAKE, refusal)


def _leave(status: int, sentence: str) -> NoReturn:
    with suppress(OSError):  # stderr may be a file on the disk that is full
        say(f"error: {sentence}")
    raise SystemExit(status) from None


_UNKNOWN = re.compile(r"No such option: --([\w-]+)")


@contextmanager
def one_sentence(command: TyperCommand | TyperGroup) -> Iterator[None]:
    """Raise SystemExit with status 2, after a sentence on stderr, where ``command`` finds its arguments wrong."""
    try:
        yield
    except Exception as error:
        # The library's class of such errors has no public name, so its methods identify it.
        message = getattr(error, "format_message", None)
        if message is None or getattr(error, "exit_code", None) != MISTAKE or not message():
            raise
        say(f"error: {_sentence(command, message())}")
        raise SystemExit(MISTAKE) from None


def _sentence(command: TyperCommand | TyperGroup, message: str) -> str:
    text = " ".join(message.split()).rstrip(".?")
    text = text[:1].lower() + text[1:]
    unknown = _UNKNOWN.match(message)
    if unknown and any("--set" in parameter.opts for parameter in command.params):
        name = unknown[1].replace("-", "_")
        return f"there is no option --{unknown[1]}: settings are given as --set SECTION.{name}=VALUE, see --help"
    return text if "--help" in text else f"{text}: see --help"


class OneSentence(TyperCommand):
    """A command that reports wrong options in one sentence, like any other mistake, instead of in a box.

    Use it as ``app.command(cls=OneSentence)``.
    """

    def make_context(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the library's own types are private
        """Raise SystemExit with status 2 for options that are wrong."""
        with one_sentence(self):
            return super().make_context(*arguments, **options)


class OneSentenceGroup(TyperGroup):
    """A group of commands that reports wrong options and unknown commands in one sentence.

    Use it as ``typer.Typer(cls=OneSentenceGroup)``.
    """

    def make_context(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
        """Raise SystemExit with status 2 for options that are wrong."""
        with one_sentence(self):
            return super().make_context(*arguments, **options)

    def resolve_command(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
        """Raise SystemExit with status 2 for an unknown command."""
        with one_sentence(self):
            return super().resolve_command(*arguments, **options)
