"""Runs one benchmark in a separate process, so that memory, caches and threads of others do not affect it.

`python -m benchmarks` starts `python -m benchmarks.child NAME REPEATS OUTPUT [RUN]`, which writes its rows to OUTPUT.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import redirect_stdout
from pathlib import Path

from benchmarks.catalogue import chosen
from environments.command import exit_statuses
from memory.jsonl import write_jsonl
from memory.processes import ChildFailure, watch_parent


def main(name: str, repeats: str, output: str, run: str | None = None) -> None:
    """Measure one benchmark. Exit status: 0, 2 for a user's mistake, 1 for anything else."""
    with exit_statuses(ChildFailure):
        watch_parent()
        (benchmark,) = chosen([name])
        measure = importlib.import_module(benchmark.module).measure
        with redirect_stdout(sys.stderr):
            rows = measure(int(repeats)) if run is None else measure(int(repeats), run=Path(run))
        write_jsonl(Path(output), rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
