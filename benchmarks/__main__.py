"""`python -m benchmarks`: measure ours against what a user would run instead, and write the table of the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from environments.command import OneSentence, check_output, exit_statuses

TABLE = Path("benchmarks/results.md")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    repeats: Annotated[int, typer.Option(min=1, help="pairs of measurements of each figure")] = 5,
    model: Annotated[
        str | None, typer.Option(help="a causal language model with a chat template, in place of a tiny policy")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help=f"the table, JSON lines beside it; {TABLE}, with --model in build/benchmarks/")
    ] = None,
) -> None:
    """Measure rollouts and a GRPO step against plain TRL, and write the table.

    Five minutes of one core, with a model on two cores an hour. Exit status: 0, whatever the figures are; 2 for a
    user's mistake; 1 when a side failed.
    """
    with exit_statuses(RuntimeError):
        if output is not None:
            check_output("--output", output)
            check_output("--output", output.with_suffix(".jsonl"))
        path = output or (TABLE if model is None else Path("build/benchmarks/model.md"))
        if model is not None:
            from training.rollout.policy_path import policy_folder

            model = policy_folder(model)
        from benchmarks.grpo import measure
        from benchmarks.measurement import table
        from memory.jsonl import write_atomically, write_jsonl

        rows = measure(repeats, model)
        write_atomically(path, [table(rows).encode()])
        write_jsonl(path.with_suffix(".jsonl"), rows)
        print(path.read_text(), end="")


if __name__ == "__main__":
    app()
