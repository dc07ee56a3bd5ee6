"""`python -m graph.run_iteration`: evolves an agent and its tasks, iteration after iteration."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from environments.base import InputError
from environments.checkout import QUICKSTART
from environments.command import (
    NOTHING,
    OneSentence,
    Overrides,
    check_output,
    exit_on_signals,
    exit_statuses,
    run_interruptible,
    say,
)
from environments.trust import TRUST_VARIABLE, with_entry

if TYPE_CHECKING:
    from graph.report.summary import Summary
    from graph.run.stages import Run
    from graph.settings import RunSettings

SERVER_RECIPE = QUICKSTART.with_name("mcp.yaml")

HELD_OUT = 20
"""Held-out tasks that are made on a server (ours)."""

LEARNT = 1280
"""References that the first policy on a server learns from, repeated ones counted (ours)."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    recipe: Annotated[Path | None, typer.Option(help="YAML file of settings; recipes/quickstart.yaml if none")] = None,
    mcp: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="an MCP server to evolve on; instead of --recipe")
    ] = None,
    run: Annotated[Path, typer.Option(help="run directory")] = Path("runs/quickstart"),
    iterations: Annotated[int | None, typer.Option(min=1, help="iterations of the run in total")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with a run that was stopped, or extend one")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="every random draw derives from it")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one line of JSON an iteration on stdout")] = False,
    overrides: Overrides = None,
) -> None:
    """Evolve an agent and its tasks: training, then a graph that turns its weaknesses into new, verified tasks.

    --iterations is the run's total, so a finished run goes on with --resume and a larger one. A run keeps its
    settings: with --resume, other options may repeat them but not change them, except that a budget of the chat roles
    (roles.budget.tokens, .calls, .money) may be raised, and that training.launch and training.report_to may be
    others. When a budget is spent the run stops after that iteration and says so; --resume stops at once while it is
    still spent. Progress goes to stderr, and at the end one line per iteration of this command to stdout.

    With --mcp the server is looked at, tasks are made on it and a policy is warmed up before the run begins, by
    recipes/mcp.yaml; the first page says what was found and what was made. Tasks are worded by a chat model where one
    is configured, else by rules; the page says by which, and why.

    Exit status: 0 when an iteration ended in which a rollout succeeded or a task was admitted. 4 when none did. 2 for a
    user's mistake. 1 when a round of training, an evaluation, a role or the environment failed. 129 on SIGHUP, 130 on
    SIGINT, 143 on SIGTERM. The state is kept.
    """
    exit_on_signals()
    given = list(overrides or [])
    given += [f"seed={seed}"] if seed is not None else []
    stdout = sys.stdout
    from agents.spending import RepeatedFailure
    from memory.processes import ChildFailure, watch_parent

    with exit_statuses(ChildFailure, RepeatedFailure):
        watch_parent()
        with redirect_stdout(sys.stderr):  # keeps the simulators' prints out of stdout
            if mcp is not None:
                if recipe is not None or resume:
                    raise InputError("--mcp begins a run of its own: leave --recipe and --resume out")
                begin(mcp, run, given, lambda line: print(line, file=sys.stderr if as_json else stdout, flush=True))
                given, resume = [], True
            work = open_run(run, recipe, given, iterations, resume)
            before, summaries = _evolve(work, stdout if as_json else None)
        if summaries and not as_json:
            from graph.report.closing import closing

            print(closing(work.directory, work.settings, summaries, before), end="", file=stdout, flush=True)
        if all(summary.made_nothing for summary in summaries):
            raise typer.Exit(NOTHING)


def begin(command: str, run: Path, given: Sequence[str], tell: Callable[[str], None]) -> None:
    """Make ``run`` on an MCP server, with tasks, and beside it, in ``RUN-start``, held-out tasks and a first policy.

    The command is the user's own, on the command line, so that it is trusted for this process and its children.
    ``given`` are settings on top of recipes/mcp.yaml. ``tell`` is given the lines of a page: the tools, what was found
    about the server, who words tasks, and what was made. Raises InputError, before anything is written where it is a
    setting, the model of a role, the command or the place.
    """
    from environments.registry import benchmark_of
    from graph.check_environment import findings, line
    from graph.check_recipe import check_roles
    from graph.default_roles import default_roles
    from graph.seed_tasks import seed_file
    from graph.settings import load_recipe
    from memory.run import RunDirectory
    from training.embedded.new_policy import EMBEDDED
    from training.start_rows import StartSettings
    from training.warm_start import warm_start

    start = run.with_name(f"{run.name}-start")
    policy = start / "initial"
    for place in (run, start):
        check_output("--run", place, "folder")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--mcp {command}: {error}: write the command as in a shell") from None
    stated = [f"environment.options.command={json.dumps(words)}", f"policy.path={json.dumps(str(policy))}"]
    roles = default_roles(given)
    given = [*given, *roles.overrides]
    settings = load_recipe(SERVER_RECIPE, [*stated, *given])
    if (program := settings.environment.program) is not None:
        os.environ[TRUST_VARIABLE] = with_entry(program.entry)
    environment = settings.environment.open()
    check_roles(settings, environment)
    for note in benchmark_of(environment).notes(environment):
        tell(note)
    for found in findings(environment):
        tell(line(found, "note "))
    tell(f"roles      {roles.words}")
    start.mkdir(parents=True)
    held_out = start / "held-out.jsonl"
    other = [f"seed={settings.seed + 1}", f"tasks.initial_count={HELD_OUT}"]
    seed_file(SERVER_RECIPE, [*stated, *given, *other], None, held_out)
    tasks = seed_file(SERVER_RECIPE, [*stated, f"evaluation.tasks={json.dumps(str(held_out))}", *given], run, None)
    learning = StartSettings(passes=math.ceil(LEARNT / len(tasks)), seed=settings.seed)
    named, options = settings.environment.name, settings.environment.options
    record = warm_start(EMBEDDED, [RunDirectory(run).tasks_path], policy, learning, named, options=options)
    tell(f"tasks      {len(tasks)} verified in {run}, {HELD_OUT} held out in {held_out}")
    tell(f"policy     {policy}, {record.parameters:,} parameters, warmed up on these tasks' references")


def open_run(root: Path, recipe: Path | None, given: list[str], iterations: int | None, resume: bool) -> Run:
    """Return the run at ``root``, new or resumed.

    ``given`` are overrides; ``iterations`` is the requested total, None to keep the recipe's or the run's. Raises
    InputError for an existing run without ``resume`` and the other way round, for options that contradict its
    settings, for an edited settings.yaml, and for needs of its settings that this machine lacks before the first round
    is finished.
    """
    from graph.check_recipe import check_run
    from graph.run.stages import Run
    from graph.settings import load_recipe, with_known_dtype
    from graph.tracking import check_trackers
    from memory.run import RunDirectory, first_change

    if iterations is not None:
        given = [*given, f"iterations={iterations}"]
    if not resume:
        settings = load_recipe(recipe or QUICKSTART, given)
        check_run(settings)
        say_dtype(settings)
        settings = with_known_dtype(settings)
        return Run(RunDirectory.create(root, settings), settings, resumed=False)
    if not RunDirectory(root).settings_path.is_file():
        raise InputError(f"{root} is not a run, there is nothing to resume: name another --run or leave --resume out")
    directory = RunDirectory.open(root)
    kept = load_recipe(directory.settings_path)
    directory.check_settings()
    asked = load_recipe(recipe or directory.settings_path, given)
    if asked.policy.dtype == "auto":  # the run has decided it, perhaps on another machine
        asked = with_known_dtype(asked, kept.policy.dtype)
    total = {"iterations": asked.iterations if iterations is not None else max(kept.iterations, asked.iterations)}
    settings = asked.model_copy(update=total)
    changed = first_change(kept.model_copy(update=total).model_dump(), settings.model_dump(), resumed=True)
    if changed is not None:
        raise InputError(
            f"{root}: '{changed[0]}' differs from the run's settings.yaml: leave it out or start a new run"
        )
    if not directory.iteration(0).round.exists():
        check_run(settings)
    check_trackers(settings.training.report_to)
    say_dtype(kept)
    return Run(directory, settings, resumed=True)


def say_dtype(settings: RunSettings) -> None:
    """Say the type of matrix products where this machine decides it, or is slow with it."""
    from training.device_memory import dtype_sentence

    if sentence := dtype_sentence(settings.policy.dtype, settings.policy.device):
        say(sentence)


def _evolve(run: Run, lines: TextIO | None) -> tuple[int, list[Summary]]:
    """Do the rest of the run, and return how many iterations were done before, and the summaries of all.

    A line of JSON per iteration is printed to ``lines`` where it is given.
    """
    from graph.run.stages import iterate
    from graph.settings import load_recipe
    from graph.tracking import follow_run

    directory, settings = run.directory, run.settings

    async def collect() -> list[Summary]:
        summaries = []
        async for summary in iterate(run):
            summaries.append(summary)
            if summary.iteration >= before:
                send(summary.iteration)
            if lines is not None:
                print(summary.model_dump_json(), file=lines, flush=True)
        return summaries

    with directory.lock():
        before = sum(directory.iteration(number).summary.exists() for number in range(settings.iterations))
        kept = load_recipe(directory.settings_path)
        longest = settings.model_copy(update={"iterations": max(kept.iterations, settings.iterations)})
        if longest != kept:
            directory.save_settings(longest)
        with follow_run(directory, settings, say) as send:
            then = f", the state of {directory.root} is kept: continue with --resume"
            return before, run_interruptible(collect(), then)


if __name__ == "__main__":
    app()
