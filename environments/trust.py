"""Bind trust to a program or an address, as ``environments.addresses`` binds keys: ``COEVOLVE_TRUST``.

A recipe, or the settings of a run, may come from a stranger, so none of them decides which program runs as the user. A
program is bound by a hash of all that names it: its path, its bytes, its arguments, the bytes of program files among
these, the folder that it starts in and the variables that it gets. So a bound ``python -m server`` is not trust in
Python. What is written by hand, behind ``--mcp`` or ``--option``, needs no binding.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from environments.addresses import Origin, origin_of
from environments.base import InputError

TRUST_VARIABLE = "COEVOLVE_TRUST"
"""The environment variable that binds trust: ``PROGRAM=sha256:HASH, ADDRESS, ...``."""

_HASH = re.compile(r"(?:.*=)?(sha256:[0-9a-f]{64})", re.DOTALL)
_UNSAFE = re.compile(r"[^\w./+@-]", re.ASCII)
_PROGRAM_FILES = re.compile(
    r"\.(py\w?|pyz|[cm]?[jt]sx?|(ba|z|fi)?sh|rb|p[lm]|php|lua|jar|r|jl|exs?|ps1|wasm)", re.IGNORECASE
)


class Program(NamedTuple):
    """What a setting runs: in words for the user, and as an entry of ``COEVOLVE_TRUST``."""

    setting: str
    words: str
    entry: str


def command_program(setting: str, command: Sequence[str], folder: Path | None, variables: Sequence[str]) -> Program:
    """Return the program that a command starts in ``folder``; None: in a new one.

    Raises InputError where there is no such program.
    """
    found = shutil.which(command[0])
    if found is None:
        raise InputError(f"{setting}: there is no program {command[0]!r:.80}: install it, or write its whole path")
    path = Path(found).absolute()
    files = {str(file): _digest(file) for word in command[1:] for file in _program_files(word)}
    stated = [str(path), _digest(path), *command[1:], files, str(folder), *sorted(set(variables))]
    words = shlex.join([str(path), *command[1:]]) + (f" in {folder}" if folder else "")
    words += f" with {', '.join(sorted(set(variables)))}" if variables else ""
    return Program(setting, words, _entry(str(path), stated))


def function_program(setting: str, name: str, file: Path) -> Program:
    """Return what calling ``module:function`` runs, whose module is ``file``."""
    return Program(setting, f"{name} of {file}", _entry(name, [name, str(file), _digest(file)]))


def refuse_untrusted(program: Program | None) -> None:
    """Raise InputError, with the line that binds it, for a program that the user did not bind."""
    if program is not None and program.entry.rpartition("=")[2] not in _bound():
        words = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in program.words)
        raise InputError(
            f"{program.setting}: a recipe does not decide which programs run, and this one runs {words} - if you trust "
            f"that: {how_to_bind(program.entry)}"
        )


def is_trusted(origin: Origin) -> bool:
    """Return whether the user bound a server's address."""
    return str(origin) in _bound()


def how_to_bind(entry: str) -> str:
    """Return the line for a shell that adds an entry to those that are bound."""
    return f"export {TRUST_VARIABLE}={shlex.quote(with_entry(entry))}"


def with_entry(entry: str) -> str:
    """Return the value of ``COEVOLVE_TRUST`` with an entry, for this process's children or a shell."""
    bound = os.environ.get(TRUST_VARIABLE, "")
    return bound if entry in bound else ",".join(filter(None, (bound, entry)))


def _bound() -> set[str]:
    """Return the hashes and origins that are bound. Raises InputError for an entry that cannot be read."""
    found = set()
    for number, entry in enumerate(os.environ.get(TRUST_VARIABLE, "").split(","), 1):
        if hashed := _HASH.fullmatch(entry.strip()):
            found.add(hashed[1])
        elif entry.strip():
            try:
                found.add(str(origin_of(entry.strip())))
            except ValueError:
                raise InputError(
                    f"{TRUST_VARIABLE}: entry {number} is neither PROGRAM=sha256:HASH nor an address such as "
                    "http://127.0.0.1:8000: copy it from the message that asks for it, several separated by commas"
                ) from None
    return found


def _entry(name: str, stated: object) -> str:
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
    return f"{_UNSAFE.sub('_', name)}=sha256:{digest}"


def _program_files(word: str) -> list[Path]:
    """Return the file that an argument names, where it is a program: data may be written to between two starts."""
    files = [Path(part).absolute() for part in {word, word.partition("=")[2]} if part and "\0" not in part]
    return [file for file in files if _is_file(file) and _is_program(file)]


def _is_program(file: Path) -> bool:
    with file.open("rb") as opened:
        begins = opened.read(2)
    return not file.suffix or bool(_PROGRAM_FILES.fullmatch(file.suffix)) or begins == b"#!" or os.access(file, os.X_OK)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except OSError:  # a name that is too long, for example
        return False


def _digest(path: Path) -> str | None:
    """Return the hash of a program's bytes; None where only its path can be told, because it may not be read."""
    if not _is_file(path):
        return None
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
