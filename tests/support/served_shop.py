"""A till as an environment of a user's own, with two tasks, served to OpenEnv's clients."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from support import ROOT
from support.server_process import running

SHOP = """
import time
from typing import Annotated
from environments.python_class.environment import PythonEnvironment, ToolRefused

class Shop:
    "A till."

    def __init__(self, euros: int) -> None:
        self.euros = euros

    def count_euros(self) -> int:
        "Count the euros in the till."
        return self.euros

    def add_euros(self, euros: Annotated[int, "euros to add"]) -> None:
        "Put euros into the till."
        if euros < 0:
            raise ToolRefused("give 0 or more")
        self.euros += euros

    def wait_long(self) -> None:
        "Wait."
        time.sleep(3600)

    def break_down(self) -> None:
        "Break."
        raise KeyError("a defect")

def shop() -> PythonEnvironment:
    return PythonEnvironment("shop", Shop, [{"euros": 3}], call_seconds=60)
"""
TASKS = [
    {"turns": ["Put 4 euros into the till."], "reference": [[{"name": "add_euros", "arguments": {"euros": 4}}]]},
    {
        "turns": ["Put 1 euro into the till.", "How much is in it?"],
        "reference": [[{"name": "add_euros", "arguments": {"euros": 1}}], [{"name": "count_euros", "arguments": {}}]],
    },
]


def write_shop(folder: Path) -> Path:
    """Write the environment and its tasks, and return the folder."""
    (folder / "my_shop.py").write_text(SHOP)
    common: dict[str, Any] = {
        "environment": "shop",
        "split": "train",
        "classes": ["Shop"],
        "initial_state": {"Shop": {"euros": 3}},
        "tools": ["count_euros", "add_euros", "wait_long", "break_down"],
        "origin": "given",
    }
    lines = [json.dumps({**common, **task, "id": f"task-{number}"}) for number, task in enumerate(TASKS)]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@contextmanager
def served(
    folder: Path, *options: str, what: Sequence[str] = ("my_shop:shop", "--tasks", "tasks.jsonl"), **variables: str
) -> Iterator[str]:
    log = Path(mkdtemp(dir=folder)) / "log"
    argv = [sys.executable, "-P", "-m", "graph.check_environment", "serve", *what, "--port", "PORT", *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with running(argv, log, statuses=(200, 401), cwd=folder, env=environ) as server:
        assert f"serving 2 tasks of shop at {server.url}" in log.read_text()
        yield server.url
    assert server.process.returncode == 0, "SIGTERM ends it as its help says"
