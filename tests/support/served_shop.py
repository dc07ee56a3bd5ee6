"""A till as an environment of a user's own, with two tasks, served to OpenEnv's clients."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import ROOT

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
    argv = [sys.executable, "-P", "-m", "graph.check_environment", "serve", *what]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    process = subprocess.Popen(
        [*argv, "--port", "0", *options], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"serving 2 tasks of shop at (http://\S+)", said)
        assert found, said + process.stderr.read()
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
