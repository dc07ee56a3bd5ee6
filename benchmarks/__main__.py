"""`python -m benchmarks`: measure ours against what a user would run instead, and write the table of the figures."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.command import OneSentence, check_output, exit_statuses

if TYPE_CHECKING:
    from benchmarks.measurement import Measurement

TABLE = Path("benchmarks/results.md")
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Compared(StrEnum):
    """The modules that measure, by name; a new one has ``measure(repeats, model)`` and a line here."""

    GRPO = "grpo"  # five minutes: rollouts and a GRPO step, against plain TRL
    LANGUAGE_MODEL = "language_model"  # ten minutes on two cores: sampling and learning with 135 M parameters


@app.command(cls=OneSentence)
def main(
    only: Annotated[list[Compared] | None, typer.Option(help="measure this one; can be given several times")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="pairs of measurements of each figure")] = 5,
    model: Annotated[
        str | None,
        typer.Option(help="folder of the model of language_model (.models/smollm2-135m if none) and of grpo"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help=f"the table, JSON lines beside it; {TABLE}, with --only in build/benchmarks/")
    ] = None,
) -> None:
    """Measure speed against what a user would run instead, and write the table.

    grpo: rollouts and a GRPO step against plain TRL. language_model: sampling and learning with 135 M parameters
    against plain transformers, on all cores. Rows are written as soon as a benchmark is done. Exit status: 0,
    whatever the figures are; 2 for a user's mistake; 1 when a benchmark failed.
    """
    with exit_statuses(RuntimeError):
        names = [one for one in Compared if not only or one in only]
        if output is not None:
            check_output("--output", output)
            check_output("--output", output.with_suffix(".jsonl"))
        path = output or (TABLE if not only else Path("build/benchmarks") / f"{'-'.join(names)}.md")
        os.environ.update(SINGLE_THREADED)  # before torch is imported
        from benchmarks.measurement import table
        from memory.files import write_atomically
        from memory.jsonl import write_jsonl

        rows: list[Measurement] = []
        for name in names:
            print(f"{name}: measuring ...", file=sys.stderr, flush=True)
            rows += import_module(f"benchmarks.{name}").measure(repeats, model)
            write_atomically(path, [table(rows).encode()])
            write_jsonl(path.with_suffix(".jsonl"), rows)
        print(path.read_text(), end="")


if __name__ == "__main__":
    app()
