"""`python -m benchmarks`: run each benchmark in a separate process and write the table of their figures."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.catalogue import BENCHMARKS, CatalogueEntry, chosen
from environments.base import InputError
from environments.command import FAILURE, MISTAKE, OneSentence, check_output, exit_statuses

if TYPE_CHECKING:
    from benchmarks.measurement import Measurement

DEADLINE = 3600.0  # seconds for one benchmark
TABLE = Path("benchmarks/results.md")
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    only: Annotated[list[str] | None, typer.Option(help="measure this one; can be given several times")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="pairs of measurements of each figure")] = 5,
    output: Annotated[
        Path | None, typer.Option(help=f"the table, JSON lines beside it; {TABLE}, with --only in build/benchmarks/")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="a run whose records give evolution-share, instead of a short new one")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="list the benchmarks and their durations")] = False,
) -> None:
    """Measure speed and cost against what a user would run instead, and write the table.

    Rows are written as soon as a benchmark is done. Exit status: 0, whatever the figures are; 2 for a user's mistake;
    1 when a benchmark failed. The table names failed benchmarks, and those that were skipped because a requirement is
    not installed, with the reason.
    """
    if listing:
        for benchmark in BENCHMARKS:
            print(f"{benchmark.name:16} {benchmark.words} ({benchmark.takes})")
        return
    with exit_statuses():
        benchmarks = chosen(only or [])
        if run is not None:
            _check_run(run, benchmarks)
        if output is not None:
            check_output("--output", output)
            check_output("--output", output.with_suffix(".jsonl"))
        path = output or (
            TABLE if not only else Path("build/benchmarks") / f"{'-'.join(b.name for b in benchmarks)}.md"
        )
        status = _measure_all(benchmarks, repeats, run, path, named=bool(only))
    raise typer.Exit(status)


def _check_run(run: Path, benchmarks: Sequence[CatalogueEntry]) -> None:
    if not any(benchmark.reads_run for benchmark in benchmarks):
        raise InputError("--run has no effect on what --only names: leave it out")
    from memory.run import RunDirectory

    RunDirectory.open(run)


def _measure_all(
    benchmarks: Sequence[CatalogueEntry], repeats: int, run: Path | None, path: Path, *, named: bool
) -> int:
    """Write the table and the lines after each benchmark, print the table, and return the exit status.

    ``named``: whether the user asked for these. An optional one that was not named may fail for a missing requirement.
    """
    from benchmarks.table import table
    from memory.jsonl import write_atomically, write_jsonl

    rows: list[Measurement] = []
    failures: list[str] = []
    status = 0
    for benchmark in benchmarks:
        print(f"{benchmark.name}: measuring, about {benchmark.takes} ...", file=sys.stderr, flush=True)
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            measured, complaint = _measure(benchmark, repeats, run if benchmark.reads_run else None, Path(folder))
        rows += measured
        if complaint is not None:
            failures.append(f"{benchmark.name}: {complaint[1].splitlines()[-1]}")
            print(f"{benchmark.name}: {complaint[1]}", file=sys.stderr, flush=True)
            skipped = benchmark.optional and not named and complaint[0] == MISTAKE
            status = status if skipped else max(status, complaint[0])
        print(f"{benchmark.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        write_atomically(path, [table(rows, failures).encode()])
        write_jsonl(path.with_suffix(".jsonl"), rows)
    print(path.read_text(), end="")
    return status


def _measure(
    benchmark: CatalogueEntry, repeats: int, run: Path | None, folder: Path
) -> tuple[list[Measurement], tuple[int, str] | None]:
    """Return the rows of one benchmark; on failure none, but the exit status and the end of its log."""
    from benchmarks.measurement import Measurement
    from memory.jsonl import read_jsonl
    from memory.processes import ChildFailure, run_child

    output, log = folder / "rows.jsonl", folder / "log"
    argv = [sys.executable, "-m", "benchmarks.child", benchmark.name, str(repeats), str(output)]
    argv += [] if run is None else [str(run)]
    try:
        status = asyncio.run(run_child(argv, log_path=log, deadline=DEADLINE, accept=(0, MISTAKE), env=SINGLE_THREADED))
    except ChildFailure as failure:
        return [], (FAILURE, str(failure))
    if status == MISTAKE:
        said = log.read_text(errors="replace").strip().splitlines() or ["no reason given"]
        return [], (MISTAKE, said[-1].removeprefix("error: "))
    return read_jsonl(output, Measurement), None


if __name__ == "__main__":
    app()
