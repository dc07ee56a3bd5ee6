"""`python -m evaluation.held_out`: record a benchmark's held-out sets by content, for decontamination."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from environments.base import InputError
from environments.command import exit_statuses
from environments.registry import DEFAULT, named_benchmark

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    environment: Annotated[str, typer.Option(help="the benchmark")] = DEFAULT,
    output: Annotated[
        Path | None, typer.Option(help="file to write; by default the one that decontamination reads")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the file that exists")] = False,
) -> None:
    """Record the held-out sets of a benchmark by content. Takes some minutes; equal data give equal files."""
    from environments.verification.decontamination import RECORD_FILE
    from environments.verification.fingerprints import sets_folder, write_record

    with exit_statuses():
        benchmark = named_benchmark(environment)
        path = output or sets_folder(benchmark.name) / RECORD_FILE
        if path.exists() and not force:
            raise InputError(
                f"{path} exists: a record is fixed, give --force to replace it and say so in the changelog"
            )
        record = benchmark.make_held_out_record()
        write_record(path, record)
        distinctive = sum(task.distinctive for task in record.tasks)
        print(f"{len(record.tasks)} held-out tasks ({distinctive} distinctive), {len(record.held_out)} parts of states")
        print(f"{path}: sha256 {record.sha256}")


if __name__ == "__main__":
    app()
