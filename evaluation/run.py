"""`python -m evaluation.run`: scores of a model or of controls on an evaluation set or a file of tasks.

The command has one option per field of ``ScoringSettings``. A run and a study start it with ``--settings FILE``; an
option that is given too replaces what the file states.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer
from pydantic.fields import FieldInfo

from environments.base import EnvironmentFault, InputError
from environments.command import OneSentence, check_output, exit_statuses, say
from environments.metrics import mixed, pass_at
from environments.trust import refuse_untrusted
from evaluation.settings import CONTROLS, ENDPOINT, ScoringSettings, read_settings, sampling_on
from memory.jsonl import options_given
from memory.records import StopReason
from training.settings import RenderingOptions

if TYPE_CHECKING:
    from evaluation.attempts import Attempts
    from evaluation.outcomes import Report, TaskOutcome
    from evaluation.sets import Selected


MOST_PASSES = 8
"""The largest k of the pass@k that a report has, as groups of GRPO have 8 rollouts (ours)."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class EvaluateCommand(OneSentence):
    """The command, whose help shows what is given most often."""

    often = ("model", "evaluation_set", "tasks", "limit", "base_url", "output", "as_json")


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` one option per field of ``ScoringSettings`` in place of its ``**given``.

    An option that is left out is None; the help shows the field's default: what is scored first, then
    how.
    """
    fields = ScoringSettings.model_fields
    what_first = sorted(fields, key=lambda name: name not in ScoringSettings.__annotations__)
    parameters = [_option(name, fields[name]) for name in what_first if name not in ("options", "sampling")]
    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters += [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    return command


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    kind: Any = list[str] if field.annotation == tuple[str, ...] else field.annotation
    # Typer makes --x and --no-x of a truth value whose flag is not spelt out: wanted where null is a third value.
    three_valued = bool in get_args(kind)
    shown: dict[str, Any] = {"parser": _tools_shown, "metavar": "all|K"} if name == "tools_shown" else {}
    # The command line names the option that is out of its bounds.
    bounds = {
        bound: getattr(constraint, attribute)
        for constraint in field.metadata
        for attribute, bound in (("ge", "min"), ("le", "max"))
        if hasattr(constraint, attribute)
    }
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if three_valued else flag,
        help=field.description,
        show_default=str(field.default) if field.default not in (None, (), False) else False,
        **bounds,
        **shown,
    )
    kind = str | None if name == "tools_shown" else kind  # typer has no type for a word or a number
    hint = kind if NoneType in get_args(kind) else kind | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint, option])


def _tools_shown(text: str) -> str | int:
    try:
        return RenderingOptions.checked_count(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command(cls=EvaluateCommand)
@with_options
def main(
    settings: Annotated[
        Path | None, typer.Option(help="YAML or JSON file of these options, - written as _; options replace its values")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="outcomes file, JSON lines, one object per task")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object on stdout, with --controls one per line")
    ] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="print one line of JSON on stdout after each task")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="openai: go on with the outcomes in --output; what was attempted is not paid again"
        ),
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="an option of the environment, as in a recipe's environment.options"),
    ] = None,
    servers: Annotated[
        list[str] | None,
        typer.Option(help="address of a vLLM server that samples in place of this process, may be repeated (ours)"),
    ] = None,
    **given: Any,  # noqa: ANN401 - the fields of ScoringSettings
) -> None:
    """Score a model: official outcomes, by default greedy and one attempt per task; by task and by call shape.

    With --model openai:NAME the model is one that an OpenAI-compatible endpoint serves. Its key is read from the
    environment variable of its address (docs/models.md). Outcomes are added to --output as they come, with a card
    beside them at the end; --resume goes on.

    \b
    coevolve evaluate --evaluation-set human-dev --model Qwen/Qwen3-4B
    coevolve evaluate --evaluation-set all@dev --model openai:NAME --limit 20
    coevolve evaluate --tasks tasks.jsonl --output outcomes.jsonl

    Exit status: 0; 2 for a user's mistake; 1 when the endpoint only failed or a budget is spent.
    """
    from agents.spending import BudgetReached, RepeatedFailure
    from environments.registry import named_benchmark, named_options
    from evaluation.endpoint import lock_path
    from memory.processes import exclusive, watch_parent
    from training.rollout.sampling import EngineFailure

    with exit_statuses(BudgetReached, RepeatedFailure, EngineFailure):
        watch_parent()
        stated = {} if settings is None else read_settings(settings)
        by_hand = options_given(option or [])
        of_file = {name: value for name, value in stated.pop("options", {}).items() if name not in by_hand}
        stated["options"] = of_file | by_hand
        if servers:
            stated["sampling"] = sampling_on(servers)
        stated |= {name: value for name, value in given.items() if value is not None}
        chosen = ScoringSettings.model_validate(stated)
        if of_file:
            benchmark = named_benchmark(chosen.environment)
            refuse_untrusted(benchmark.program(named_options(benchmark, of_file)))
        if resume and (output is None or chosen.served is None):
            raise InputError(
                f"--resume goes on with the --output of a --model {ENDPOINT}NAME: give both, or leave it out"
            )
        if output is not None and chosen.served is None:
            check_output("--output", output)
        chosen.check_model()
        with ExitStack() as held:
            if output is not None and chosen.served is not None:  # a second one would send its requests again
                held.enter_context(exclusive(lock_path(output), f"the evaluation {output}"))
            _evaluate(chosen.named(), Destination(output, resume, as_json, progress))


class Destination(NamedTuple):
    """Where the results go: the outcomes' file, new or continued, and the format of stdout."""

    output: Path | None
    resume: bool
    as_json: bool
    progress: bool


def _evaluate(settings: ScoringSettings, to: Destination) -> None:
    from evaluation.outcomes import Report, print_report, print_rows, score, score_strata
    from evaluation.sets import notes_for, select, written

    selected = select(settings)
    groups = tuple(dict.fromkeys(item.group for item in selected.items))
    metrics = dict(selected.metrics)
    if settings.samples > 1:
        metrics |= {f"pass@{(k := min(settings.samples, MOST_PASSES))}": pass_at(k), "mixed": mixed}
    reports: list[Report] = []
    outcomes: list[TaskOutcome] = []
    for model in settings.models:
        started = time.perf_counter()
        one = settings.model_copy(update={"model": model})
        made = _attempted(one, selected, to)
        scores = tuple(score(group, made.outcomes, metrics) for group in groups)
        stops = {reason: sum(each.stop_reasons.get(reason, 0) for each in made.outcomes) for reason in StopReason}
        report = Report(
            environment=settings.environment,
            model=model,
            rendering=made.rendering,
            decoding=made.decoding,
            notes=(*made.notes, *notes_for(made.rendering, one, selected.benchmark, made.outcomes)),
            scores=scores,
            mean=sum(each.success for each in scores) / len(scores),
            seconds=time.perf_counter() - started,
            stop_reasons={reason: total for reason, total in stops.items() if total},
            spent=made.spent,
        )
        reports.append(report)
        outcomes += made.outcomes
    faults = [one for one in outcomes if one.infrastructure_error is not None]
    for fault in faults:
        say(f"{fault.task_id} could not be evaluated: {fault.infrastructure_error}")
    if to.output is not None:
        from memory.run import write_jsonl

        to.output.parent.mkdir(parents=True, exist_ok=True)
        published = written(outcomes, selected.benchmark)
        write_jsonl(to.output, published)
        if settings.served is not None:
            from evaluation.endpoint import write_card

            write_card(to.output, settings, selected, reports[0], published)
    if faults and len(faults) == len(outcomes):
        cause = faults[-1].infrastructure_error
        raise EnvironmentFault(f"none of {len(outcomes)} attempts could be evaluated, and there is no score: {cause}")
    if to.as_json:
        for report in reports:
            print(report.model_dump_json())
    elif settings.controls:
        print_rows(reports)
    else:
        print_report(reports[0], score_strata(outcomes, metrics))


def _attempted(settings: ScoringSettings, selected: Selected, to: Destination) -> Attempts:
    """Attempt what was selected with the model, baseline or endpoint that the settings name."""
    from evaluation.attempts import Attempts, evaluate
    from evaluation.baselines import NO_MODEL, control, play

    budget = selected.benchmark.limits
    max_actions = settings.max_actions or budget.actions
    opened = selected.environment(max_actions)

    def report_progress(done: int, successes: int) -> None:
        if to.progress:
            print(
                json.dumps({"evaluated": done, "of": len(selected.items) * settings.samples, "successes": successes}),
                flush=True,
            )

    if settings.model in CONTROLS:
        driver, description = control(settings.model, settings.train, selected.items, opened)
        outcomes = play(selected.items, opened, driver, max_actions, settings.model)
        return Attempts(outcomes, NO_MODEL, "one attempt a task, no model", description)
    if settings.served is not None:
        from evaluation.endpoint import evaluate_served

        return evaluate_served(settings, selected, opened, to.output, to.resume, report_progress)
    return evaluate(selected.items, opened, settings, budget, report_progress)


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
