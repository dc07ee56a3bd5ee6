"""Records on disk, as JSON and JSON lines: written whole or not at all, read with errors that name the line.

Input may come from anybody: only regular files are read, up to a length that memory holds, within the parser's limits
on depth (200 levels), digits and characters. Ids and seeds are hashes of parents and position, so that a resumed run
makes the same ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import psutil  # type: ignore[import-untyped]
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import from_json

from environments.base import InputError

Model = TypeVar("Model", bound=BaseModel)

LONGEST = 2**26
"""Largest JSON file, or line of JSON lines, in bytes that is read (ours); our own records are far shorter."""

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)-\d+\.tmp")


def _digest(parts: tuple[object, ...]) -> bytes:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str).encode()).digest()


def record_id(kind: str, *parts: object) -> str:
    """Return a record's id, ``KIND-`` and 16 hex digits, from its parents' ids and its position among siblings."""
    return f"{kind}-{_digest((kind, *parts)).hex()[:16]}"


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed from (run seed, iteration, stage, id, ...): draws do not depend on order or concurrency."""
    return int.from_bytes(_digest(parts)[:8], "big") >> 1


def complaint(error: ValidationError, within: str = "") -> str:
    """Return pydantic's first error as ``key: what (got value)``, and how many more there are.

    ``within`` is the key below which the model was read.
    """
    first, *more = error.errors(include_url=False)
    key = ".".join(str(part) for part in (within, *first["loc"]) if part != "")
    text = f"{key}: {first['msg']}" if key else str(first["msg"])
    # A value that may be a misplaced secret is not shown: of an unknown key, or an address with a password.
    unsaid = {"missing", "json_invalid", "extra_forbidden", "address"}
    if first["type"] not in unsaid and isinstance(first["input"], str | int | float | bool):
        text += f" (got {first['input']!r:.80})"
    return f"{text}, and {len(more)} more" if more else text


def leaves(tree: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value of nested mappings behind the keys that lead to it; an empty mapping is a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from (((str(name), *keys), leaf) for keys, leaf in leaves(value))
        else:
            yield (str(name),), value


def dump_line(record: BaseModel) -> str:
    """Return a record as one line of JSON, with its newline. Raises ValueError for NaN and infinities."""
    return _dump(record) + "\n"


def _dump(record: BaseModel, indent: int | None = None) -> str:
    return json.dumps(record.model_dump(mode="json"), ensure_ascii=False, allow_nan=False, indent=indent)


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace ``path`` by ``chunks``: a temporary file beside it, flushed to the disk, then renamed over it.

    On any error (a full disk raises OSError, which names ``path``) the old file stays as it was and the temporary one
    is removed. A missing folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with _named(path):
        try:
            with temporary.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                _flush(file)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


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


def _sync_folder(folder: Path) -> None:
    """Flush a rename or a new file in ``folder`` to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> tuple[Path, ...]:
    """Remove the temporary files of killed writers below ``folder``. Files of living processes stay."""
    removed = []
    for path in sorted(folder.rglob(".*.tmp")):
        match = _LEFTOVER.fullmatch(path.name)
        if match and not psutil.pid_exists(int(match["pid"])):
            path.unlink(missing_ok=True)
            removed.append(path)
    return tuple(removed)


def write_jsonl(path: Path, records: Iterable[BaseModel]) -> None:
    """Replace the file by one line per record, atomically (see ``write_atomically``)."""
    write_atomically(path, (dump_line(record).encode() for record in records))


def append_jsonl(path: Path, records: Iterable[BaseModel]) -> int:
    """Append one line per record, flush to the disk, and return the file's new length in bytes.

    On OSError (a full disk; it names ``path``) the file is cut back to its old length. A process killed in the middle
    leaves half a line: on resumption the file is truncated to its last recorded length. Raises InputError for a file
    that ends in half a line, because the appended ones could not be read.
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
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(length)
            raise
    return length + len(lines)


@contextmanager
def _regular(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading. Raises OSError, and InputError where there is none, or a pipe or device without end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe without a writer would block
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is a folder, a pipe or a device: name a file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_whole(path: Path, longest: int = LONGEST) -> bytes:
    """Return the content of a regular file of at most ``longest`` bytes. Raises InputError for another one, and OSError
    where it cannot be read."""
    with _regular(path) as file:
        content = file.read(longest + 1)
    if len(content) > longest:
        raise InputError(f"{path} has more than {longest} bytes: it is not what is looked for")
    return content


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a regular file with their numbers from 1. Raises like ``read_whole``, per line."""
    with _regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), start=1):
            if len(line) > LONGEST:
                raise InputError(f"{path}, line {number}: the line has more than {LONGEST} bytes")
            yield number, line


def parse_json(text: bytes) -> JsonValue:
    """Return the JSON value in ``text``, which can be written to a record again.

    Raises ValueError for other text, and for values that some parsers accept: NaN, numbers that overflow, half of a
    surrogate pair, more than 200 levels.
    """
    value: JsonValue = from_json(text, allow_inf_nan=False)
    json.dumps(value, allow_nan=False)  # 1e999 is parsed as infinity
    return value


def read_jsonl(path: Path, model: type[Model]) -> list[Model]:
    """Return every line as a ``model``. Raises InputError that names the file, the line and the wrong key."""
    records = []
    for number, line in read_lines(path):
        try:
            records.append(model.model_validate_json(line))
        except ValidationError as error:
            raise InputError(f"{path}, line {number}: {complaint(error)}") from None
    return records


def read_existing(path: Path, model: type[Model]) -> list[Model]:
    """Return every line like ``read_jsonl``; none of a missing file: not every stage of a run writes every file."""
    return read_jsonl(path, model) if path.exists() else []


def write_json(path: Path, record: BaseModel) -> None:
    """Replace the file by one record, indented for reading, atomically (see ``write_atomically``)."""
    write_atomically(path, [f"{_dump(record, indent=2)}\n".encode()])


def read_json(path: Path, model: type[Model]) -> Model:
    """Return the file as a ``model``. Raises InputError that names the file and the wrong key."""
    try:
        return model.model_validate_json(read_whole(path))
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error)}") from None
