"""`python -m evaluation.papers`: lists the papers' tables and figures, says what each needs, and runs one."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from environments.base import InputError, Record
from environments.command import MISTAKE, OneSentence, exit_statuses
from environments.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from evaluation.papers.catalogue import Catalogue, PaperItem, Part, Preparation, StudyPlan
    from evaluation.papers.estimate import Estimate, Rates
    from evaluation.papers.machine import Machine

Split = Literal["dev", "test"]
DAY = 24 * 3600.0
_POLICY = re.compile(r"\{policy:([a-z0-9-]+)\}")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Folders(Record):
    """Where the results of studies and their runs are; each study has a folder of its recipe's name in both."""

    results: Path
    work: Path

    def of(self, recipe: Path) -> tuple[Path, Path]:
        """Return the folders of a study's results and of its runs."""
        return self.results / recipe.stem, self.work / recipe.stem


class PartReport(Record):
    """One part of a table: its command, what it takes, and one sentence for each thing that this machine lacks."""

    name: str
    command: str
    estimate: Any = None
    refusals: tuple[str, ...] = ()


class ItemReport(Record):
    """One table or figure."""

    id: str
    title: str
    kind: str
    note: str
    parts: tuple[PartReport, ...]


@app.command(cls=OneSentence)
def main(
    name: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="such as T3, F5 or SEAL-T1; all if none")
    ] = None,
    part: Annotated[str | None, typer.Option(help="this part of it alone, such as a benchmark's")] = None,
    run: Annotated[bool, typer.Option("--run", help="run it, after the checks that are shown without this")] = False,
    split: Annotated[Split, typer.Option(help="evaluation sets to score on, as for coevolve study")] = "dev",
    jobs: Annotated[int, typer.Option(min=1, help="arms of a study in parallel, which share the GPUs")] = 1,
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results/papers"),
    work: Annotated[Path, typer.Option(help="folder of the runs")] = Path("runs/papers"),
    gpu_seconds: Annotated[
        float | None, typer.Option(min=1e-9, help="measured GPU-seconds of one rollout, in place of the recorded rate")
    ] = None,
    billions: Annotated[
        float | None, typer.Option(min=1e-9, help="parameters, in billions, of the model that it was measured with")
    ] = None,
    prompt_tokens: Annotated[float | None, typer.Option(min=0, help="measured prompt tokens of a request")] = None,
    completion_tokens: Annotated[float | None, typer.Option(min=0, help="measured tokens of a reply")] = None,
    price_gpu_hour: Annotated[float | None, typer.Option(min=0, help="price of a GPU for an hour")] = None,
    price_prompt: Annotated[float | None, typer.Option(min=0, help="price of a million prompt tokens")] = None,
    price_completion: Annotated[float | None, typer.Option(min=0, help="price of a million completion tokens")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")] = False,
) -> None:
    """List every table and figure of both papers: what makes it, what that takes, and whether it can run here.

    With a table's name, show its parts with their commands. Hours, tokens and money are estimates: counts of the recipe
    times rates, recorded ones (their sources are shown) or those that you measured.

    Exit status: 0; 2 for a user's mistake and where this machine cannot run what --run asks for; else that of the
    commands it runs.
    """
    from memory.processes import ChildFailure

    with exit_statuses(ChildFailure):
        from evaluation.papers.catalogue import load_catalogue
        from evaluation.papers.estimate import Rates

        if gpu_seconds is None and billions is not None:
            raise InputError("--billions says which model --gpu-seconds was measured with: give both")
        catalogue = load_catalogue()
        changes: dict[str, Any] = {
            "billions": billions,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "price_gpu_hour": price_gpu_hour,
            "price_prompt": price_prompt,
            "price_completion": price_completion,
        }
        if gpu_seconds is not None:
            changes["gpu_seconds_per_rollout"] = dict.fromkeys(catalogue.rates.gpu_seconds_per_rollout, gpu_seconds)
        rates = Rates.recorded(catalogue.rates, **{key: one for key, one in changes.items() if one is not None})
        items = catalogue.items if name is None else (_one(catalogue.item(name), part),)
        if name is None and (run or part is not None):
            raise InputError(f"--{'run' if run else 'part'} goes with the name of a table: choose one of the list")
        papers = _Papers(catalogue, rates, Folders(results=results, work=work), split)
        if run:
            raise typer.Exit(papers.run(items[0], jobs))
        reports = [papers.report(one) for one in items]
        if as_json:
            import json

            print(json.dumps([one.model_dump(mode="json") for one in reports]))
        elif name is None:
            _print_list(reports)
        else:
            _print_item(reports[0], catalogue, rates)


def _one(item: PaperItem, part: str | None) -> PaperItem:
    """Return the item with the named part alone. Raises InputError where it has none of that name."""
    if part is None:
        return item
    chosen = tuple(one for one in item.parts if one.name == part)
    if not chosen:
        known = ", ".join(one.name for one in item.parts) or "none"
        raise InputError(f"--part {part}: {item.id} has no such part: its parts are {known}")
    return item.model_copy(update={"parts": chosen})


class _Papers:
    """The catalogue on this machine, for one split."""

    def __init__(self, catalogue: Catalogue, rates: Rates, folders: Folders, split: Split) -> None:
        from evaluation.study.recipe import FIRST_SEED

        self._first_seed = FIRST_SEED[split]
        self._catalogue = catalogue
        self._rates = rates
        self._folders = folders
        self._split: Split = split
        self._machine: Machine | None = None
        self._plans: dict[Path, StudyPlan] = {}

    def report(self, item: PaperItem) -> ItemReport:
        """Return what an item takes and what this machine lacks for it."""
        parts = tuple(
            PartReport(
                name=part.name,
                command=" && ".join(_shown(argv) for argv in self._commands(item, part, jobs=1, missing_is_shown=True)),
                estimate=self._estimate(part),
                refusals=self.refusals(item, part),
            )
            for part in item.parts
        )
        return ItemReport(id=item.id, title=item.title, kind=item.kind, note=item.note, parts=parts)

    def refusals(self, item: PaperItem, part: Part) -> tuple[str, ...]:
        """Return one sentence for each thing that a part lacks on this machine."""
        from evaluation.papers.machine import analysis_refusals, evaluation_refusals, set_size, study_refusals

        def available(environment: str, name: str) -> None:
            set_size(environment, name)

        found: tuple[str, ...] = ()
        if part.recipe is not None:
            plan = self._plan(part.recipe)
            found = study_refusals(plan, plan.sets[self._split], part, self._here(), available)
        if item.kind == "evaluation":
            found = evaluation_refusals(part, self._here(), available)
        if part.of is not None:
            inputs = list(self._inputs(part))
            found += analysis_refusals(inputs, f"coevolve papers {self._maker(part)} --run --split {self._split}")
        return found

    def run(self, item: PaperItem, jobs: int) -> int:
        """Check all parts of an item, then run them in order; return the first exit status that is not 0.

        Raises InputError for an item that cannot be run, and SystemExit with one line for each thing that is missing.
        """
        if not item.parts:
            raise InputError(f"{item.id} is not run: {item.note}")
        refused = [f"{item.id}, {part.name}: {one}" for part in item.parts for one in self.refusals(item, part)]
        if refused:
            for sentence in refused:
                say(f"error: {sentence}")
            raise SystemExit(MISTAKE)
        for part in item.parts:
            for preparation in part.prepare:
                self._prepare(preparation)
            status = _call(self._commands(item, part, jobs)[-1])
            if status:
                return status
        return 0

    def _plan(self, recipe: Path) -> StudyPlan:
        """Return a study's recipe, which is read once."""
        from evaluation.papers.catalogue import load_plan

        if recipe not in self._plans:
            self._plans[recipe] = load_plan(recipe)
        return self._plans[recipe]

    def _here(self) -> Machine:
        if self._machine is None:
            from evaluation.papers.machine import this_machine

            self._machine = this_machine()
        return self._machine

    def _estimate(self, part: Part) -> Estimate | None:
        from evaluation.papers.estimate import estimate

        if part.recipe is None:
            return None
        plan = self._plan(part.recipe)
        try:
            return estimate(plan, plan.sets[self._split], self._tasks, self._rates, part.prepare)
        except InputError:
            return None  # a base recipe or a set that is not there, which the refusals name

    def _tasks(self, environment: str, name: str) -> int:
        from evaluation.papers.machine import set_size

        recorded = self._catalogue.rates.set_sizes.get(environment, {}).get(name)
        return set_size(environment, name) if recorded is None else recorded

    def _prepare(self, one: Preparation) -> None:
        """Make a file of first tasks where it is not there. Raises InputError for the command's status 2."""
        from memory.processes import run_child

        if one.output.exists():
            return
        log = one.output.with_suffix(".log")
        say(f"making {one.output}, see {log}")
        argv = [sys.executable, "-m", "graph.seed_tasks", *_seed_arguments(one)]
        start = log.stat().st_size if log.exists() else 0
        if asyncio.run(run_child(argv, log_path=log, deadline=7 * DAY, accept=(0, MISTAKE))) == MISTAKE:
            said = log.read_bytes()[start:].decode(errors="replace").splitlines()
            problem = next((line for line in reversed(said) if line.startswith("error: ")), f"error: see {log}")
            raise InputError(f"{one.output}: {problem.removeprefix('error: ')}")

    def _commands(self, item: PaperItem, part: Part, jobs: int, missing_is_shown: bool = False) -> list[list[str]]:
        """Return the command lines of a part, those that prepare it first."""
        lines = [["seed", *_seed_arguments(one)] for one in part.prepare]
        if item.kind == "study" and part.recipe is not None:
            output, work = self._folders.of(part.recipe)
            options = ["--split", self._split, "--jobs", str(jobs), "--output", str(output), "--work", str(work)]
            return [*lines, ["study", str(part.recipe), *options, "--keep-runs"]]
        command = "analyse" if item.kind == "analysis" else "evaluate"
        return [*lines, [command, *(self._filled(one, part, missing_is_shown) for one in part.command)]]

    def _filled(self, argument: str, part: Part, missing_is_shown: bool) -> str:
        """Return an argument with its placeholders replaced. Raises InputError for a run without a checkpoint."""
        values = {"{output}": str(self._folders.results), "{seed}": str(self._first_seed)}
        if part.of is not None:
            output, work = self._folders.of(part.of)
            values |= {"{raw}": str(output / "raw"), "{runs}": str(work)}
            if arm := _POLICY.search(argument):
                folder = self._run_of(part, arm[1])
                shown = f"{folder}/policy/checkpoint-LAST"
                values[arm[0]] = shown if missing_is_shown and not folder.exists() else _last_policy(folder)
        for placeholder, value in values.items():
            argument = argument.replace(placeholder, value)
        return argument

    def _inputs(self, part: Part) -> Iterator[Path]:
        """Yield the files and folders of a study that the part's command reads."""
        for argument in part.command:
            if arm := _POLICY.search(argument):
                yield self._run_of(part, arm[1])
            elif argument.startswith(("{raw}", "{runs}")):
                yield Path(self._filled(argument, part, missing_is_shown=True))

    def _run_of(self, part: Part, arm: str) -> Path:
        assert part.of is not None
        return self._folders.of(part.of)[1] / f"{arm}-{self._first_seed}" / "run"

    def _maker(self, part: Part) -> str:
        """Return the item whose study makes what the part reads."""
        made = [(item.id, one) for item in self._catalogue.items for one in item.parts if one.recipe == part.of]
        return f"{made[0][0]} --part {made[0][1].name}" if made else f"for {part.of}"


def _last_policy(folder: Path) -> str:
    from itertools import count

    from memory.run import RunDirectory, read_json
    from training.grpo.record import RoundRecord

    run = RunDirectory.open(folder)
    last = None
    for number in count():
        if not run.iteration(number).round.exists():
            break
        last = read_json(run.iteration(number).round, RoundRecord)
    if last is None:
        raise InputError(f"{folder} has no finished round: finish its study first")
    return str(run.root / last.policy)


def _seed_arguments(one: Preparation) -> list[str]:
    given = ["--recipe", str(one.recipe), "--count", str(one.count), "--output", str(one.output)]
    return [*given, *(argument for override in one.overrides for argument in ("--set", override))]


def _shown(arguments: Sequence[str]) -> str:
    from shlex import join

    return f"coevolve {join(arguments)}"


def _call(arguments: Sequence[str]) -> int:
    """Run one of the commands in this process and return its exit status."""
    from typer.main import get_command

    modules = {"study": "evaluation.study.__main__", "analyse": "evaluation.analyses.__main__"}
    module = modules.get(arguments[0], "evaluation.run")
    say(_shown(arguments))
    command = get_command(import_module(module).app)
    try:
        status = command.main(list(arguments[1:]), prog_name=arguments[0], standalone_mode=False)
    except SystemExit as end:
        status = end.code
    return status if isinstance(status, int) else 0


def _print_list(reports: Sequence[ItemReport]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title="tables and figures of CoEvolve (T, F) and SEAL (SEAL-T, SEAL-F)",
        caption="GPU hours and requests are estimates, ? what cannot be estimated here: coevolve papers TABLE says why",
    )
    for column in ("", "what", "kind", "GPU hours", "requests", "here"):
        right = column in ("GPU hours", "requests")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "what")
    for one in reports:
        estimates = [part.estimate for part in one.parts] if one.kind == "study" else []
        refused = sum(bool(part.refusals) for part in one.parts)
        here = "" if not one.parts else "yes" if not refused else "no" if refused == len(one.parts) else "in part"
        table.add_row(
            one.id,
            one.title,
            one.kind,
            _total([part and part.gpu_hours for part in estimates]),
            _total([part and part.requests for part in estimates]),
            here,
        )
    Console().print(table)


def _total(values: Sequence[float | None]) -> str:
    if not values:
        return ""
    known = [value for value in values if value is not None]
    more = " + ?" if len(known) < len(values) else ""
    return f"{sum(known):,.0f}{more}" if known else "?"


def _print_item(report: ItemReport, catalogue: Catalogue, rates: Rates) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{report.id}: {report.title} ({report.kind})", markup=False)
    if report.note:
        console.print(report.note, markup=False)
    for part in report.parts:
        console.print(f"\n{part.name}: {part.command}", markup=False)
        if part.estimate is not None:
            for line in _estimate_lines(part.estimate):
                console.print(f"  {line}", markup=False)
        for sentence in part.refusals:
            console.print(f"  cannot run here: {sentence}", markup=False)
        if not part.refusals:
            console.print("  can run here: add --run", markup=False)
    if any(part.estimate is not None for part in report.parts):
        _print_sources(console, catalogue, rates)


def _estimate_lines(found: Estimate) -> Iterator[str]:
    yield f"{found.runs} runs, {found.rollouts:,} rollouts, {found.attempts:,} attempts at evaluation tasks"
    if found.gpu_hours is None:
        yield "GPU hours: unknown, no rate was recorded for this environment or model: give --gpu-seconds"
    elif found.gpu_hours:
        memory = "" if found.gpu_gib is None else f", at least {found.gpu_gib:,.0f} GiB of GPU memory in all"
        yield f"about {found.gpu_hours:,.0f} GPU hours{memory}"
    if found.requests:
        yield (
            f"about {found.requests:,} requests to chat models, {found.prompt_tokens / 1e6:,.0f} + "
            f"{found.completion_tokens / 1e6:,.0f} million tokens (an upper bound: explorers may stop earlier)"
        )
    if found.money is None:
        yield "money: unknown, give --price-gpu-hour, --price-prompt and --price-completion"
    else:
        yield f"about {found.money:,.0f} of the prices' currency"


def _print_sources(console: Console, catalogue: Catalogue, rates: Rates) -> None:
    from evaluation.papers.estimate import FORMULAS

    console.print("\nEstimates:")
    for name, formula in FORMULAS.items():
        console.print(f"  {name}: {formula}", markup=False)
    for name, source in catalogue.rates.sources.items():
        value = getattr(rates, name)
        shown = ", ".join(f"{key} {one:g}" for key, one in value.items()) if isinstance(value, dict) else f"{value:g}"
        own = value != getattr(catalogue.rates, name)
        console.print(f"  {name} {shown}: {'as you gave it' if own else source}", markup=False)


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
