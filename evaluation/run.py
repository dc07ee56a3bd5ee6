"""`python -m evaluation.run`: greedy success of a model on a fixed panel, an official category or a file of tasks."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from environments.base import InputError
from environments.checkout import INITIAL_POLICY
from environments.command import OneSentence, check_output, exit_statuses
from environments.settings import BFCL
from evaluation.attempts import Decoding, evaluate
from evaluation.baselines import BASELINES, NO_MODEL, baseline, play
from evaluation.outcomes import GREEDY, Report, print_report, score_strata
from evaluation.panels import SplitChoice
from evaluation.selection import Selection, budget_of, notes_for, select, written

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    environment: Annotated[str, typer.Option(help="bfcl, appworld, or module:callable of your own environment")] = BFCL,
    panel: Annotated[
        list[str] | None,
        typer.Option(
            help="bfcl: templated-dev, longer-dev or turns-dev, may be repeated; appworld: dev, test_normal or "
            "test_challenge, judged by the benchmark's checks, with TGC and SGC"
        ),
    ] = None,
    category: Annotated[
        str | None, typer.Option(help="official category of bfcl: base, miss_func, miss_param, long_context, all")
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help="file of tasks, as tasks.jsonl of a run")] = None,
    model: Annotated[
        str,
        typer.Option(
            help="folder or hub id of a causal language model; or, with --train, lookup (the nearest training clause) "
            "or constant (the most frequent training turn): what the training tasks say without a model"
        ),
    ] = INITIAL_POLICY,
    train: Annotated[Path | None, typer.Option(help="with --model lookup or constant: file of training tasks")] = None,
    split: Annotated[SplitChoice, typer.Option(help="with --category: its tasks of one split only")] = "all",
    output: Annotated[Path | None, typer.Option(help="outcomes file, JSON lines, an object a task")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="the first N tasks of each group only")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="episodes decoded together; 128, appworld 8")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="where the model runs")] = "auto",
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="type of the weights")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
    max_actions: Annotated[
        int | None, typer.Option(min=1, help="actions in a user turn (official: 20, appworld 30)")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="sampled tokens of an action; 48 compact, else 1024, appworld 2048")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=16, help="tokens of an episode; 512 compact, else 24576; appworld 2048 compact, else 32768"),
    ] = None,
    openings: Annotated[
        Path | None,
        typer.Option(
            help="for held-out panels. bfcl: ledger of evaluation.study, which opens them. appworld: ledger in which "
            "this opening is noted, with date, commit, split, hash of its ids, and model"
        ),
    ] = None,
    thinking: Annotated[
        bool | None, typer.Option(help="enable_thinking of the chat template; as trained, else its default")
    ] = None,
    trust_agent_code: Annotated[
        bool, typer.Option("--trust-agent-code", help="appworld: run agents' code where it cannot be walled in")
    ] = False,
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
        )
        if (train is None) == (model in BASELINES):
            raise InputError(f"--train FILE goes with --model {' or '.join(BASELINES)}: give both or neither")
        selected, budget = select(chosen), budget_of(environment)
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
            notes = (*told, *notes_for(rendering, chosen, outcomes))
        else:
            outcomes, policy = evaluate(selected.items, place, decoding, tell)
            rendering = policy.rendering.name
            notes = notes_for(rendering, chosen, outcomes)
        groups = tuple(dict.fromkeys(item.group for item in selected.items))
        scores = tuple(selected.scoring(group, outcomes) for group in groups)
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
            write_jsonl(output, written(outcomes, environment), new=True)
    if as_json:
        print(report.model_dump_json())
    else:
        print_report(report, score_strata(outcomes, selected.scoring))


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
