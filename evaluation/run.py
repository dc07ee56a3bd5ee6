"""`python -m evaluation.run`: greedy success of a model on an evaluation set, an official category or a file of tasks.

The command has one option per field of ``ScoringSettings``. A run and a study start it with ``--settings FILE``; an
option that is given too replaces what the file states.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

import typer
from pydantic import JsonValue
from pydantic.fields import FieldInfo

from environments.base import InputError
from environments.command import OneSentence, check_output, exit_statuses
from evaluation.settings import AttemptSettings, ScoringSettings, read_settings
from memory.strict_yaml import parse_yaml

FORMER_OPTIONS = {"panel": "evaluation_set", "openings": "access_log"}
"""Options by their former names, which work for one release."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` one option per field of ``ScoringSettings`` in place of its ``**given``.

    An option that is left out is None; the help shows the field's default. Former names are hidden.
    """
    fields = ScoringSettings.model_fields
    what_first = sorted(fields, key=lambda name: name in AttemptSettings.model_fields)
    parameters = [_option(name, fields[name]) for name in what_first if name != "options"]
    parameters += [_option(old, fields[new], hidden=True) for old, new in FORMER_OPTIONS.items()]
    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters += [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> None:  # noqa: ANN401 - as typer parsed them
        command(**arguments)

    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    return wrapped


def _option(name: str, field: FieldInfo, *, hidden: bool = False) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    kind: Any = list[str] if field.annotation == tuple[str, ...] else field.annotation
    # Typer makes --x and --no-x of a truth value whose flag is not spelt out: wanted where null is a third value.
    three_valued = bool in get_args(kind)
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if three_valued else flag,
        help=field.description,
        hidden=hidden,
        show_default=str(field.default) if field.default not in (None, (), False) else False,
        **dict(_bounds(field)),
    )
    hint = kind if NoneType in get_args(kind) else kind | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint, option])


def _bounds(field: FieldInfo) -> Iterator[tuple[str, Any]]:
    """Yield the field's bounds for the command line, which names the option that is out of them."""
    for constraint in field.metadata:
        for attribute, bound in (("ge", "min"), ("le", "max")):
            if hasattr(constraint, attribute):
                yield bound, getattr(constraint, attribute)


@app.command(cls=OneSentence)
@with_options
def main(
    settings: Annotated[
        Path | None, typer.Option(help="YAML or JSON file of these options, - written as _; options replace its values")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="outcomes file, JSON lines, one object per task")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="print one line of JSON on stdout after each task")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="an option of the environment, as in a recipe's environment.options"),
    ] = None,
    **given: Any,  # noqa: ANN401 - the fields of ScoringSettings
) -> None:
    """Score a model: official verdicts, greedy decoding, one attempt per task; by task, call shape and function."""
    from memory.processes import watch_parent

    with exit_statuses():
        watch_parent()
        if output is not None:
            check_output("--output", output)
        stated = {} if settings is None else read_settings(settings)
        if option:
            stated["options"] = stated.get("options", {}) | options_given(option)
        _evaluate(ScoringSettings.model_validate(stated | _renamed(given)), output, as_json, progress)


def options_given(options: Sequence[str]) -> dict[str, JsonValue]:
    """Return the environment's options as ``--option KEY=VALUE`` states them, values in YAML. Raises InputError."""
    given: dict[str, JsonValue] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise InputError(f"--option {option}: write it as key=value, for example max_steps=5")
        given[key] = parse_yaml(value, f"--option {option}")
    return given


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, under their names of today."""
    options = {name: value for name, value in given.items() if value is not None}
    for old, new in FORMER_OPTIONS.items():
        if old in options:
            flag = new.replace("_", "-")
            if new in options:
                raise InputError(f"--{old} is the former name of --{flag}, and both are given: leave --{old} out")
            print(f"warning: --{old} is called --{flag} now, the old name works for one release", file=sys.stderr)
            options[new] = options.pop(old)
    return options


def _evaluate(settings: ScoringSettings, output: Path | None, as_json: bool, progress: bool) -> None:
    from evaluation.attempts import evaluate
    from evaluation.baselines import BASELINES, NO_MODEL, baseline, play
    from evaluation.outcomes import GREEDY, Report, print_report, score, score_strata, total_stops
    from evaluation.selection import notes_for, select, written

    started = time.perf_counter()
    model, environment = settings.model, settings.environment
    if (settings.train is None) == (model in BASELINES):
        raise InputError(f"--train FILE goes with --model {' or '.join(BASELINES)}: give both or neither")
    selected = select(settings)
    benchmark, budget = selected.benchmark, selected.benchmark.limits
    max_actions = settings.max_actions or budget.actions
    opened = selected.environment(max_actions)

    def report_progress(done: int, successes: int) -> None:
        if progress:
            print(json.dumps({"evaluated": done, "of": len(selected.items), "successes": successes}), flush=True)

    if model in BASELINES:
        driver, told = baseline(model, settings.train, selected.items)
        outcomes, rendering = play(selected.items, opened, driver, max_actions), NO_MODEL
        notes = (*told, *notes_for(rendering, settings, benchmark, outcomes))
    else:
        outcomes, policy = evaluate(selected.items, opened, settings, budget, report_progress)
        rendering = policy.rendering.name
        notes = notes_for(rendering, settings, benchmark, outcomes)
    groups = tuple(dict.fromkeys(item.group for item in selected.items))
    scores = tuple(score(group, outcomes, selected.metrics) for group in groups)
    report = Report(
        environment=environment,
        model=model,
        rendering=rendering,
        decoding="one attempt a task, no model" if model in BASELINES else GREEDY,
        notes=notes,
        scores=scores,
        mean=sum(one.success for one in scores) / len(scores),
        seconds=time.perf_counter() - started,
        stop_reasons=total_stops(outcomes),
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


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
