"""Records on disk: JSON and JSON lines, written whole or not at all, and read with the line named that is wrong.

What is read may come from anybody: regular files alone, of a length that memory holds, and with the parser's own limits
on depth (200 levels), digits and characters.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import psutil  # type: ignore[import-untyped]
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import from_json

from environments.base import InputError, TaskSpec

# Ids and seeds as hashes of parents and position, so that a resumed run makes the same ones.


def _digest(parts: tuple[object, ...]) -> bytes:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str).encode()).digest()


def record_id(kind: str, *parts: object) -> str:
    """A record's id, ``KIND-`` and 16 hex digits, from its parents' ids and its position among siblings."""
    return f"{kind}-{_digest((kind, *parts)).hex()[:16]}"


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from (run seed, iteration, stage, id, ...): draws do not depend on order or concurrency."""
    return int.from_bytes(_digest(parts)[:8], "big") >> 1


__all__ = [
    "append_jsonl",
    "check_end",
    "complaint",
    "dump_line",
    "parse_json",
    "read_json",
    "read_jsonl",
    "read_lines",
    "read_whole",
    "remove_leftovers",
    "write_atomically",
    "write_json",
    "write_jsonl",
]

Model = TypeVar("Model", bound=BaseModel)

LONGEST = 2**26
"""Bytes of a JSON file, or of one line of JSON lines, that are read (ours); what is written is far shorter."""

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)-\d+\.tmp")
_BLOCK = 1 << 16  # bytes read at once
_FIRST_KEYS = ("id", "environment", "split", "origin")
_LEFT_OUT_WHEN_DEFAULT = ("withheld", "long_context")


def complaint(error: ValidationError, within: str = "") -> str:
    """The first thing pydantic found wrong, as ``key: what (got value)``, and how many more there are.

    ``within`` is the key below which the model was read.
    """
    first, *more = error.errors(include_url=False)
    key = ".".join(str(part) for part in (within, *first["loc"]) if part != "")
    text = f"{key}: {first['msg']}" if key else str(first["msg"])
    # What an unknown key holds stays unsaid: it may be a secret that was put in the wrong place.
    unsaid = {"missing", "json_invalid", "extra_forbidden"}
    if first["type"] not in unsaid and isinstance(first["input"], str | int | float | bool):
        text += f" (got {first['input']!r:.80})"
    return f"{text}, and {len(more)} more" if more else text


def _plain(record: BaseModel) -> dict[str, Any]:
    """The record as JSON values. A task's ``withheld`` and ``long_context`` are written only when they say something:
    the interface of tasks.jsonl lists the keys that every line has, and these two are not among them."""
    plain = record.model_dump(mode="json")
    if not isinstance(record, TaskSpec):
        return plain
    left_out = {
        name for name in _LEFT_OUT_WHEN_DEFAULT if getattr(record, name) == type(record).model_fields[name].default
    }
    first = {key: plain[key] for key in _FIRST_KEYS if key in plain}
    return first | {key: value for key, value in plain.items() if key not in left_out and key not in first}


def dump_line(record: BaseModel) -> str:
    """One record as one line of JSON, with its newline. Raises ValueError for NaN and infinities, which JSON lacks."""
    return json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n"


def write_atomically(path: Path, chunks: Iterable[bytes], *, new: bool = False) -> None:
    """Replace ``path`` by ``chunks``: a temporary file beside it, flushed to the disk, then renamed over it.

    ``new``: refuse a file that is there, also one that appeared a moment ago (FileExistsError).
    Whatever goes wrong (a full disk raises OSError, which names ``path``), the old file stays as it was and the
    temporary one is removed. The folder is made when it is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with _named(path):
        try:
            with temporary.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                _flush(file)
            if new:
                _put_in_place(temporary, path)
            else:
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def _put_in_place(temporary: Path, path: Path) -> None:
    """Give a file its name, unlike a rename never that of another file. Raises FileExistsError."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # some network and USB drives have no links
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(temporary, path)
    else:
        temporary.unlink()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """An OSError of a write does not say of which file, or names the temporary one: name ``path``."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename or a new file in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> tuple[Path, ...]:
    """Remove, below ``folder``, the temporary files of writers that were killed. Files of living processes stay."""
    removed = []
    for path in sorted(folder.rglob(".*.tmp")):
        match = _LEFTOVER.fullmatch(path.name)
        if match and not _alive(int(match["pid"])):
            path.unlink(missing_ok=True)
            removed.append(path)
    return tuple(removed)


def _alive(pid: int) -> bool:
    """Whether the process may still write; one that ended and waits to be collected (a zombie) does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def write_jsonl(path: Path, records: Iterable[BaseModel], *, new: bool = False) -> None:
    """Replace the file by one line a record, atomically; ``new`` refuses one that exists (see ``write_atomically``)."""
    write_atomically(path, (dump_line(record).encode() for record in records), new=new)


def append_jsonl(path: Path, records: Iterable[BaseModel], *, durable: bool = True) -> int:
    """Add one line a record and flush to the disk; returns the file's new length in bytes.

    Without ``durable`` the lines outlive the process but not a power cut, and the caller does not wait for the disk.

    On OSError (a full disk; it names ``path``) the file is cut back to its old length. A process killed in the middle
    leaves a line without an end: whoever resumes truncates the file to the last length that it recorded. Raises
    InputError for a file that ends in such a line, because what follows it could not be read.
    """
    lines = "".join(dump_line(record) for record in records).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _named(path), path.open("ab+", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        if length:
            file.seek(length - 1)
            if file.read(1) != b"\n":
                raise InputError(f"{path} ends in half a line: cut it after its last whole line before adding to it")
        try:
            view = memoryview(lines)
            while view:
                view = view[file.write(view) :]
            if durable:
                os.fsync(file.fileno())
        except BaseException:
            file.truncate(length)
            raise
    if not length:
        _sync_folder(path.parent)
    return length + len(lines)


@contextmanager
def _regular(path: Path) -> Iterator[BinaryIO]:
    """The file, opened for reading; a pipe or a device may have no end. Raises InputError for these, and OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that nobody writes to opens at once
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is a folder, a pipe or a device: name a file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_whole(path: Path, longest: int = LONGEST) -> bytes:
    """The whole regular file. Raises InputError that names it where it is none or has more than ``longest`` bytes, and
    OSError where it cannot be read."""
    with _regular(path) as file:
        content = file.read(longest + 1)
    if len(content) > longest:
        raise InputError(f"{path} has more than {longest} bytes: it is not what is looked for")
    return content


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a regular file with their numbers from 1. Raises like ``read_whole``, for one line's length."""
    with _regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), start=1):
            if len(line) > LONGEST:
                raise InputError(f"{path}, line {number}: the line has more than {LONGEST} bytes")
            yield number, line


def parse_json(text: bytes) -> JsonValue:
    """The JSON value in ``text``, one that can be written to a record again.

    Raises ValueError for what is none, and for what other parsers take: NaN and numbers that overflow, half of a
    surrogate pair, more than 200 levels.
    """
    value: JsonValue = from_json(text, allow_inf_nan=False)
    json.dumps(value, allow_nan=False)  # 1e999 is parsed as infinity
    return value


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        yield from read_lines(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None


def read_jsonl(path: Path, model: type[Model]) -> list[Model]:
    """Every line as a ``model``. Raises InputError that names the file, the line and the key that is wrong."""
    records = []
    for number, line in _lines(path):
        try:
            records.append(model.model_validate_json(line))
        except ValidationError as error:
            raise InputError(f"{path}, line {number}: {complaint(error)}") from None
    return records


def check_end(path: Path) -> None:
    """Raises InputError that names the file and the line when the file ends in half a line; reads only its end.

    An editor may have left out the newline: a last line that is whole JSON passes.
    """
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end and b"\n" not in tail:
            start = max(0, end - _BLOCK)
            file.seek(start)
            tail = file.read(end - start) + tail
            end = start
        last = tail.rpartition(b"\n")[2]
        if not last:
            return
        try:
            json.loads(last)
        except (ValueError, RecursionError):
            file.seek(0)
            number = sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b"")) + 1
            raise InputError(f"{path}, line {number}: the file ends in half a line: restore the file") from None


def write_json(path: Path, record: BaseModel) -> None:
    """Replace the file by one record, indented for reading, atomically (see ``write_atomically``)."""
    write_atomically(
        path, [(json.dumps(_plain(record), ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()]
    )


def read_json(path: Path, model: type[Model]) -> Model:
    """The file as a ``model``. Raises InputError that names the file and the key that is wrong."""
    try:
        return model.model_validate_json(read_whole(path))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error)}") from None
