"""`coevolve plan`: says what a run, or each arm of a study, needs: memory by device, tokens, requests, hours."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agents.chat.endpoint import destination
from environments.base import InputError, Record
from environments.command import OneSentence, exit_statuses
from environments.terminal import printable
from graph.report.forecast import Forecast, RunRates, forecast, measured_rates
from graph.settings import RunSettings
from memory.jsonl import parse_json, read_whole
from memory.run import RunDirectory
from training.device_memory import device_at_hand, memory_at_hand
from training.grpo.launch import sharding
from training.model_shape import ModelShape, shape_of
from training.plan import GIB, Device, Launch, Memory, memory_of
from training.rollout.policy_path import policy_folder
from training.settings import LoraSettings

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TABLE_WIDTH = 68


class RecipePlan(Record):
    """The plan of a recipe, or of all seeds of an arm.

    ``memory``: None where the policy's config.json is not here. ``available``: bytes of each device, None where not
    known; ``fits`` then too. ``advice``: settings with which it would fit, of those that change least of the training.
    ``forecast``: of one run, None for an arm that is scored and not trained. ``destinations``: the address that each
    chat role asks, with the variable of its key, by role.
    """

    policy: str
    device: Device
    launch: Launch
    memory: Memory | None
    available: int | None
    fits: bool | None
    advice: str | None
    forecast: Forecast | None
    seeds: int = 1
    destinations: dict[str, str] = {}


@app.command(cls=OneSentence)
def main(
    recipe: Annotated[
        Path | None, typer.Argument(help="recipe of a run or of a study; recipes/quickstart.yaml if none")
    ] = None,
    arms: Annotated[str | None, typer.Option(help="of a study: names, separated by commas; all if not given")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="one setting, as in a recipe")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="config.json of the recipe's policy, for one on the hub that is not in the cache"),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option(help="to plan for; the recipe's, auto: what this machine has")
    ] = None,
    memory: Annotated[float | None, typer.Option(min=0.01, help="GiB of each device; this machine's if none")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="of a rollout; training.max_tokens if none")] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(min=1e-6, help="sampled tokens, over all seconds of a round")
    ] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0.0, help="of all devices together")] = None,
    measured: Annotated[Path | None, typer.Option(help="a run whose rounds give rates and lengths")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one line of JSON")] = False,
) -> None:
    """Say what a recipe needs: parameters, memory of each device, tokens, hours, requests and money.

    Only the policy's config.json is read. Memory is counted at the highest point of a step, with every rollout at its
    token limit; docs/scale.md says how close that is to what was measured. Hours need a rate: --tokens-per-second, or
    a run of this recipe on the same machine (--measured RUN). Scoring on evaluation sets is not counted.

    Exit status: 0; 2 with one sentence for a recipe that does not fit into --memory, or another mistake.
    """
    with exit_statuses():
        from graph.recipe import QUICKSTART, load_recipe

        path = recipe or QUICKSTART
        rates = measured_rates(RunDirectory.open(measured)) if measured is not None else RunRates()
        given = {"tokens_per_second": tokens_per_second, "price_per_hour": price_per_hour}
        rates = rates.model_copy(update={key: value for key, value in given.items() if value is not None})

        def planned(settings: RunSettings, read: dict[str, Any] | None) -> RecipePlan:
            on = device or device_at_hand(settings.policy.device)
            available = round(memory * GIB) if memory is not None else memory_at_hand(on)
            return plan_of(settings, read, device=on, available=available, tokens=tokens, rates=rates)

        changes = list(overrides or [])
        study = _study(path, arms, changes) if arms is not None or _is_study(path) else None
        if study is None:
            settings = load_recipe(path, changes)
            made = {"": planned(settings, config_of(settings, config))}
        else:
            named = next(iter(study.values()))[0].policy.path if config is not None else None
            made = {}
            for name, (settings, seeds, trains) in study.items():
                read = None
                if trains:  # the others are scored alone, also behind an endpoint
                    read = _config_here(settings, config if settings.policy.path == named else None)
                one = planned(settings, read)
                made[name] = one.model_copy(update={"seeds": seeds, "forecast": one.forecast if trains else None})
        if as_json:
            shown = {name: one.model_dump(mode="json") for name, one in made.items()}
            print(json.dumps(shown if study is not None else shown[""]), flush=True)
        else:
            _print(made)
        for name, one in made.items():
            if one.fits is False:
                raise InputError(_refusal(one, f"{path}, arm {name}" if name else str(path)))


def plan_of(
    settings: RunSettings,
    config: dict[str, Any] | None,
    *,
    device: Device,
    available: int | None,
    tokens: int | None = None,
    rates: RunRates | None = None,
) -> RecipePlan:
    """Return the plan of a run whose policy has that config.json, on devices of ``available`` bytes each.

    On a machine without a GPU all processes share one memory: their needs are added.
    """
    launch = launch_of(settings)

    def needs(changed: RunSettings, shape: ModelShape) -> Memory:
        policy, training, sampling = changed.policy, changed.training, changed.sampling
        return memory_of(shape, policy, training, device=device, tokens=tokens, launch=launch, sampling=sampling)

    memory = fits = advice = None
    if config is not None:
        shape = _shape(json.dumps(config), settings.policy.lora)
        memory = needs(settings, shape)
        fits = None if available is None else memory.fullest(device) <= available
        if fits is False and available is not None:
            ways = _ways_out(settings, shape, config, launch, device)
            enough = (words for words, changed, of in ways if needs(changed, of).fullest(device) <= available)
            advice = next(enough, None)
    return RecipePlan(
        policy=settings.policy.path,
        device=device,
        launch=launch,
        memory=memory,
        available=available,
        fits=fits,
        advice=advice,
        forecast=forecast(settings, rates or RunRates()),
        destinations={f"roles.{name}": str(destination(role, name)) for name, role in settings.roles.by_chat().items()},
    )


def launch_of(settings: RunSettings) -> Launch:
    """Return the processes that train, of ``training.launch``."""
    stated = settings.training.launch
    if stated is None:
        return Launch()
    return Launch(processes=stated.processes, sharding=sharding(stated) or "ddp")


def config_of(settings: RunSettings, given: Path | None = None) -> dict[str, Any]:
    """Return the policy's config.json; nothing is downloaded.

    Raises InputError for a folder without one, and for a model of the hub that is neither cached nor ``given``.
    """
    found = _config_here(settings, given)
    if found is None:
        raise InputError(
            f"policy.path: {settings.policy.path} is not in the hub's cache, and nothing is downloaded here: give its "
            "config.json with --config FILE"
        )
    return found


def _config_here(settings: RunSettings, given: Path | None) -> dict[str, Any] | None:
    """Return like ``config_of``; None for a model of the hub that is neither cached nor ``given``."""
    path = given
    if path is None:
        named = policy_folder(settings.policy.path)
        path = Path(named) / "config.json"
        if not Path(named).is_dir():
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(named, "config.json")
            if not isinstance(cached, str):
                return None
            path = Path(cached)
    if not path.is_file():
        raise InputError(f"{path} is missing: give the policy's config.json with --config FILE")
    try:
        read = parse_json(read_whole(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise InputError(f"{path} is not a JSON object: give the policy's config.json with --config FILE")
    return read


@functools.cache
def _shape(config: str, lora: LoraSettings | None) -> ModelShape:
    """Return ``shape_of``, once for all arms of a study that train one policy alike: building a model takes seconds."""
    return shape_of(json.loads(config), lora)


def _is_study(path: Path) -> bool:
    from memory.strict_yaml import read_recipe

    return "base" in read_recipe(path)


def _study(path: Path, arms: str | None, changes: list[str]) -> dict[str, tuple[RunSettings, int, bool]]:
    """Return settings and number of seeds of each chosen arm, and whether it is trained."""
    from evaluation.study.recipe import read_study
    from graph.recipe import load_recipe

    study, _ = read_study(path)
    names = [name.strip() for name in arms.split(",")] if arms is not None else [arm.name for arm in study.arms]
    found = {}
    for arm in map(study.arm, names):
        # In this order, as the study puts them: an arm's section replaces keys that the study stated inside it.
        both = [*study.settings.items(), *arm.overrides.items()]
        stated = [f"{key}={json.dumps(value)}" for key, value in both]
        try:
            settings = load_recipe(study.base, [*stated, *changes])
        except InputError as error:
            raise InputError(f"{path}, arm {arm.name}: {error}") from None
        found[arm.name] = settings, arm.seeds, not arm.untrained
    return found


def _ways_out(
    settings: RunSettings, shape: ModelShape, config: dict[str, Any], launch: Launch, device: Device
) -> Iterator[tuple[str, RunSettings, ModelShape]]:
    """Yield settings that need less memory, in words: those that compute the same update first, then an adapter."""
    training = settings.training
    rows = training.tasks_per_step * training.rollouts_per_task // training.updates_per_step // launch.processes
    now = training.micro_batch or rows
    batches = [now, *(size for size in range(now - 1, 0, -1) if rows % size == 0)]

    def tuned(words: str, policy: RunSettings, of: ModelShape) -> Iterator[tuple[str, RunSettings, ModelShape]]:
        for again in dict.fromkeys((training.gradient_checkpointing, True)):
            checkpointing = "training.gradient_checkpointing=true" if again != training.gradient_checkpointing else ""
            for size in batches:
                micro_batch = f"training.micro_batch={size}" if size != now else ""
                changed = training.model_copy(update={"micro_batch": size, "gradient_checkpointing": again})
                told = " ".join(filter(None, (words, checkpointing, micro_batch)))
                yield told, policy.model_copy(update={"training": changed}), of

    apart = settings.sampling.model_copy(update={"engine": "vllm_server"})
    places = [("", settings)]
    if device == "cuda" and settings.sampling.engine == "in_process":
        places.append(("sampling.engine=vllm_server", settings.model_copy(update={"sampling": apart})))
    for words, placed in places:
        yield from tuned(words, placed, shape)
    if settings.policy.lora is None:
        lora: dict[str, object] = {"lora": LoraSettings()}
        adapter = f"policy.lora={{rank: {LoraSettings().rank}}}"
        if device == "cuda" and settings.policy.dtype != "bfloat16":
            lora["dtype"] = "bfloat16"
            adapter += " policy.dtype=bfloat16"
        adapted = shape_of(config, LoraSettings())
        for words, placed in places:
            changed = placed.model_copy(update={"policy": settings.policy.model_copy(update=lora)})
            yield from tuned(f"{adapter} {words}".strip(), changed, adapted)


def _refusal(plan: RecipePlan, recipe: str) -> str:
    assert plan.available is not None
    assert plan.memory is not None
    worst = max(plan.memory.devices, key=lambda need: need.peak * (need.count if plan.device == "cpu" else 1))
    several = f" in {worst.count} processes" if plan.device == "cpu" and worst.count > 1 else ""
    way = f"set {plan.advice}" if plan.advice else "choose a smaller policy or a larger device, or more of them"
    return (
        f"{recipe}: {plan.policy} does not fit: the {worst.name} needs {in_gib(worst.peak)} GiB{several} of "
        f"{in_gib(plan.available)}: {way}"
    )


def in_gib(size: float) -> str:
    """Return bytes as a number of GiB."""
    return f"{size / GIB:.2f}" if size < 10 * GIB else f"{size / GIB:.1f}"


def _print(plans: dict[str, RecipePlan]) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120)
    if "" not in plans:
        console.print(_arms_table(plans))
        return
    plan = plans[""]
    for table in _memory_tables(plan):
        console.print(table)
    console.print(_cost_table(plan))
    for role, where in plan.destinations.items():
        console.print(f"{role} asks {printable(where)}", markup=False, soft_wrap=True)
    if plan.available is None:
        console.print(f"no {plan.device} device here: give --memory GIB to know whether it fits", markup=False)


def _memory_tables(plan: RecipePlan) -> Iterator[Table]:
    from rich.table import Table

    assert plan.memory is not None
    for need in plan.memory.devices:
        count = f"{need.count} x " if need.count > 1 else ""
        table = Table(title=f"{printable(plan.policy)}, {count}{need.name} on {plan.device}", min_width=TABLE_WIDTH)
        table.add_column("memory")
        table.add_column("GiB", justify="right")
        for phase, parts in (("", need.held), ("  sampling: ", need.sampling), ("  update: ", need.update)):
            for name, size in parts.items():
                table.add_row(f"{phase}{name}", in_gib(size))
        table.add_row("highest", in_gib(need.peak))
        if plan.available is not None:
            table.add_row("available", in_gib(plan.available))
        table.caption = f"{plan.memory.parameters:,} parameters, {plan.memory.trained:,} trained"
        yield table


def _cost_table(plan: RecipePlan) -> Table:
    from rich.table import Table

    found = plan.forecast
    assert found is not None
    asks = bool(found.requests)
    table = Table(title="the whole run", show_header=False, min_width=TABLE_WIDTH)
    table.add_row("rollouts", f"{found.rollouts:,}")
    table.add_row("sampled tokens", _amount(found.sampled_tokens, found.bounded))
    hours = "give --tokens-per-second or --measured RUN"
    table.add_row("hours", hours if found.hours is None else _amount(found.hours, found.bounded, 2))
    table.add_row("requests of chat roles", _amount(found.requests, asks))
    table.add_row("their prompt tokens", _amount(found.prompt_tokens, asks))
    table.add_row("their completion tokens", _amount(found.completion_tokens, asks))
    table.add_row("money", _amount(found.money, False, 2))
    return table


def _amount(value: float | None, most: bool, digits: int = 0) -> str:
    return "not known" if value is None else f"{'at most ' if most else ''}{value:,.{digits}f}"


def _arms_table(plans: dict[str, RecipePlan]) -> Table:
    """Return a row for each arm: what a device must hold, and the costs of all its seeds, at most."""
    from rich.table import Table

    table = Table(title="each arm, all its seeds", caption="at most; an arm without a number is scored, not trained")
    for name in ("arm", "policy"):
        table.add_column(name, overflow="fold")
    for name in ("seeds", "GiB", "rollouts", "million tokens", "requests", "hours", "money"):
        table.add_column(name, justify="right")

    def costs(found: list[tuple[Forecast, int]]) -> list[str]:
        def whole(amounts: list[float | None], digits: int) -> str:
            known = [one for one in amounts if one is not None]
            return f"{sum(known):,.{digits}f}" if len(known) == len(amounts) else "not known"

        return [
            f"{sum(one.rollouts * seeds for one, seeds in found):,}",
            whole([one.sampled_tokens * seeds / 1e6 for one, seeds in found], 1),
            f"{sum(one.requests * seeds for one, seeds in found):,}",
            whole([None if one.hours is None else one.hours * seeds for one, seeds in found], 2),
            whole([None if one.money is None else one.money * seeds for one, seeds in found], 2),
        ]

    trained = {name: (one.forecast, one.seeds) for name, one in plans.items() if one.forecast is not None}
    for name, plan in plans.items():
        held = "not known" if plan.memory is None else in_gib(plan.memory.fullest(plan.device))
        own = [held, *costs([trained[name]])] if name in trained else []
        table.add_row(name, printable(plan.policy), str(plan.seeds), *own)
    table.add_section()
    table.add_row("all", "", str(sum(one.seeds for one in plans.values())), "", *costs(list(trained.values())))
    return table


if __name__ == "__main__":
    app()
