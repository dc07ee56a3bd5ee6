"""Opens every file of a run and of a study, and writes it whole or not at all.

Anybody may have made a run or a study. Below a folder that was given to ``keep`` no link is followed: each folder on
the way is opened from the one above it, without following links, and then the file. Only regular files are opened, and
they are read up to a length that memory holds. Other files are the user's, who may have linked them.

Libraries open files by their paths: SQLite, Chroma, safetensors. ``check_kept`` refuses a run that holds a link, a pipe
or a device before any of them begins. It says so early and does not protect from who changes the run later; what is
opened here is protected then, too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EISDIR, ELOOP, ENODEV, ENOTDIR, ENXIO
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn

import psutil  # type: ignore[import-untyped]

from environments.base import InputError

LONGEST = 2**26
"""Largest JSON file, unpacked file, or line of JSON lines, in bytes that is read (ours); our own are far shorter."""

LOG_END = 2**18
"""Bytes at the end of a log in which its last sentences are looked for (ours)."""

_kept: set[str] = set()

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)-\d+\.tmp")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FLAGS = {"rb": os.O_RDONLY, "rb+": os.O_RDWR, "ab+": os.O_RDWR | os.O_APPEND | os.O_CREAT}
_NO_FILE = (EISDIR, ELOOP, ENODEV, ENOTDIR, ENXIO)


def keep(path: Path) -> None:
    """Follow no link below the folder ``path`` from now on, nor one in place of the file ``path``."""
    _kept.add(os.path.abspath(path))


def _parts(path: Path) -> tuple[str, list[str]] | None:
    """Return the outermost kept folder above ``path``, and the names below it; None where there is none."""
    names = os.path.abspath(path).split(os.sep)
    for end in range(1, len(names) + 1):
        if os.sep.join(names[:end]) in _kept:
            place = min(end, len(names) - 1)  # a kept file has no names below it
            return os.sep.join(names[:place]) or os.sep, names[place:]
    return None


def _refuse(path: str | Path, mode: int) -> NoReturn:
    path = str(path).replace("\n", "\\n")  # one line, whatever the name
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        one, other = ("file", "folder") if stat.S_ISREG(mode) else ("folder", "file")
        raise InputError(f"{path} is a {one} where a {other} belongs: remove it")
    kind = "a link" if stat.S_ISLNK(mode) else "a pipe, a device or a socket"
    raise InputError(
        f"{path} is {kind}: a run and a study hold files of their own alone, so that nothing outside is read or "
        "written: remove it, or put a copy of what it stands for in its place"
    )


@contextmanager
def _place(path: Path, *, make: bool = False) -> Iterator[tuple[str, int | None]]:
    """Give a name for ``path``, and the folder's descriptor that it belongs to; None: the name is a whole path.

    ``make``: make missing folders. Raises InputError for a link in place of a folder, and OSError.
    """
    parts = _parts(path)
    if make:
        (path.parent if parts is None else Path(parts[0])).mkdir(parents=True, exist_ok=True)
    if parts is None:
        yield str(path), None
        return
    root, names = parts
    at = os.open(root, _FOLDER)
    try:
        for count, name in enumerate(names[:-1], start=1):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=at)
            try:
                below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            except OSError as error:
                if error.errno in _NO_FILE:
                    mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
                    _refuse(Path(root, *names[:count]), mode)
                raise
            os.close(at)
            at = below
        yield names[-1], at
    finally:
        os.close(at)


@contextmanager
def opened(path: Path, mode: Literal["rb", "rb+", "ab+"] = "rb") -> Iterator[BinaryIO]:
    """Open a regular file to read it, to change it in its place, or to append to it, unbuffered.

    A missing one is made to append to, with its folder. Raises OSError; InputError for a missing file, a link below a
    kept folder, a folder, pipe or device, and for a kept file to be written that has a second name: a hard link is a
    file of somebody else's as well.
    """
    adds = mode == "ab+"
    kept = _parts(path) is not None
    flags = _FLAGS[mode] | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (os.O_NOFOLLOW if kept else 0)
    try:
        with _place(path, make=adds) as (name, at):
            descriptor = os.open(name, flags, 0o666, dir_fd=at)  # opening a pipe without a writer would block
    except FileNotFoundError:
        if adds:
            raise
        raise InputError(f"{path} does not exist: check the path") from None
    except OSError as error:
        if error.errno in _NO_FILE:
            if kept:
                _refuse(path, os.lstat(os.path.abspath(path)).st_mode)
            raise InputError(f"{path} is a folder, a pipe or a device: name a file") from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path} is a folder, a pipe or a device: name a file")
        if kept and mode != "rb" and found.st_nlink > 1:
            raise InputError(
                f"{path} is a hard link, and what has its other name would change with it: put a copy in its place"
            )
    except InputError:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, mode, buffering=0 if adds else -1) as file:
        yield file


def check_kept(root: Path) -> None:
    """Raise InputError for the first link, pipe, device or socket below ``root``, which may itself be a link."""
    for entry in _entries(root):
        if entry.is_symlink() or not (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)):
            _refuse(entry.path, stat.S_IFLNK if entry.is_symlink() else 0)


def _entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder and in those below it, by name; links are not followed."""
    folders = [str(root)]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=attrgetter("name"))
        except FileNotFoundError:  # removed meanwhile: a run may be read while it goes on
            continue
        except OSError as error:
            raise InputError(f"{folder} cannot be looked through ({error.strerror}): remove it") from None
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)


def remove_leftovers(folder: Path) -> tuple[Path, ...]:
    """Remove the temporary files of killed writers below ``folder``. Files of living processes stay."""
    removed = []
    for path in [Path(entry.path) for entry in _entries(folder) if entry.name.endswith(".tmp")]:
        match = _LEFTOVER.fullmatch(path.name)
        if match and not psutil.pid_exists(int(match["pid"])):
            path.unlink(missing_ok=True)
            removed.append(path)
    return tuple(removed)


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace ``path`` by ``chunks``: a temporary file beside it, flushed to the disk, then renamed over it.

    On any error (a full disk raises OSError, which names ``path``) the old file stays as it was and the temporary one
    is removed. A missing folder is made.
    """
    with _named(path), _place(path, make=True) as (name, at):
        folder = os.path.dirname(name)
        temporary = os.path.join(folder, f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        with suppress(FileNotFoundError):  # of a killed process that had this number
            os.unlink(temporary, dir_fd=at)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=at)
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(chunks)
                _flush(file)
            os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException as error:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=at)
            if isinstance(error, IsADirectoryError):
                _refuse(path, stat.S_IFDIR)
            raise
        _sync_folder(folder or ".", at)  # the renaming, too


def append(path: Path, lines: bytes) -> int:
    """Append whole ``lines``, flush to the disk, and return the file's new length in bytes.

    On OSError (a full disk; it names ``path``) the file is cut back to its old length. Raises InputError for a file
    that ends in half a line, because the appended ones could not be read.
    """
    with _named(path), opened(path, "ab+") as file:
        length = file.seek(0, os.SEEK_END)
        if length:
            file.seek(length - 1)
            if file.read(1) != b"\n":
                raise InputError(f"{path} ends in half a line: cut it after its last whole line before adding to it")
        try:
            view = memoryview(lines)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(length)
            raise
    return length + len(lines)


def mend(path: Path) -> None:
    """Cut off half a line that a killed process left at the end of a file, if there is one."""
    if path.exists():
        end = sum(len(line) for _, line in read_lines(path, whole=True))
        cut(path, end)


def cut(path: Path, length: int) -> None:
    """Cut a file back to ``length`` bytes."""
    with opened(path, "rb+") as file:
        file.truncate(length)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a folder to write into that is renamed to ``path`` when it is complete, and removed on failure.

    Renaming replaces an empty folder only: one that somebody made meanwhile stays.
    """
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name ``path`` in an OSError: a write's error names no file, or the temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: str, at: int | None) -> None:
    descriptor = os.open(folder, _FOLDER, dir_fd=at)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_whole(path: Path, longest: int = LONGEST) -> bytes:
    """Return a regular file's content, at most ``longest`` bytes. Raises OSError, and InputError for another file."""
    with opened(path) as file:
        content = file.read(longest + 1)
    if len(content) > longest:
        raise InputError(f"{path} has more than {longest} bytes: it is not what is looked for")
    return content


def sha256_of(*paths: Path) -> str:
    """Return the hash of the contents of files, one after the other, as hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        with opened(path) as file:
            while piece := file.read(2**20):  # a shard of a real model's weights has gigabytes
                digest.update(piece)
    return digest.hexdigest()


def read_text(path: Path) -> str:
    """Return a file of UTF-8 as text. Raises like ``read_whole``."""
    try:
        return read_whole(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}): save it as that") from None


def read_lines(path: Path, *, start: int = 0, whole: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a regular file from the byte ``start`` with their numbers from 1. Raises like ``read_whole``.

    ``whole``: without half a line at the end, which a process is about to write or was killed at.
    """
    with opened(path) as file:
        file.seek(start)
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), start=1):
            if len(line) > LONGEST:
                raise InputError(f"{path}, line {number}: the line has more than {LONGEST} bytes")
            if whole and not line.endswith(b"\n"):
                return
            yield number, line


def read_packed(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a gzip file with their numbers from 1. Raises InputError for a damaged one, and for a bomb."""
    packed, unpacking = read_whole(path), zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        text = unpacking.decompress(packed, LONGEST + 1)
    except zlib.error:
        text = b""
    if len(text) > LONGEST:
        raise InputError(f"{path} unpacks to more than {LONGEST} bytes: it is not what is looked for")
    if not unpacking.eof or unpacking.unused_data:
        raise InputError(f"{path} is not a whole gzip file: remove it, and the study makes it again")
    yield from enumerate(BytesIO(text), start=1)


def read_end(path: Path, start: int = 0, longest: int = LOG_END) -> str:
    """Return the end of what was written to a log since its byte ``start``, at most ``longest`` bytes of it."""
    with opened(path) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - longest))
        return file.read(longest).decode(errors="replace").strip()
