"""A command beside the person who runs it: what it prints, how it ends, and how it is stopped.

Every line on stderr goes through ``say``, because errors, warnings and progress quote what endpoints, hosts, recipes
and models wrote: whatever a text holds, it does not control the terminal. A command ends with one sentence and an exit
status for the kind of failure; wrong options too (``OneSentence``). Progress is lines with the time left. At a signal
work stops, its records stay, and the exit status names the signal.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from environments.base import EnvironmentFault, InputError

_KEPT = "\n\t"
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def printable(text: str, kept: str = "") -> str:
    """Return ``text`` with a space for each character that is not printable, except those in ``kept``.

    Those are control characters, escape sequences' first ones among them, marks of the writing direction, half
    surrogates and odd spaces.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in kept else " " for letter in text)


def say(text: str) -> None:
    """Print ``text`` on stderr at once, its lines as they are."""
    print(printable(text, _KEPT), file=sys.stderr, flush=True)


def table_cell(value: object) -> str:
    """Return a value as one cell of a Markdown table: a line without markup of tables or HTML."""
    return _TAG.sub("&lt;", " ".join(str(value).split()).replace("|", "\\|"))


def markdown_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(map(table_cell, row))} |" for row in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> None:
    """Print a table that has a row on stdout, its cells as they are: the first and unnamed columns to the left."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), caption=Text(caption) if caption else None)
    for place, column in enumerate(head):
        table.add_column(Text(column), justify="right" if place and column else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    if table.row_count:
        Console().print(table)


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


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="one setting, as in a recipe; @FILE: all those of a file"),
]
"""The option of a command that reads a recipe. It may be given several times."""


HELP_ALL = "--help-all"
"""Shows the options of a command that ``--help`` leaves out."""


class OneSentence(TyperCommand):
    """A command that reports wrong options in one sentence, like any other mistake, instead of in a box.

    Use it as ``app.command(cls=OneSentence)``. Of a command with many options, a subclass names in ``often`` those that
    ``--help`` shows; ``--help-all`` shows all.
    """

    often: ClassVar[Collection[str]] = ()

    def make_context(self, info_name: str | None, args: list[str], *others: Any, **options: Any) -> Any:  # noqa: ANN401 - the library's own types are private
        """Raise SystemExit with status 2 for options that are wrong."""
        if self.often:
            rare = [one for one in self.params if isinstance(one, TyperOption) and one.name not in self.often]
            for one in rare:
                one.hidden = HELP_ALL not in args
            self.epilog = None if HELP_ALL in args else f"{HELP_ALL} shows {len(rare)} more options."
            args = ["--help" if one == HELP_ALL else one for one in args]
        with one_sentence(self):
            return super().make_context(info_name, args, *others, **options)


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


INTERVAL = 5.0  # seconds between two lines of one stage


class Stage:
    """One piece of work in ``total`` parts (None: unknown); ``result`` is said when it is done."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label = label
        self._total = total
        self._first: tuple[int, float] | None = None
        self.result = ""
        self._shown_at = time.monotonic()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show that ``done`` parts of ``total`` are done; ``note`` is a few words more, such as a mean so far."""
        if self._first is None and done:
            self._first = (done, time.monotonic())
        self._total = total if total is not None else self._total
        if time.monotonic() - self._shown_at >= INTERVAL:
            self._shown_at = time.monotonic()
            parts = [f"{self._label}: {done}{f' of {self._total}' if self._total else ''}", self._eta(done), note]
            say(", ".join(filter(None, parts)))

    def _eta(self, done: int) -> str:
        """Return the time left, from the pace since the first part: loading a process or model happens only once."""
        if not self._total or self._first is None or done <= self._first[0]:
            return ""
        begun, since = self._first
        left = (time.monotonic() - since) / (done - begun) * (self._total - done)
        return f"{left:.0f} s left"


@contextmanager
def show_stage(label: str, total: int | None = None) -> Iterator[Stage]:
    """Show a stage while the block runs, and its seconds and ``Stage.result`` when it did not fail."""
    say(f"{label} ...")
    begun, stage = time.monotonic(), Stage(label, total)
    yield stage
    say(", ".join(filter(None, (f"{label}: done in {time.monotonic() - begun:.1f} s", stage.result))))


Result = TypeVar("Result")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HUNG_SECONDS = 30.0


def run_interruptible(work: Coroutine[Any, Any, Result], then: str = "") -> Result:
    """Run ``work`` on an event loop; a signal cancels it.

    Raises typer.Exit with the shell's status of a signal that ended it, 129, 130 or 143, after a line on stderr that
    ends with ``then``. A thread that ``work`` abandoned (a branch past its timeout) may continue for HUNG_SECONDS. Then
    the process ends with status 1, because Python would wait for the thread forever.
    """
    watchdog = threading.Timer(HUNG_SECONDS, _give_up)
    watchdog.daemon = True
    try:
        return asyncio.run(_supervise(work, watchdog, then))
    finally:
        watchdog.cancel()


async def _supervise(work: Coroutine[Any, Any, Result], watchdog: threading.Timer, then: str) -> Result:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def receive(number: signal.Signals) -> None:
        received.append(number)
        expect_dropped_branches()
        if task is not None:
            task.cancel()

    before = {number: signal.getsignal(number) for number in ending_signals()}
    for number in before:
        loop.add_signal_handler(number, receive, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not received:
            raise
        say(f"stopped by {received[0].name}{then}")
        raise typer.Exit(128 + received[0]) from None
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
        watchdog.start()


def expect_dropped_branches() -> None:
    """Silence LangGraph's warning about branches that it drops before they begin, as a stop requires."""
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)


def _give_up() -> None:
    say(
        "error: a call into the environment or of a model on this machine does not end: leaving, continue with --resume"
    )
    os._exit(1)


def exit_on_signals(*, status: int | None = None, at_once: bool = False) -> None:
    """Until an event loop takes over, end the process on a signal with the status of ``run_interruptible``.

    ``status``: another one. ``at_once``: without waiting for threads, for a command that leaves nothing behind.
    """

    def leave(number: int, _: FrameType | None) -> None:
        chosen = 128 + number if status is None else status
        if at_once:
            os._exit(chosen)
        sys.exit(chosen)

    for number in ending_signals():
        signal.signal(number, leave)


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a command: SIGHUP not where it is ignored, as ``nohup`` does."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in SIGNALS if not (ignored and number is signal.SIGHUP))
