"""The run directory: where everything of one run lies, who may write there, and how it is written.

settings.yaml         the whole recipe of the run
settings.recorded.yaml  the same as it was recorded, and its hash: an edited settings.yaml is noticed
fork.json             in a copy that LangGraph Studio made of a run: of which, and in which iteration
tasks.jsonl           the task set, append only
seed/                 how D_0 was made: *.jsonl
iterations/000/       one folder an iteration: *.jsonl, summary.json
checkpoints.sqlite    LangGraph's checkpoints, rebuildable
policy/               checkpoints of the policy
failures/             the Chroma index of failure contexts, rebuildable
spending.jsonl        what chat roles spent, a line a request
run.lock              held by the one process that works on the run
round.lock            held by the process that trains, a child of that one
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any, Self, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from environments.base import InputError
from memory.jsonl import (
    append_jsonl,
    complaint,
    read_json,
    read_jsonl,
    remove_leftovers,
    write_atomically,
    write_json,
    write_jsonl,
)
from memory.processes import exclusive, forget
from memory.strict_yaml import dump_yaml, read_yaml

__all__ = [
    "RunDirectory",
    "append_jsonl",
    "read_json",
    "read_jsonl",
    "write_json",
    "write_jsonl",
]

MAY_RISE = ("iterations", "roles.budget.tokens", "roles.budget.calls", "roles.budget.money")
"""Settings that a run may be continued with more of."""

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


@dataclass(frozen=True)
class RunDirectory:
    """The layout of one run. Make one with ``create`` or ``open``: the bare constructor checks nothing."""

    root: Path

    @classmethod
    def create(cls, root: Path, settings: BaseModel) -> Self:
        """A new run with ``settings``; of two processes that try at once, one succeeds.

        Raises InputError for a run that exists, a folder that holds parts of one, and a path that can be no folder.
        On OSError (a full disk) a folder that was not there before is not left behind.
        """
        run = cls(root)
        existed = root.exists()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{root} cannot be made, {error.strerror}: choose another --run") from None
        try:
            with run.lock():
                if run.settings_path.exists():
                    raise InputError(f"{root} exists: add --resume to continue it or choose another --run")
                # What an earlier start paid stays and counts, see unmake.
                if any(part.exists() for part in run._parts() if part != run.spending_path):
                    raise InputError(f"{root} holds parts of a run but no settings.yaml: choose another --run")
                run.save_settings(settings)
        except OSError:
            if not existed:
                run.vacate()
            raise
        return run

    def vacate(self) -> None:
        """Remove the locks of a run that is unmade, and its folder when nothing else is in it."""
        forget(self.round_lock_path)
        forget(self.lock_path)
        with suppress(OSError):
            self.root.rmdir()

    def unmake(self) -> None:
        """Remove what a run which never began has left, for the holder of its lock.

        spending.jsonl stays: what was paid is paid, and the next start in this folder counts it against its budgets.
        settings.yaml goes first, because it is what makes a folder a run.
        """
        self.settings_path.unlink(missing_ok=True)
        self.recorded_path.unlink(missing_ok=True)
        for part in self._parts():
            if part == self.spending_path:
                continue
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)
        self.vacate()

    def _parts(self) -> tuple[Path, ...]:
        """What only a run has, beside its settings and locks."""
        folders = (self.seed_path, self._iterations_path, self.policy_path, self.failures_path)
        return (self.tasks_path, self.checkpoints_path, self.spending_path, *folders)

    @classmethod
    def open(cls, root: Path) -> Self:
        """The run that ``create`` made at ``root``. Raises InputError for a folder that is no run."""
        run = cls(root)
        if not run.settings_path.is_file():
            raise InputError(
                f"{root} is no run, it has no settings.yaml: name a run's folder, or start a new run there"
            )
        return run

    @property
    def settings_path(self) -> Path:
        """The run's recipe."""
        return self.root / "settings.yaml"

    @property
    def recorded_path(self) -> Path:
        """The recipe as it was recorded, with its hash."""
        return self.root / "settings.recorded.yaml"

    @property
    def fork_path(self) -> Path:
        """What says of which run this one is a copy; most are none."""
        return self.root / "fork.json"

    @property
    def tasks_path(self) -> Path:
        """The task set."""
        return self.root / "tasks.jsonl"

    @property
    def checkpoints_path(self) -> Path:
        """LangGraph's checkpoints."""
        return self.root / "checkpoints.sqlite"

    @property
    def policy_path(self) -> Path:
        """The folder of the policy's checkpoints."""
        return self.root / "policy"

    @property
    def failures_path(self) -> Path:
        """The folder of the failure memory's index."""
        return self.root / "failures"

    @property
    def spending_path(self) -> Path:
        """The ledger of the chat roles: a line for each request. It is there once one was made."""
        return self.root / "spending.jsonl"

    @property
    def lock_path(self) -> Path:
        """The lock of the one process that works on the run."""
        return self.root / "run.lock"

    @property
    def round_lock_path(self) -> Path:
        """The lock of the process that trains."""
        return self.root / "round.lock"

    @property
    def seed_path(self) -> Path:
        """The folder of the records behind D_0."""
        return self.root / "seed"

    @property
    def _iterations_path(self) -> Path:
        return self.root / "iterations"

    def iteration(self, number: int) -> Path:
        """The folder of iteration ``number``, counted from 0. It is made by the first file written there."""
        return self._iterations_path / f"{number:03d}"

    def save_settings(self, settings: BaseModel) -> None:
        """Replace settings.yaml atomically, for a run that is created, or continued with more iterations.

        The record of it follows: a process killed between the two leaves values that were raised, which
        ``check_settings`` permits.
        """
        plain = settings.model_dump(mode="json")
        text = dump_yaml(plain)
        write_atomically(self.settings_path, [text.encode()])
        recorded = f"sha256: '{_sha256(plain)}'\nsettings:\n{indent(text, '  ')}"
        write_atomically(self.recorded_path, [recorded.encode()])

    def check_settings(self) -> None:
        """Raises InputError naming the key of settings.yaml that is another than when the run's settings were recorded.

        What ``--resume`` may raise may be raised in the file, too. A run of an earlier version has no record and
        passes: see ``recorded_path``.
        """
        if not self.recorded_path.exists():
            return
        recorded = self._mapping(self.recorded_path)
        before = recorded.get("settings")
        if not isinstance(before, dict) or recorded.get("sha256") != _sha256(before):
            raise InputError(f"{self.recorded_path} is not as the run wrote it: restore it")
        changed = _changed(before, self._mapping(self.settings_path))
        if changed is not None:
            key, was, now = changed
            raise InputError(
                f"{self.settings_path}: '{key}' is {now}, the run was made with {was}: put it back or start a new run"
            )

    def settings(self, model: type[Model]) -> Model:
        """The whole of settings.yaml. Raises InputError naming the file and the key that is wrong or was changed."""
        checked = self._checked(self._mapping(self.settings_path), model, within="")
        self.check_settings()
        return checked

    def section(self, name: str, model: type[Value]) -> Value:
        """One section of settings.yaml, or a plain value such as ``section("seed", int)``.

        Raises InputError naming the file and the key that is missing, unknown, wrong or changed.
        """
        document = self._mapping(self.settings_path)
        if name not in document:
            raise InputError(f"{self.settings_path} has no section {name!r}: add it or start a new run")
        checked = self._checked(document[name], model, within=name)
        self.check_settings()
        return checked

    def _mapping(self, path: Path) -> dict[str, Any]:
        if not path.exists():
            raise InputError(f"{path} does not exist: name a run's folder")
        document = read_yaml(path, "file of settings")
        if not isinstance(document, dict):
            raise InputError(f"{path} holds no sections: it must be a mapping of section names")
        return document

    def _checked(self, value: object, model: type[Value], within: str) -> Value:
        try:
            return TypeAdapter(model).validate_python(value)
        except ValidationError as error:
            raise InputError(f"{self.settings_path}: {complaint(error, within)}") from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the one process that works on the run, and clear away what killed writers left half-written.

        Reading needs no lock, nor does writing records: every file has one writer. Raises InputError naming the
        process that holds it.
        """
        with exclusive(self.lock_path, str(self.root)):
            remove_leftovers(self.root)
            yield


def _sha256(plain: object) -> str:
    """Hash of JSON values; the order of keys does not count."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def _changed(before: object, now: object, prefix: str = "") -> tuple[str, object, object] | None:
    """The first dotted key that is another now, with both values; None where nothing but ``MAY_RISE`` differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in (*before, *(key for key in now if key not in before)):
            name = f"{prefix}.{key}" if prefix else str(key)
            if found := _changed(before.get(key, _ABSENT), now.get(key, _ABSENT), name):
                return found
        return None
    if before == now or (prefix in MAY_RISE and _risen(before, now)):
        return None
    return prefix, before, now


def _risen(before: object, now: object) -> bool:
    return isinstance(before, int | float) and isinstance(now, int | float) and now >= before


class _Absent:
    def __repr__(self) -> str:
        return "absent"

    __str__ = __repr__


_ABSENT = _Absent()
