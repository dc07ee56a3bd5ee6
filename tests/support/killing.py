"""Starts the real command on a run, kills its processes, and compares what two runs left behind.

``python -m support.killing END HOOK NUMBER ARGUMENTS...`` is the command ``graph.run_iteration ARGUMENTS`` in a process
that comes to its END at the NUMBER-th time that it is at HOOK, one of ``HOOKS``: ``kill``, it kills itself (SIGKILL),
or ``full``, the disk takes no more from then on.

``python -m support.killing hold WHERE FILE MARKER MODULE ARGUMENTS...`` is the command ``MODULE ARGUMENTS``. It, or its
child of the module WHERE, goes no further once there is such a FILE (a pattern) as it writes records, and makes MARKER:
whoever waits for MARKER finds the processes at one point of their work, however fast they are.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import itertools
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil

from support import ROOT

RECIPE = """
seed: 3
iterations: 1
policy: {path: recipes/starter-seal, device: cpu}
tasks: {initial_count: 8}
training:
  {steps: 2, tasks_per_step: 6, rollouts_per_task: 4, temperature: 1.3,
   max_new_tokens: 24, max_tokens: 300, max_actions: 3,
   seal: {interface: {schema_cues: false}}}
signals: {contexts_per_iteration: 4, rare_percent: 100}
roles: {exploration: {rounds: 1, steps: 6, drafts_per_context: 2}}
evaluation: {limit: 2}
"""
"""A whole iteration in about 15 s, most of it the imports of three processes."""

HOOKS = {
    "flushed": "memory.files._flush",  # a record file is written beside its place, not yet renamed
    "renamed": "memory.files._sync_folder",  # a record file is in its place
    "admitted": "graph.nodes.new_tasks.admit",  # tasks.jsonl holds D_{t+1}, before evolution.json
    "remembered": "memory.failures:FailureMemory.remember",  # before judgements.jsonl
}
"""Where a process may be told to kill itself: right after this function has done its work."""

MAY_DIFFER = (
    "*.log",  # output of the children, with their times
    "*seconds.json",  # measured
    "checkpoints.sqlite*",  # LangGraph's, rebuildable, holds times
    "failures/*",  # Chroma's files, rebuildable; what they hold is compared by id
    "*.lock",
    "*.lock.json",  # names a lock's last holder: one that was killed as it ended leaves it
    "policy/*/training_args.bin",  # names the folder
    "policy/*/trainer_state.json",  # holds times; what counts of it stands in round.json
)
"""Files of a run that need not be equal byte by byte; records are compared without ``MEASURED``."""

MEASURED = {"*/summary.json": ("seconds",), "policy/*/round_checkpoint.json": ("seconds", "log_bytes")}
"""Keys that hold what was measured, beside "measured" at any depth. The length of a log depends on the digits of its
times."""


def command(root: Path, recipe: Path, *options: str) -> list[str]:
    """The command as a user starts it."""
    return [sys.executable, "-m", "graph.run_iteration", *arguments(root, recipe, *options)]


def arguments(root: Path, recipe: Path, *options: str) -> list[str]:
    return ["--recipe", str(recipe), "--run", str(root), "--json", *options]


def ended_at(end: str, hook: str, number: int, *options: str) -> list[str]:
    """The command in a process that comes to such an end."""
    return [sys.executable, "-m", "support.killing", end, hook, str(number), *options]


def held_at(where: str, file: Path, marker: Path, argv: Sequence[str]) -> list[str]:
    """The command, which goes no further in the module ``where`` once there is such a file, and makes ``marker``."""
    return [*argv[:2], "support.killing", "hold", where, str(file), str(marker), *argv[2:]]


def limited(kibibytes: int, argv: list[str]) -> list[str]:
    """The command under a limit on the size of files."""
    return ["bash", "-c", 'ulimit -f "$0" && exec "$@"', str(kibibytes), *argv]


def start(argv: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own; stdout and stderr go to ``log``."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT / "tests"))))
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            cwd=ROOT,
            stdout=output,
            stderr=output,
            process_group=0,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
        )


def finish(argv: list[str], log: Path, timeout: float = 600.0, **environment: str) -> int:
    """Run a command to its end; its exit status."""
    with start(argv, log, **environment) as process:
        return process.wait(timeout=timeout)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout: float = 120.0) -> bool:
    """Whether ``condition`` came true while the process ran."""
    end = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.002)
    return False


def kill(process: subprocess.Popen[bytes], victim: str, root: Path) -> list[int]:
    """SIGKILL the ``parent``, its ``child`` or ``both``; ``stopped``: SIGTERM the parent. The pids of them all.

    Where the command and its children are forks of the preloaded process, each is killed itself, not the process that
    waits for it: what ends the others is then what the project does.
    """
    waiting = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    forks = [one for one in living(root, []) if _is_fork(one)]
    argv = waiting[0].cmdline()
    own = [one for one in forks if one.cmdline()[: len(argv)] == argv] or waiting[:1]  # a fork's has padding behind it
    children = [one for one in forks if one not in own] or [one for one in waiting if one.pid != process.pid]
    if victim in ("child", "both"):
        for child in children:
            child.kill()
    if victim in ("parent", "both"):
        own[0].kill()
    if victim == "stopped":
        process.terminate()
    process.wait(timeout=60)
    return [one.pid for one in (*waiting, *forks)]


def _is_fork(process: psutil.Process) -> bool:
    """Whether this is a command's fork of the preloaded process, and not the process that waits for it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("preloaded/process.py" in part for part in process.parent().cmdline())
    return False


def seconds_until_gone(root: Path, pids: list[int], limit: float = 90.0) -> float:
    """How long processes of the run live on: those recorded, and any whose command line names the run's folder."""
    began = time.monotonic()
    while (alive := living(root, pids)) and time.monotonic() < began + limit:
        time.sleep(0.02)
    return float("inf") if alive else time.monotonic() - began


def living(root: Path, pids: list[int]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["pid", "status", "cmdline"]):
        named = any(str(root) in part for part in process.info["cmdline"] or ())
        known = process.info["pid"] in pids
        if (named or known) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def contents(root: Path) -> dict[str, Any]:
    """Everything that a run left behind and that must be equal in an equal run, by relative path."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = str(path.relative_to(root))
        if any(fnmatch(name, pattern) for pattern in MAY_DIFFER):
            continue
        if path.suffix == ".jsonl":
            found[name] = [_without_measured(json.loads(line), name) for line in path.read_text().splitlines()]
            ids = [row["id"] for row in found[name] if "id" in row]
            assert len(ids) == len(set(ids)), f"{name}: an id stands twice"
        elif path.suffix == ".json":
            found[name] = _without_measured(json.loads(path.read_text()), name)
        elif path.suffix in (".pt", ".pth"):
            found[name] = _tensors(path)
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    found["what the failure memory holds"] = remembered(root)
    return found


def differences(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Names of the files that only one of the two has, or that differ."""
    return sorted(name for name in left.keys() | right.keys() if left.get(name, ...) != right.get(name, ...))


def remembered(root: Path) -> Any:
    """Ids, texts and notes of the failure memory, read past its own code."""
    import chromadb
    from chromadb.config import Settings

    if not (root / "failures").is_dir():
        return []
    client = chromadb.PersistentClient(root / "failures", settings=Settings(anonymized_telemetry=False))
    rows = []
    for collection in client.list_collections():
        kept = collection.get(include=["metadatas", "documents", "embeddings"])
        vectors = [hashlib.sha256(row.tobytes()).hexdigest() for row in kept["embeddings"]]
        rows += zip(kept["ids"], kept["documents"], map(dict, kept["metadatas"]), vectors, strict=True)
    client.close()
    return sorted(rows, key=lambda row: row[0])


def _tensors(path: Path) -> Any:
    """What torch saved, every tensor and array by the hash of its bytes."""
    import torch

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        if hasattr(value, "tobytes"):
            return hashlib.sha256(value.tobytes()).hexdigest()
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else str(value)

    return plain(torch.load(path, weights_only=False))


def _without_measured(value: Any, name: str) -> Any:
    top = {key for pattern, keys in MEASURED.items() if fnmatch(name, pattern) for key in keys}
    return _inside({key: item for key, item in value.items() if key not in top})


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _inside(item) for key, item in value.items() if key != "measured"}
    return [_inside(item) for item in value] if isinstance(value, list) else value


def install(end: str, hook: str, number: int) -> None:
    """From now on the work of ``hook`` ends the process (kill) or fails (full) at its ``number``-th time."""
    where, _, name = HOOKS[hook].rpartition(".")
    owner = pkgutil.resolve_name(where)
    work, calls = getattr(owner, name), itertools.count(1)

    def called(*given: Any) -> Any:
        time = next(calls)
        if end == "full" and time >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        result = work(*given)
        if end == "kill" and time == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, called)


def hold(file: Path, marker: Path) -> None:
    """From now on this process stops where it writes a record and there is such a file."""
    records = importlib.import_module("memory.files")

    def holding(work: Callable[..., None]) -> Callable[..., None]:
        def done(*given: Any) -> None:
            work(*given)
            if list(Path(file.anchor).glob(str(file.relative_to(file.anchor)))):
                marker.touch()
                while True:
                    time.sleep(60)

        return done

    for name in ("_flush", "_sync_folder"):  # before a record is in its place, and after
        setattr(records, name, holding(getattr(records, name)))


def hold_children(told: Sequence[str]) -> None:
    """From now on children of this process that run the module ``told[0]`` are started so that they hold."""
    stages = importlib.import_module("graph.run.stages")
    run_child = stages.run_child

    def started(argv: Sequence[str], **named: Any) -> Any:
        if argv[2] == told[0]:
            argv = held_at(told[0], Path(told[1]), Path(told[2]), argv)
        return run_child(argv, **named)

    stages.run_child = started


if __name__ == "__main__" and sys.argv[1] == "hold":
    where, file, marker, module, *options = sys.argv[2:]
    if where == module:
        hold(Path(file), Path(marker))
    else:
        hold_children([where, file, marker])
    sys.argv[1:] = options
    runpy.run_module(module, run_name="__main__", alter_sys=True)
elif __name__ == "__main__":
    from graph.run_iteration import app

    install(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    app(sys.argv[4:])
