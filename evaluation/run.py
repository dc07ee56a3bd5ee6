"""`python -m evaluation.run`: greedy success of a model on a fixed panel, an official category or a file of tasks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import JsonValue

from environments.base import InputError
from environments.command import OneSentence, check_output, exit_statuses
from environments.registry import DEFAULT
from evaluation.attempts import Decoding, evaluate
from evaluation.baselines import BASELINES, NO_MODEL, baseline, play
from evaluation.outcomes import GREEDY, Report, print_report, score, score_strata
from evaluation.panels import ALL
from evaluation.selection import Selection, notes_for, select, written
from memory.strict_yaml import parse_yaml

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    environment: Annotated[str, typer.Option(help="a benchmark, or module:callable of your own environment")] = DEFAULT,
    panel: Annotated[
        list[str] | None,
        typer.Option(
            help="evaluation set of the benchmark, may be repeated where one environment serves several: an unknown "
            "name is answered with the ones there are"
        ),
    ] = None,
    category: Annotated[str | None, typer.Option(help="category of the benchmark's official tasks, or all")] = None,
    tasks: Annotated[Path | None, typer.Option(help="file of tasks, as tasks.jsonl of a run")] = None,
    model: Annotated[
        str,
        typer.Option(
            help="folder or hub id of a causal language model; or, with --train, lookup (the nearest training clause) "
            "or constant (the most frequent training turn): what the training tasks say without a model"
        ),
    ] = "recipes/starter",
    train: Annotated[Path | None, typer.Option(help="with --model lookup or constant: file of training tasks")] = None,
    split: Annotated[str, typer.Option(help="with --category: its tasks of one split only")] = ALL,
    output: Annotated[Path | None, typer.Option(help="outcomes file, JSON lines, an object a task")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="the first N tasks of each group only")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="episodes decoded together; as the benchmark, else 128")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="where the model runs")] = "auto",
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="type of the weights")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
    max_actions: Annotated[
        int | None, typer.Option(min=1, help="actions in a user turn; as the benchmark, else 20")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="sampled tokens of an action; as the benchmark, else 48 compact and 1024")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=16, help="tokens of an episode; as the benchmark, else 512 compact and 24576"),
    ] = None,
    openings: Annotated[
        Path | None,
        typer.Option(
            help="ledger for held-out panels: of evaluation.study, where it alone opens them; else the one in which "
            "this opening is noted, with date, commit, split, hash of its ids, and model"
        ),
    ] = None,
    thinking: Annotated[
        bool | None, typer.Option(help="enable_thinking of the chat template; as trained, else its default")
    ] = None,
    trust_agent_code: Annotated[
        bool, typer.Option("--trust-agent-code", help="run agents' code where it cannot be walled in")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="an option of the environment, as in a recipe's environment.options"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")] = False,
    progress: Annotated[
        bool,
        typer.Option("--progress", help="print a line of JSON on stdout after each task"),
    ] = False,
) -> None:
    """Score a model: official verdicts, greedy decoding, one attempt a task; by task, by call shape and by function."""
    from memory.processes import watch_parent

    with exit_statuses():
        watch_parent()
        started = time.perf_counter()
        if output is not None:
            check_output("--output", output)
        chosen = Selection(
            environment=environment,
            model=model,
            panels=tuple(panel or ()),
            category=category,
            tasks=tasks,
            split=split,
            limit=limit,
            openings=openings,
            trust_agent_code=trust_agent_code,
            options=options_given(option or ()),
        )
        if (train is None) == (model in BASELINES):
            raise InputError(f"--train FILE goes with --model {' or '.join(BASELINES)}: give both or neither")
        selected = select(chosen)
        benchmark, budget = selected.benchmark, selected.benchmark.limits
        decoding = Decoding(
            model=model,
            device=device,
            dtype=dtype,
            threads=threads,
            max_actions=max_actions or budget.actions,
            max_new_tokens=max_new_tokens,
            max_tokens=max_tokens,
            batch=batch or budget.batch,
            thinking=thinking,
            budget=budget,
        )
        place = selected.environment(decoding.max_actions)

        def tell(done: int, successes: int) -> None:
            if progress:
                print(json.dumps({"evaluated": done, "of": len(selected.items), "successes": successes}), flush=True)

        if model in BASELINES:
            driver, told = baseline(model, train, selected.items)
            outcomes, rendering = play(selected.items, place, driver, decoding.max_actions), NO_MODEL
            notes = (*told, *notes_for(rendering, chosen, benchmark, outcomes))
        else:
            outcomes, policy = evaluate(selected.items, place, decoding, tell)
            rendering = policy.rendering.name
            notes = notes_for(rendering, chosen, benchmark, outcomes)
        groups = tuple(dict.fromkeys(item.group for item in selected.items))
        scores = tuple(score(group, outcomes, selected.metrics) for group in groups)
        report = Report(
            environment=environment,
            model=model,
            rendering=rendering,
            decoding="one attempt a task, no model" if model in BASELINES else GREEDY,
            notes=notes,
            scores=scores,
            mean=sum(s.success for s in scores) / len(scores),
            seconds=time.perf_counter() - started,
        )
        for one in outcomes:
            if one.infrastructure_error is not None:
                print(f"{one.task_id} could not be judged: {one.infrastructure_error}", file=sys.stderr)
        if output is not None:
            from memory.run import write_jsonl

            output.parent.mkdir(parents=True, exist_ok=True)
            write_jsonl(output, written(outcomes, benchmark), new=True)
    if as_json:
        print(report.model_dump_json())
    else:
        print_report(report, score_strata(outcomes, selected.metrics))


def options_given(options: Sequence[str]) -> dict[str, JsonValue]:
    """The environment's options as ``--option KEY=VALUE`` gives them, values in YAML. Raises InputError."""
    given: dict[str, JsonValue] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise InputError(f"--option {option}: write it as key=value, for example max_steps=5")
        given[key] = parse_yaml(value, f"--option {option}")
    return given


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
