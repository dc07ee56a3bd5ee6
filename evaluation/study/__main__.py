"""`python -m evaluation.study`: arms of training x seeds, each run, scored and reported on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from environments.base import InputError
from environments.command import FAILURE, OneSentence, exit_statuses

if TYPE_CHECKING:
    from evaluation.study.plan import Plan

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    recipe: Annotated[Path, typer.Argument(help="recipe of the study: recipes/study.yaml")],
    panel: Annotated[
        Literal["dev", "test"],
        typer.Option(help="dev, or test: for a recipe that is committed, and each opening is noted"),
    ] = "dev",
    jobs: Annotated[int | None, typer.Option(min=1, help="arms at once, one thread each; all cores if none")] = None,
    arms: Annotated[str | None, typer.Option(help="names with commas; all if none")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="such as 0,2-4; all of the recipe if none (development counts from 100)")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="run nothing, only report what there is")] = False,
    output: Annotated[Path, typer.Option(help="raw/ARM-SEED.jsonl, summaries, tables and plots")] = Path(
        "results/learning"
    ),
    work: Annotated[Path, typer.Option(help="where runs lie while they run")] = Path("runs/study"),
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="keep the run directories of what is done")] = False,
) -> None:
    """Run what is missing of a study, in the order of its arms, and report on all that there is.

    An arm and seed whose result is there, made by the same recipe, is skipped; one made by another is made again. A
    study that was stopped goes on with the same command, also in the middle of a run.

    Exit status: 0; 2 for a user's mistake; 1 when an arm failed, or arms of a seed did not begin with the same tasks;
    130 on SIGINT and 143 on SIGTERM.
    """
    from environments.checkout import find_recipe
    from evaluation.study.plan import Place, UnequalStart, make_plan

    with exit_statuses(UnequalStart):
        from evaluation.study.recipe import load_study
        from evaluation.study.report import write_report
        from evaluation.study.schedule import check_settings, run_jobs
        from evaluation.test_access import committed

        study = load_study(recipe)
        place = Place(output=output, work=work)
        failures: list[str] = []
        plan = None if report else make_plan(study, panel, place, _names(arms), _numbers(seeds))
        if plan is not None and plan.jobs:
            commit = committed([find_recipe(recipe), find_recipe(study.recipe.base)]) if panel == "test" else None
            check_settings(plan)
            if commit is not None:
                _note_opening(plan, commit)
            failures = run_jobs(plan, jobs or os.cpu_count() or 1, keep_runs)
        print(write_report(study, panel, place))
        for failure in failures:
            print(f"error: {failure}", file=sys.stderr)
        if failures:
            raise typer.Exit(FAILURE)


def _names(arms: str | None) -> tuple[str, ...] | None:
    return None if arms is None else tuple(name.strip() for name in arms.split(",") if name.strip())


def _numbers(seeds: str | None) -> tuple[int, ...] | None:
    """Numbers and ranges, such as 0,2-4. Raises InputError for anything else."""
    if seeds is None:
        return None
    found: list[int] = []
    for part in seeds.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise InputError(f"--seeds {seeds}: write numbers and ranges, for example 0,2-4")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def _note_opening(plan: Plan, commit: str) -> None:
    """A line in the ledger, before anything is scored on the held-out panels."""
    from datetime import UTC, datetime

    from evaluation.test_access import Opening, note_opening

    study, ledger = plan.study, plan.place.openings
    panels = {name: study.panels[name] for name in study.recipe.panels.test}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    opening = Opening(date=date, commit=commit, recipe=study.sha256, panels=panels, seeds=plan.seeds())
    note_opening(ledger, opening)
    print(f"opened {', '.join(panels)}: noted in {ledger}", file=sys.stderr)


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
