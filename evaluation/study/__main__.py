"""`python -m evaluation.study`: run, score and report on arms (variants of training) with several seeds each."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from environments.base import InputError
from environments.checkout import child_variables
from environments.command import FAILURE, OneSentence, exit_statuses, say

if TYPE_CHECKING:
    from evaluation.study.recipe import Mode
    from evaluation.study.schedule import Plan

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    recipe: Annotated[Path, typer.Argument(help="recipe of the study: recipes/study-world.yaml")],
    split: Annotated[
        Literal["dev", "test"] | None,
        typer.Option(
            help="evaluation sets to score on: dev, or test, for a committed recipe only and each access is logged",
            show_default="dev",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="arms in parallel, one thread each; all cores if not given")
    ] = None,
    arms: Annotated[str | None, typer.Option(help="names, separated by commas; all if not given")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="such as 0,2-4; all of the recipe if not given (development counts from 100)")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="one setting of every arm, or of scoring; @FILE: all those of a file"
        ),
    ] = None,
    plan_only: Annotated[
        bool,
        typer.Option("--plan", help="run nothing, say what the arms need: coevolve plan, for these arms and seeds"),
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="run nothing, report on the results that exist")] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="raw/ARM-SEED.jsonl.gz and tables", show_default="results/RECIPE"),
    ] = None,
    work: Annotated[Path, typer.Option(help="folder of the runs in progress")] = Path("runs/study"),
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="keep the directories of finished runs")] = False,
) -> None:
    """Run what is missing of a study, in the order of its arms, and report on all results.

    An arm and seed with a result of the same recipe is skipped; a result of another recipe is replaced. The same
    command continues a study that was stopped, also in the middle of a run. Settings of --set are part of what a result
    is of.

    Exit status: 0; 2 for a user's mistake, or where arms of a seed did not begin with the same tasks; 1 when an arm
    failed; 129 on SIGHUP, 130 on SIGINT and 143 on SIGTERM.
    """
    from memory.jsonl import find_recipe

    with exit_statuses():
        from evaluation.study.report import write_report
        from evaluation.study.schedule import check_settings, make_plan, run_jobs
        from evaluation.study.study import Place, load_study
        from evaluation.test_access import committed

        mode: Mode = split or "dev"
        changes = list(overrides or [])
        if plan_only:
            _plan(recipe, arms, _numbers(seeds), changes)
        study = load_study(recipe, changes)
        place = Place(output=output or Path("results") / recipe.stem, work=work)
        for option, folder in (("--output", place.output), ("--work", place.work)):
            if folder.exists() and not folder.is_dir():
                raise InputError(f"{option} {folder} is a file: name a folder")
        failures: list[str] = []
        names = None if arms is None else tuple(name.strip() for name in arms.split(",") if name.strip())
        plan = None if report else make_plan(study, mode, place, names, _numbers(seeds))
        if plan is not None and plan.jobs:
            files = [find_recipe(one) for one in (recipe, study.recipe.base, *_files(changes, mode))]
            commit = committed(files) if mode == "test" else None
            check_settings(plan)
            if commit is not None:
                _log_access(plan, commit)
            failures = run_jobs(plan, jobs or os.cpu_count() or 1, keep_runs)
        print(write_report(study, mode, place))
        for failure in failures:
            say(f"error: {failure}")
        if failures:
            raise typer.Exit(FAILURE)


def _plan(recipe: Path, arms: str | None, seeds: tuple[int, ...] | None, changes: list[str]) -> NoReturn:
    """Become ``coevolve plan`` for the arms and seeds: one estimator, of the package above this one."""
    given = [*(("--arms", arms) if arms is not None else ()), *(("--seeds", str(len(seeds))) if seeds else ())]
    given += [word for change in changes if not change.startswith("scoring.") for word in ("--set", change)]
    words = [sys.executable, "-m", "graph.plan", str(recipe), *given]
    os.execve(sys.executable, words, {**os.environ, **child_variables()})


def _files(changes: list[str], mode: Mode) -> list[Path]:
    """Return the files that ``--set`` names. Raises InputError for another setting where held-out sets will open."""
    loose = [change for change in changes if not change.startswith("@")]
    if mode == "test" and loose:
        raise InputError(
            f"--set {loose[0]}: held-out sets open for committed files alone: write it into a file, commit that, and "
            "give --set @FILE"
        )
    return [Path(change[1:]) for change in changes if change.startswith("@")]


def _numbers(seeds: str | None) -> tuple[int, ...] | None:
    """Parse numbers and ranges, such as 0,2-4. Raises InputError for anything else."""
    if seeds is None:
        return None
    found: list[int] = []
    for part in seeds.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise InputError(f"--seeds {seeds}: write numbers and ranges, for example 0,2-4")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def _log_access(plan: Plan, commit: str) -> None:
    """Add one line to the test access log, before anything is scored on the held-out sets."""
    from evaluation.test_access import Access, log_access, now

    study, log = plan.study, plan.place.access_log
    sets = {name: study.set_hashes[name] for name in study.recipe.sets.test}
    log_access(log, Access(date=now(), commit=commit, panels=sets, recipe=study.sha256, seeds=plan.seeds()))
    say(f"opened {', '.join(sets)}: logged in {log}")


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
