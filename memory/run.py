"""The run directory: where the files of one run are, who may write there, and how they are written.

``python -m memory.run`` prints ``docs/run-directory.md``, which lists every file.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from environments.base import InputError
from memory.files import check_kept, keep, remove_leftovers, write_atomically
from memory.jsonl import (
    append_jsonl,
    complaint,
    dump_yaml,
    read_existing,
    read_json,
    read_jsonl,
    read_yaml,
    write_json,
    write_jsonl,
)
from memory.processes import exclusive, forget
from memory.run_files import (
    ITERATIONS,
    SEED_STAGE,
    BranchDirectory,
    Folder,
    IterationDirectory,
    PolicyDirectory,
    RunFile,
    StageDirectory,
    iteration_of,
    iteration_stage,
)

__all__ = [
    "SEED_STAGE",
    "BranchDirectory",
    "IterationDirectory",
    "PolicyDirectory",
    "RunDirectory",
    "StageDirectory",
    "append_jsonl",
    "document",
    "first_change",
    "iteration_of",
    "iteration_stage",
    "read_existing",
    "read_json",
    "read_jsonl",
    "write_json",
    "write_jsonl",
]

MAY_RISE = ("iterations", "roles.budget.tokens", "roles.budget.calls", "roles.budget.money")
"""Settings that a resumed run may have higher values of."""

MAY_CHANGE = frozenset({"training.launch", "training.report_to"})
"""Settings of where a run plays, computes and is shown, not of what: a resumed run may have others in settings.yaml."""

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


@dataclass(frozen=True)
class RunDirectory(Folder):
    """The folder of one run. Make one with ``create`` or ``open``: the bare constructor checks nothing.

    Once there is an object of it, no link in the run is followed by what ``memory.files`` opens.
    """

    settings_path = RunFile(
        ".yaml", "graph.settings.RunSettings", "The whole recipe of the run; a folder with this file is a run."
    )
    recorded_path = RunFile(
        "settings.recorded.yaml",
        "graph.settings.RunSettings",
        "The recipe as it was recorded, which reveals an edited `settings.yaml`.",
    )
    fork_path = RunFile(
        ".json",
        "memory.run_files.Fork",
        "The run that this one is a copy of; only in copies that LangGraph Studio's forks and edits make.",
    )
    tasks_path = RunFile(".jsonl", "memory.records.Task", "The task set, append only.")
    checkpoints_path = RunFile(
        ".sqlite", "LangGraph's database", "LangGraph's checkpoints, expendable; a damaged one is made anew."
    )
    spending_path = RunFile(
        ".jsonl", "agents.spending.Request", "The requests of chat roles with their costs; exists once one was made."
    )
    failures_path = RunFile(
        "/", "Chroma's files", "The failure memory's index, made anew from the records by each iteration."
    )
    policy_path = RunFile(
        "/", "memory.run_files.PolicyDirectory", "The policy's checkpoints, one `checkpoint-STEP/` each."
    )
    trackers_path = RunFile(
        "/",
        "files of trackers",
        "The run's `id` in trackers and their files: `tensorboard/`, and `wandb/` where it is offline.",
    )
    served_path = RunFile(
        "/",
        "safetensors",
        "The policy's weights for vLLM servers to read, one folder per version, expendable between rounds.",
    )
    seed_path = RunFile(
        f"{SEED_STAGE}/",
        "memory.run_files.StageDirectory",
        "The records behind D_0 where unguided exploration made it.",
    )
    iterations_path = RunFile(
        f"{ITERATIONS}/", "memory.run_files.IterationDirectory", "One folder per iteration, `000/` first."
    )
    played_path = RunFile(
        "/",
        "training.elsewhere.rollouts.Played",
        "What a server with `--record` played, a file for each process; rounds take whole groups from it.",
    )
    report_path = RunFile(".html", "HTML", "The page of the run that `coevolve report` wrote last; expendable.")
    lock_path = RunFile(
        "run.lock", "a lock", "Held by the one process that works on the run; `run.lock.json` beside it names it."
    )
    round_lock_path = RunFile(
        "round.lock", "a lock", "Held by the process that trains; `round.lock.json` beside it names it."
    )

    ledger: Path | None = None
    """The file of costs where it is outside, beside the file of tasks that the run is made for."""

    def __post_init__(self) -> None:
        keep(self.root)
        if self.ledger is not None:
            vars(self)["spending_path"] = self.ledger

    @classmethod
    def create(cls, root: Path, settings: BaseModel, ledger: Path | None = None) -> Self:
        """Make a new run with ``settings``; of two processes that try at once, one succeeds.

        Raises InputError for an existing run, a folder that holds parts of one or a link, and a path that cannot be a
        folder. On OSError (a full disk) a folder that this call made is removed.
        """
        run = cls(root, ledger)
        existed = root.exists()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{root} cannot be made, {error.strerror}: choose another --run") from None
        check_kept(root)
        try:
            with run.lock():
                if run.settings_path.exists():
                    raise InputError(f"{root} exists: add --resume to continue it or choose another --run")
                # Costs of an earlier start stay and count, see unmake.
                if any(part.exists() for part in run._parts() if part != run.spending_path):
                    raise InputError(f"{root} holds parts of a run but no settings.yaml: choose another --run")
                run.save_settings(settings)
        except OSError:
            if not existed:
                run.vacate()
            raise
        return run

    def vacate(self) -> None:
        """Remove the locks of a run that was unmade, and its folder when that is empty."""
        forget(self.round_lock_path)
        forget(self.lock_path)
        with suppress(OSError):
            self.root.rmdir()

    def unmake(self) -> None:
        """Remove the files of a run that never began; the caller holds its lock.

        spending.jsonl stays: the next start in this folder counts its costs against the budgets. settings.yaml goes
        first, because it makes a folder a run.
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
        files = (self.tasks_path, self.checkpoints_path, self.spending_path)
        folders = (self.seed_path, self.iterations_path, self.policy_path, self.failures_path)
        return (*files, *folders, self.served_path, self.trackers_path)

    @classmethod
    def open(cls, root: Path) -> Self:
        """Return the run that ``create`` made at ``root``. Raises InputError for another folder or a link in it."""
        run = cls(root)
        if not run.settings_path.is_file():
            raise InputError(
                f"{root} is not a run, it has no settings.yaml: name a run's folder, or start a new run there"
            )
        check_kept(root)
        return run

    @property
    def seed(self) -> StageDirectory:
        return StageDirectory(self.seed_path)

    def iteration(self, number: int) -> IterationDirectory:
        """Return the folder of iteration ``number``, counted from 0. The first file written there makes it."""
        return IterationDirectory(self.root / iteration_stage(number))

    def stage(self, name: str) -> StageDirectory:
        """Return the folder of a stage, which a record may have named. Raises InputError for another text."""
        if name != SEED_STAGE and iteration_of(name) is None:
            raise InputError(f"{name!r:.80} is not a stage of {self.root}: the record that names it was changed")
        return StageDirectory(self.root / name)

    def save_settings(self, settings: BaseModel) -> None:
        """Replace settings.yaml and its record, each atomically, for a new run or one resumed with higher values.

        A process killed between the two leaves no run, since a new one is recorded first, or raised values, which
        ``check_settings`` permits.
        """
        text = dump_yaml(settings.model_dump(mode="json"))
        files = [self.settings_path, self.recorded_path]
        for path in files if self.settings_path.exists() else reversed(files):
            write_atomically(path, [text.encode()])

    def check_settings(self) -> None:
        """Raise InputError that names the key of settings.yaml that changed since the run's settings were recorded.

        Values that ``--resume`` may raise or change may be changed in the file, too. Raises it also where the record is
        gone: nothing would show then whether settings.yaml was edited.
        """
        if not self.recorded_path.exists():
            raise InputError(
                f"{self.recorded_path} is gone, so nothing shows whether {self.settings_path.name} was edited: restore "
                f"it, or start a new run with --recipe {self.settings_path} and another --run"
            )
        changed = first_change(self._mapping(self.recorded_path), self._mapping(self.settings_path), resumed=True)
        if changed is not None:
            key, was, now = changed
            raise InputError(
                f"{self.settings_path}: '{key}' is {now}, the run was made with {was}: put it back or start a new run"
            )

    def settings(self, model: type[Model]) -> Model:
        """Return all of settings.yaml. Raises InputError naming the file and the key that is wrong or was changed."""
        return self._read(model)

    def section(self, name: str, model: type[Value]) -> Value:
        """Return one section of settings.yaml, or a plain value such as ``section("seed", int)``.

        Raises InputError naming the file and the key that is missing, unknown, wrong or changed.
        """
        return self._read(model, name)

    def _read(self, model: type[Value], name: str = "") -> Value:
        document = self._mapping(self.settings_path)
        if name and name not in document:
            raise InputError(f"{self.settings_path} has no section {name!r}: add it or start a new run")
        try:
            checked = TypeAdapter(model).validate_python(document[name] if name else document)
        except ValidationError as error:
            raise InputError(f"{self.settings_path}: {complaint(error, name)}") from None
        self.check_settings()
        return checked

    def _mapping(self, path: Path) -> dict[str, Any]:
        if not path.exists():
            raise InputError(f"{path} does not exist: name a run's folder")
        document = read_yaml(path, "file of settings")
        if not isinstance(document, dict):
            raise InputError(f"{path} holds no sections: it must be a mapping of section names")
        return document

    @contextmanager
    def lock(self, *, joined: bool = False) -> Iterator[None]:
        """Hold the run's lock while the block runs, and remove the temporary files of killed writers.

        Only one process works on a run, and one part of it unless all are ``joined``. Reading needs no lock. Raises
        InputError naming the process that holds it.
        """
        with exclusive(self.lock_path, str(self.root), joined=joined):
            remove_leftovers(self.root)
            yield


def first_change(
    before: object, now: object, prefix: str = "", *, resumed: bool = False
) -> tuple[str, object, object] | None:
    """Return the first changed dotted key with both values.

    ``resumed``: raised ``MAY_RISE`` values, and ``MAY_CHANGE`` values, count as unchanged.
    """
    if resumed and prefix in MAY_CHANGE:
        return None
    if isinstance(before, dict) and isinstance(now, dict):
        for key in (*before, *(key for key in now if key not in before)):
            name = f"{prefix}.{key}" if prefix else str(key)
            if found := first_change(before.get(key, "absent"), now.get(key, "absent"), name, resumed=resumed):
                return found
        return None
    rises = isinstance(before, int | float) and isinstance(now, int | float) and now >= before
    return None if before == now or (resumed and prefix in MAY_RISE and rises) else (prefix, before, now)


_INTRODUCTION = """# The run directory

Generated by `make docs` from `memory/run.py` and `memory/run_files.py`; do not edit.

A run is a folder with `settings.yaml`. Each file has one writer at a time, is written whole or appended to, and can be
read while the run is going on. A `.jsonl` file has one record per line, a `.json` file holds one record. SQLite and
Chroma files can be deleted: they are rebuilt from the records. Commands refuse a run with a link, a pipe or a device in
it; the run itself may be named by a link. Each line has the file, its record and its content. In
Python it is an attribute of the class above: `RunDirectory.open(Path("runs/mine")).iteration(3).drafts` is a path.
"""


def document() -> str:
    """Return ``docs/run-directory.md``: a list for each folder of a run."""
    folders: dict[str, type[Folder]] = {
        "RUN": RunDirectory,
        "RUN/seed and RUN/iterations/NNN": StageDirectory,
        "RUN/iterations/NNN, in addition": IterationDirectory,
        "branches/CONTEXT of a stage": BranchDirectory,
        "RUN/policy/checkpoint-STEP": PolicyDirectory,
    }
    lines = [_INTRODUCTION]
    for heading, folder in folders.items():
        module = "memory.run" if folder is RunDirectory else folder.__module__
        summary = " ".join((folder.__doc__ or "").replace("``", "`").split())
        lines += [f"## {heading}", "", f"`{module}.{folder.__name__}`: {summary}", ""]
        for one in vars(folder).values():
            if isinstance(one, RunFile):
                record = one.record if " " in one.record or "." not in one.record else f"`{one.record}`"
                lines.append(f"- `{one.name}{'/' if one.is_folder else ''}` ({record}): {one.meaning}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(document(), end="")
