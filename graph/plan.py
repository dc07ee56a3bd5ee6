"""`coevolve plan`: says what a run, or each arm of a study, needs: memory, hours, and tokens and money of roles."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from environments.base import InputError
from environments.checkout import QUICKSTART
from environments.command import OneSentence, Overrides, exit_statuses, printable
from evaluation.power import assumed_outcomes, simulated_difference
from evaluation.study.recipe import FIRST_SEED, SEED, StudyRecipe, read_study
from graph.fit import Forecast, RecipePlan, config_here, config_of, in_gib, plan_of, refusal
from graph.settings import RunSettings, load_recipe
from memory.jsonl import read_recipe
from training.device_memory import device_at_hand, memory_at_hand
from training.plan import GIB

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TABLE_WIDTH = 68

COSTS = {
    "rollouts": ("rollouts", 1, 0),
    "GPU hours": ("gpu_hours", 1, 1),
    "hours": ("hours", 1, 1),
    "requests": ("requests", 1, 0),
    "M tokens in": ("prompt_tokens", 1e6, 1),
    "M out": ("completion_tokens", 1e6, 1),
    "roles' money": ("roles_money", 1, 2),
}
"""Columns of a study's arms: the cost, its unit, and digits."""


@app.command(cls=OneSentence)
def main(
    recipe: Annotated[
        Path | None, typer.Argument(help="recipe of a run or of a study; recipes/quickstart.yaml if none")
    ] = None,
    arms: Annotated[str | None, typer.Option(help="of a study: names, separated by commas; all if not given")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="of a study: of each arm; the recipe's if none")] = None,
    overrides: Overrides = None,
    config: Annotated[
        Path | None,
        typer.Option(help="config.json of the recipe's policy, for one on the hub that is not in the cache"),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option(help="to plan for; the recipe's, auto: what this machine has")
    ] = None,
    memory: Annotated[float | None, typer.Option(min=0.01, help="GiB of each device; this machine's if none")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one line of JSON")] = False,
) -> None:
    """Say what a recipe needs: memory of each device, hours, tokens, and requests and money of chat roles.

    Only the policy's config.json is read. Memory is counted at the highest point of a step, with every rollout at its
    token limit. Machine and rates are those of section plan of the recipe, or of a file with --set @FILE. Scoring on
    evaluation sets is not counted. Of a study each arm has a row, and the smallest difference that its tasks and seeds
    can show is said.

    Exit status: 0; 2 with one sentence for a recipe that does not fit into the memory, or another mistake.
    """
    with exit_statuses():
        path, changes = recipe or QUICKSTART, list(overrides or [])
        study = read_study(path)[0] if "base" in read_recipe(path) else None
        if study is None and (arms is not None or seeds is not None):
            raise InputError(f"{path} is not a study: --arms and --seeds choose of one, remove them")
        chosen = {"": (load_recipe(path, changes), 1, True)} if study is None else _arms(path, study, arms, changes)
        first = next(iter(chosen.values()))[0]
        made: dict[str, RecipePlan] = {}
        for name, (settings, own, trains) in chosen.items():
            read = None
            if study is None:
                read = config_of(settings, config)
            elif trains:  # the others are scored alone, also behind an endpoint
                read = config_here(settings, config if settings.policy.path == first.policy.path else None)
            stated = memory if memory is not None else settings.plan.gib
            on = device or ("cuda" if settings.plan.gib is not None else device_at_hand(settings.policy.device))
            available = round(stated * GIB) if stated is not None else memory_at_hand(on)
            one = plan_of(settings, read, device=on, available=available)
            several = {"seeds": (seeds or own) if trains else 1, "forecast": one.forecast if trains else None}
            made[name] = one.model_copy(update=several)
        power = [] if study is None else _power(study, made, first)
        if as_json:
            shown = {name: one.model_dump(mode="json") for name, one in made.items()}
            print(json.dumps(shown if study is not None else shown[""]), flush=True)
        else:
            _print(made, power)
        for name, one in made.items():
            if one.fits is False:
                raise InputError(refusal(one, f"{path}, arm {name}" if name else str(path)))


def _arms(
    path: Path, study: StudyRecipe, arms: str | None, changes: list[str]
) -> dict[str, tuple[RunSettings, int, bool]]:
    names = [name.strip() for name in arms.split(",")] if arms is not None else [arm.name for arm in study.arms]
    found = {}
    for arm in map(study.arm, names):
        # In this order, as the study puts them: an arm's section replaces keys that the study stated inside it.
        both = [*study.settings.items(), *arm.overrides.items()]
        stated = [f"{key}={json.dumps(value)}" for key, value in both]
        try:
            settings = load_recipe(study.base, [*stated, *changes])
            first = settings.policy.path.replace(SEED, str(FIRST_SEED["dev"]))  # those of the other seeds are as large
            settings = settings.model_copy(update={"policy": settings.policy.model_copy(update={"path": first})})
        except InputError as error:
            raise InputError(f"{path}, arm {arm.name}: {error}") from None
        found[arm.name] = settings, arm.seeds, not arm.untrained
    return found


def _power(study: StudyRecipe, plans: Mapping[str, RecipePlan], settings: RunSettings) -> list[str]:
    """Return what the study can show on each of its held-out sets, in words.

    Nothing where no two arms are trained, or discordance is unknown.
    """
    seeds = [one.seeds for one in plans.values() if one.forecast is not None]
    differ, cluster = settings.plan.discordance, settings.plan.cluster
    if differ is None or len(seeds) < 2:
        return []
    found = []
    for name in study.sets.test:
        try:
            tasks = settings.environment.benchmark.evaluation_set(name).tasks
        except InputError:  # of a benchmark whose data is not here
            found.append(f"{name}: not installed here, so its number of tasks is not known")
            continue
        tasks = min(tasks, study.scoring.limit or tasks)
        assumed, tests = assumed_outcomes(differ, tasks, cluster), max(1, len(study.hypotheses))
        clusters = len({one.cluster for one in assumed[0]})
        power = simulated_difference([assumed], seeds=min(seeds), clusters=clusters, tests=tests)
        found.append(f"{name}: {power.sentence}")
    return found


def _print(plans: dict[str, RecipePlan], power: Sequence[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    if "" not in plans:
        console.print(_arms_table(plans))
        for one in power:
            console.print(one, markup=False, highlight=False, soft_wrap=True)
        return
    plan = plans[""]
    if plan.elsewhere is not None:
        console.print(f"memory is not counted: {plan.elsewhere} trains the rounds, on machines of its own")
    for table in _memory_tables(plan):
        console.print(table)
    console.print(_cost_table(plan))
    for where in dict.fromkeys(plan.destinations.values()):
        roles = ", ".join(role for role, one in plan.destinations.items() if one == where)
        console.print(f"asked by {roles}: {printable(where)}", markup=False, soft_wrap=True)
    if plan.available is None and plan.elsewhere is None:
        ways = "--memory GIB, or a machine with --set @recipes/machines/FILE,"
        console.print(
            f"no {plan.device} device here: give {ways} to know whether it fits", markup=False, soft_wrap=True
        )


def _memory_tables(plan: RecipePlan) -> Iterator[Table]:
    if (memory := plan.memory) is None:
        return
    for need in memory.devices:
        count = f"{need.count} x " if need.count > 1 else ""
        table = Table(title=f"{printable(plan.policy)}, {count}{need.name} on {plan.device}", min_width=TABLE_WIDTH)
        table.add_column("memory")
        table.add_column("GiB", justify="right")
        for phase, parts in (("", need.held), ("  sampling: ", need.sampling), ("  update: ", need.update)):
            for name, size in parts.items():
                table.add_row(f"{phase}{name}", in_gib(size))
        table.add_row("highest", in_gib(need.peak))
        if plan.gpus is not None and plan.fullest > max(one.peak for one in memory.devices):
            table.add_row("with what shares its GPU", in_gib(plan.fullest))
        if plan.available is not None:
            table.add_row("available", in_gib(plan.available))
        table.caption = f"{memory.parameters:,} parameters, {memory.trained:,} trained; scoring is not counted"
        yield table


def _cost_table(plan: RecipePlan) -> Table:
    found = plan.forecast
    assert found is not None
    table = Table(title="the whole run", show_header=False, min_width=TABLE_WIDTH)
    table.add_row("rollouts", f"{found.rollouts:,}")
    table.add_row("sampled tokens", _amount(found.sampled_tokens, True))
    unknown = "not known: set plan.gpu_seconds"
    table.add_row("hours", unknown if found.hours is None else _amount(found.hours, False, 2))
    if found.gpu_hours is not None:
        table.add_row("GPU hours", _amount(found.gpu_hours, False, 1))
        table.add_row("  by GPU seconds of a rollout (plan.gpu_seconds)", f"{plan.gpu_seconds:g}")
    table.add_row("requests of chat roles", _amount(found.requests, bool(found.requests)))
    if found.requests:
        table.add_row("their prompt tokens", _amount(found.prompt_tokens, True))
        table.add_row("their completion tokens", _amount(found.completion_tokens, True))
        table.add_row("their money", _amount(found.roles_money, True, 2))
    return table


def _amount(value: float | None, most: bool, digits: int = 0) -> str:
    return "not known" if value is None else f"{'at most ' if most else ''}{value:,.{digits}f}"


def _arms_table(plans: dict[str, RecipePlan]) -> Table:
    """Return a row for one seed of each arm, and the sum over all seeds: what a GPU must hold, and the costs."""
    table = Table(title="one seed of each arm", caption="an arm without a number is scored, not trained")
    table.add_column("arm", no_wrap=True)
    table.add_column("policy", no_wrap=True, overflow="ellipsis")
    for name in ("seeds", "GiB", *COSTS):
        table.add_column(name, justify="right")

    def costs(found: list[tuple[Forecast, int]]) -> Iterator[str]:
        for name, unit, digits in COSTS.values():
            read = [(getattr(one, name), seeds) for one, seeds in found]
            unknown = any(one is None for one, _ in read)
            yield "not known" if unknown else f"{sum(one * seeds for one, seeds in read) / unit:,.{digits}f}"

    trained = {name: (one.forecast, one.seeds) for name, one in plans.items() if one.forecast is not None}
    for name, plan in plans.items():
        held = "not known" if plan.memory is None else in_gib(plan.fullest)
        own = [held, *costs([(trained[name][0], 1)])] if name in trained else []
        table.add_row(name, printable(plan.policy.rpartition("/")[2]), str(plan.seeds), *own)
    table.add_section()
    table.add_row("all", "", str(sum(one.seeds for one in plans.values())), "", *costs(list(trained.values())))
    return table


if __name__ == "__main__":
    app()
