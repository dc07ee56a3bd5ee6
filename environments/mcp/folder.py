"""Keep the folder of a server: its start files, its state, its path.

A server may do anything in its folder while this is read, written or emptied. So the folder is opened once, all below
it is reached from that descriptor without following a link, and counts and sizes are limited before anything is read.
Whatever is wrong with it is the server's fault.
"""

from __future__ import annotations

import hashlib
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from tempfile import mkdtemp

from pydantic import JsonValue

from environments.base import EnvironmentFault
from environments.mcp.options import DEEPEST, FOLDER, MAX_FILE, MAX_FILES, MAX_READ, StartFile
from environments.mcp.pointers import Cutter, Pointer
from environments.mcp.redaction import each_text, spelling
from environments.mcp.supervisor import OPEN_FOLDER, empty_folder, opened_folder

MAX_ENTRIES = 20_000
"""Entries of a folder that are looked at or removed, hidden ones too, at most (our choice)."""

_ENDS = r"(?![\w~+@#$\-]|\.[\w.\-])"
_AGENTS = re.compile(rf"(?:(?<=file://)|(?<![\w.~%/\-])){FOLDER}(?!%){_ENDS}")
"""``FOLDER`` where it is a path of its own, or the beginning of one, and not a part of another name or address."""


@contextmanager
def _its_fault() -> Iterator[None]:
    """Raise EnvironmentFault for what is wrong with the folder."""
    try:
        yield
    except UnicodeError:
        raise EnvironmentFault("its folder has a name that is not UTF-8") from None
    except (OSError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is too deep"
        raise EnvironmentFault(f"its folder cannot be used: {said}") from None


class OwnFolder:
    """A new folder of a server's own. Methods raise EnvironmentFault, but for ``remove``.

    No state has what ``ignored`` names in JSON files.
    """

    def __init__(self, ignored: Sequence[Pointer] = ()) -> None:
        self._cutters = [*map(Cutter, ignored)]
        with _its_fault():
            self.path = Path(mkdtemp(prefix="coevolve-mcp-")).resolve()
            self._folder = os.open(self.path, OPEN_FOLDER)
        # Not before this is out of use everywhere: a closed descriptor's number becomes that of another folder.
        weakref.finalize(self, os.close, self._folder)
        self._own = re.compile(rf"{spelling(str(self.path))}{_ENDS}")

    def to_server(self, value: JsonValue) -> JsonValue:
        """Return what an agent wrote with the folder's path where that is ``FOLDER``."""
        path = str(self.path).replace("\\", r"\\")
        return each_text(value, lambda text: _AGENTS.sub(path, text))

    def to_agent(self, text: str) -> str:
        """Return what a server wrote with ``FOLDER`` where that is the folder's path."""
        return self._own.sub(FOLDER, text)

    def empty(self) -> None:
        """Remove all that is in it."""
        with self._whole():
            empty_folder(self._folder, MAX_ENTRIES)

    def write(self, file: StartFile) -> None:
        """Write a file of a start anew."""
        *folders, name = file.path.removeprefix(f"{FOLDER}/").split("/")
        with self._whole(), ExitStack() as stack:
            place = self._folder
            for one in folders:
                with suppress(FileExistsError):
                    os.mkdir(one, dir_fd=place)
                place = stack.enter_context(opened_folder(one, place))
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=place)  # not written into: it may be a second name of another file
            made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=place)
            with open(made, "wb") as written:
                written.write(file.text.encode())
                written.flush()
                os.utime(made, (0, 0))  # a time of now would be another in every episode

    def contents(self) -> dict[str, bytes | None]:
        """Return the bytes of files by path, None of a folder, in one order; nothing of a hidden file or a link."""
        found: dict[str, bytes | None] = {}
        with self._whole():
            _read(self._folder, "", found, [MAX_READ, MAX_ENTRIES])
        return found

    def state(self) -> JsonValue:
        """Return by path what each file holds: its text, or its hash where it is not text.

        Of JSON files what is ignored is left out. A file that does not fit into the ``MAX_FILE`` bytes of texts is
        hashed, too. So equal files have equal texts or hashes, and unequal ones do not.
        """
        found: dict[str, JsonValue] = {}
        left = MAX_FILE
        with _its_fault():
            for path, data in self.contents().items():
                compared = b"" if data is None else self._compared(data)
                found[path] = None if data is None else {"sha256": hashlib.sha256(compared).hexdigest()}
                if data is not None and len(compared) <= left:
                    with suppress(UnicodeDecodeError):
                        found[path] = compared.decode()
                        left -= len(compared)
        return found

    def _compared(self, data: bytes) -> bytes:
        """Return what a file is compared by: it has one path in every server, also where it is hashed."""
        if self.path.name.encode() in data:
            data = self.to_agent(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        if self._cutters:
            with suppress(UnicodeDecodeError):
                text = data.decode()
                for cutter in self._cutters:
                    text = cutter.cut(text)
                data = text.encode()
        return data

    def remove(self) -> None:
        """Remove it where its server's supervisor has not. Idempotent."""
        with suppress(OSError):
            empty_folder(self._folder)
            os.rmdir(self.path)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        with _its_fault():
            if not os.path.samestat(os.fstat(self._folder), os.stat(self.path, follow_symlinks=False)):
                raise EnvironmentFault("its folder was replaced by another one")
            yield


def _read(folder: int, within: str, found: dict[str, bytes | None], left: list[int]) -> None:
    """Add what an open folder holds; ``left`` are the bytes and entries that may still be read."""
    entries = []
    with os.scandir(folder) as listed:
        for entry in listed:
            left[1] -= 1
            if left[1] < 0:
                raise EnvironmentFault(f"its folder has more than {MAX_ENTRIES:,} entries")
            if not entry.name.startswith(".") and not entry.is_symlink():
                entries.append((entry.name, entry.is_dir(follow_symlinks=False)))
    for name, is_folder in sorted(entries):
        if len(found) == MAX_FILES:
            raise EnvironmentFault(f"its folder has more than {MAX_FILES} files")
        path = f"{within}{name}"
        path.encode()
        if path.count("/") >= DEEPEST:
            raise EnvironmentFault(f"its folder has more than {DEEPEST} levels")
        with suppress(FileNotFoundError):  # it was removed meanwhile
            if is_folder:
                with opened_folder(name, folder) as inner:
                    found[f"{path}/"] = None
                    _read(inner, f"{path}/", found, left)
            elif (data := _data(folder, name, left)) is not None:
                found[path] = data


def _data(folder: int, name: str, left: list[int]) -> bytes | None:
    """Return the bytes of a regular file; None for a pipe, a socket or a device."""
    if not S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return None
    # Should a pipe have taken its place meanwhile, neither opening nor reading waits.
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with open(opened, "rb") as file:
        data = file.read(left[0] + 1) or b""
    left[0] -= len(data)
    if left[0] < 0:
        raise EnvironmentFault(f"the files of its folder have more than {MAX_READ:,} bytes")
    return data
