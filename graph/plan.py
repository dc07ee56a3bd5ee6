"""`python -m graph.plan`: says what a recipe needs, memory by device and hours, before anything is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agents.chat.endpoint import destination
from environments.base import InputError, Record
from environments.command import OneSentence, exit_statuses
from environments.terminal import printable
from graph.report.forecast import NO_RATES, Forecast, RunRates, forecast, measured_rates
from graph.settings import RunSettings
from memory.jsonl import parse_json, read_whole
from memory.run import RunDirectory
from training.device_memory import device_at_hand, memory_at_hand
from training.grpo.launch import sharding as sharding_of
from training.model_shape import ModelShape, shape_of
from training.plan import (
    GIB,
    IN_PROCESS,
    KV_CACHE,
    ONE_PROCESS,
    RUN,
    DeviceNeed,
    Engine,
    EngineKind,
    Launch,
    Memory,
    Sharding,
    kv_bytes,
    memory_of,
)
from training.rollout.policy_path import policy_folder
from training.settings import LoraSettings

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

MOST_PROCESSES = 1024
TABLE_WIDTH = 68
MOST_ADVICE = 3  # ways out that are named
_SHARDINGS: dict[str | None, Sharding] = {None: "ddp", "fsdp": "fsdp"}
PROCESSES = (2, 4, 8, 16, 32, 64)  # that are tried where one does not do


class RecipePlan(Record):
    """The plan of a recipe. ``available``: bytes of each device, None where not known; ``fits`` then too.

    ``destinations``: the address that each chat role asks, with the variable of its key, by role.
    """

    policy: str
    device: Literal["cpu", "cuda"]
    launch: Launch
    engine: Engine
    memory: Memory
    available: int | None
    fits: bool | None
    advice: tuple[str, ...]
    forecast: Forecast
    destinations: dict[str, str] = {}


@app.command(cls=OneSentence)
def main(
    recipe: Annotated[Path | None, typer.Option(help="YAML file of settings; recipes/quickstart.yaml if none")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="one setting, as in a recipe")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="config.json of the policy, for one on the hub that is not in the cache")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option(help="to plan for; the recipe's, auto: what this machine has")
    ] = None,
    memory: Annotated[float | None, typer.Option(min=0.01, help="GiB of each device; this machine's if none")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=MOST_PROCESSES, help="that train, a device each; the recipe's if none")
    ] = None,
    sharding: Annotated[Sharding | None, typer.Option(help="of several processes; the recipe's, else ddp")] = None,
    engine: Annotated[EngineKind | None, typer.Option(help="the sampler; the recipe's if none")] = None,
    servers: Annotated[int | None, typer.Option(min=1, help="vLLM servers; the recipe's if none, else 1")] = None,
    devices_each: Annotated[int, typer.Option(min=1, help="devices of one vLLM server (tensor parallel)")] = 1,
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
    a run of this recipe on the same machine (--measured RUN).

    Exit status: 0; 2 with one sentence for a recipe that does not fit into --memory, or another mistake.
    """
    with exit_statuses():
        from graph.recipe import QUICKSTART, load_recipe

        settings = load_recipe(recipe or QUICKSTART, list(overrides or []))
        rates = measured_rates(RunDirectory.open(measured)) if measured is not None else RunRates()
        given = {"tokens_per_second": tokens_per_second, "price_per_hour": price_per_hour}
        rates = rates.model_copy(update={key: value for key, value in given.items() if value is not None})
        on = device or device_at_hand(settings.policy.device)
        made = plan_of(
            settings,
            read_config(settings, config),
            device=on,
            available=round(memory * GIB) if memory is not None else memory_at_hand(on),
            launch=launch_of(settings, processes, sharding),
            engine=engine_of(settings, engine, servers, devices_each),
            tokens=tokens,
            rates=rates,
        )
        if as_json:
            print(made.model_dump_json(), flush=True)
        else:
            _print(made)
        if made.fits is False:
            raise InputError(_refusal(made, str(recipe or QUICKSTART)))


def launch_of(settings: RunSettings, processes: int | None = None, sharding: Sharding | None = None) -> Launch:
    """Return the processes that the options name, else those of ``training.launch``."""
    stated = settings.training.launch
    if stated is None or processes == 1:
        count, divided = processes or 1, None
    else:
        count, divided = processes or stated.processes, _SHARDINGS[sharding_of(stated)]
    return Launch(processes=count, sharding=sharding or divided or ("ddp" if count > 1 else "none"))


def engine_of(
    settings: RunSettings, kind: EngineKind | None = None, servers: int | None = None, devices_each: int = 1
) -> Engine:
    """Return the sampler that the options name, else that of the section ``sampling``."""
    sampling = settings.sampling
    stated = len(sampling.servers) or 1
    return Engine(kind=kind or sampling.engine, servers=servers or stated, devices_each=devices_each)


def plan_of(
    settings: RunSettings,
    shape: ModelShape,
    *,
    device: Literal["cpu", "cuda"],
    available: int | None,
    launch: Launch = ONE_PROCESS,
    engine: Engine = IN_PROCESS,
    tokens: int | None = None,
    rates: RunRates = NO_RATES,
) -> RecipePlan:
    """Return the plan of a run whose policy has that shape, on devices of ``available`` bytes each (None: unknown).

    On a machine without a GPU all processes share one memory: their needs are added.
    """

    def needs(changed: RunSettings, launched: Launch, sampler: Engine) -> Memory:
        policy, training = changed.policy, changed.training
        return memory_of(shape, policy, training, device=device, tokens=tokens, launch=launched, engine=sampler)

    found = needs(settings, launch, engine)
    fits, advice = None, list[str]()
    if available is not None:
        fits = fitting(found, device, available)
        if not fits:
            advice = _ways_out(settings, launch, engine, device, lambda *how: fitting(needs(*how), device, available))
    if engine.kind != "in_process" and available is not None:
        found = found.model_copy(update={"notes": (*found.notes, *_room(found, settings, shape, tokens, available))})
    return RecipePlan(
        policy=settings.policy.path,
        device=device,
        launch=launch,
        engine=engine,
        memory=found,
        available=available,
        fits=fits,
        advice=tuple(advice),
        forecast=forecast(settings, rates),
        destinations={f"roles.{name}": str(destination(role, name)) for name, role in settings.roles.by_chat().items()},
    )


def fitting(memory: Memory, device: Literal["cpu", "cuda"], available: int) -> bool:
    """Return whether each device has room for its peak; processes on CPU share one memory."""
    return needed(memory, device) <= available


def needed(memory: Memory, device: Literal["cpu", "cuda"]) -> int:
    """Return the bytes that the fullest device must have; on CPU all processes share one, with one run beside them."""
    if device == "cuda":
        return max(need.peak for need in memory.devices)
    return sum(need.peak * need.count - need.held.get(RUN, 0) * (need.count - 1) for need in memory.devices)


def read_config(settings: RunSettings, given: Path | None) -> ModelShape:
    """Return the shape of the policy from its config.json alone. Raises InputError like ``config_of``."""
    return shape_of(config_of(settings, given))


def config_of(settings: RunSettings, given: Path | None) -> dict[str, Any]:
    """Return the policy's config.json; nothing is downloaded.

    Raises InputError for a folder without one, and for a model of the hub that is neither cached nor ``given``.
    """
    path = given
    if path is None:
        named = policy_folder(settings.policy.path)
        if Path(named).is_dir():
            path = Path(named) / "config.json"
        else:
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(named, "config.json")
            if not isinstance(cached, str):
                raise InputError(
                    f"policy.path: {named} is not in the hub's cache, and nothing is downloaded here: give its "
                    "config.json with --config FILE"
                )
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


def _ways_out(
    settings: RunSettings,
    launch: Launch,
    engine: Engine,
    device: str,
    enough: Callable[[RunSettings, Launch, Engine], bool],
) -> list[str]:
    """Return changes that need little enough memory, in words: those that change least of the training first.

    Of settings that need ever less memory, the first that is enough is named, and of numbers of processes the smallest.
    """
    set_ups = [("", launch, engine)]
    if device == "cuda":
        apart = engine.model_copy(update={"kind": "vllm_server"})
        set_ups += [("--engine vllm_server", launch, apart)] if engine.kind == "in_process" else []
        counts = [count for count in PROCESSES if count > launch.processes]
        sharded = [Launch(processes=count, sharding="fsdp") for count in counts]
        set_ups += [
            (f"--processes {one.processes} --sharding fsdp --engine vllm_server", one, apart) for one in sharded
        ]
    policies = [("", settings)]
    if settings.policy.lora is None:
        lora: dict[str, object] = {"lora": LoraSettings()}
        words = f"policy.lora={{rank: {LoraSettings().rank}}}"
        if device == "cuda" and settings.policy.dtype != "bfloat16":
            lora["dtype"] = "bfloat16"
            words += " policy.dtype=bfloat16"
        policy = settings.policy.model_copy(update=lora)
        policies.append((words, settings.model_copy(update={"policy": policy})))
    found: list[str] = []
    for trained, policy_settings in policies:
        fits = False
        for placed, launched, sampler in set_ups:
            if fits and launched.processes > launch.processes:
                continue
            for tuned, changed in _tunings(policy_settings, launched):
                if enough(changed, launched, sampler):
                    found.append(" ".join(filter(None, (trained, tuned, placed))))
                    fits = True
                    break
    return found[:MOST_ADVICE]


def _tunings(settings: RunSettings, launch: Launch) -> Iterator[tuple[str, RunSettings]]:
    """Yield settings of the trainer that need ever less memory and compute the same update, the given ones first."""

    def changed(**training: object) -> RunSettings:
        return settings.model_copy(update={"training": settings.training.model_copy(update=training)})

    yield "", settings
    smaller = _micro_batch(settings, launch)
    for rows in smaller[:-1]:
        yield f"training.micro_batch={rows}", changed(micro_batch=rows)
    if not settings.training.gradient_checkpointing:
        words = "training.gradient_checkpointing=true"
        yield words, changed(gradient_checkpointing=True)
        for rows in smaller:
            yield f"{words} training.micro_batch={rows}", changed(gradient_checkpointing=True, micro_batch=rows)
    for rows in smaller[-1:]:
        yield f"training.micro_batch={rows}", changed(micro_batch=rows)


def _micro_batch(settings: RunSettings, launch: Launch) -> Sequence[int]:
    """Return smaller micro-batches that divide an update's rows, the largest three and 1."""
    training = settings.training
    rows = training.tasks_per_step * training.rollouts_per_task // training.updates_per_step // launch.processes
    now = training.micro_batch or rows
    smaller = [size for size in range(now - 1, 0, -1) if rows % size == 0]
    return list(dict.fromkeys([*smaller[:3], *smaller[-1:]]))


def _room(found: Memory, settings: RunSettings, shape: ModelShape, tokens: int | None, available: int) -> Iterator[str]:
    """Yield how many rollouts an engine holds at once in the memory that it leaves free."""
    need = found.devices[-1]
    width = 2 if settings.policy.dtype == "bfloat16" else 4
    free = available - sum(need.held.values()) - sum(size for name, size in need.sampling.items() if name != KV_CACHE)
    each = kv_bytes(shape, 1, tokens or settings.training.max_tokens, width)
    rows = settings.training.tasks_per_step * settings.training.rollouts_per_task
    yield f"the engine has room for {max(0, free // each)} rollouts at their token limit at once, a step has {rows}"


def _refusal(plan: RecipePlan, recipe: str) -> str:
    assert plan.available is not None
    worst = max(plan.memory.devices, key=lambda need: need.peak * (need.count if plan.device == "cpu" else 1))
    several = f" in {worst.count} processes" if plan.device == "cpu" and worst.count > 1 else ""
    way = "; or ".join(plan.advice) if plan.advice else "choose a smaller policy or a larger device"
    return (
        f"{recipe}: {plan.policy} does not fit: the {worst.name} needs {in_gib(worst.peak)} GiB{several} of "
        f"{in_gib(plan.available)}: {'set ' if plan.advice else ''}{way}"
    )


def in_gib(size: float) -> str:
    """Return bytes as a number of GiB."""
    return f"{size / GIB:.2f}" if size < 10 * GIB else f"{size / GIB:.1f}"


def _print(plan: RecipePlan) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120)
    for need in plan.memory.devices:
        console.print(_memory_table(plan, need))
    console.print(_cost_table(plan.forecast))
    for role, where in plan.destinations.items():
        console.print(f"{role} asks {printable(where)}", markup=False, soft_wrap=True)
    for note in plan.memory.notes:
        console.print(f"note: {note}", markup=False)
    if plan.available is None:
        console.print(f"no {plan.device} device here: give --memory GIB to know whether it fits", markup=False)


def _memory_table(plan: RecipePlan, need: DeviceNeed) -> Table:
    from rich.table import Table

    count = f"{need.count} x " if need.count > 1 else ""
    table = Table(title=f"{printable(plan.policy)}, {count}{need.name} on {plan.device}", min_width=TABLE_WIDTH)
    table.add_column("memory")
    table.add_column("GiB", justify="right")
    for name, size in need.held.items():
        table.add_row(name, in_gib(size))
    for phase, parts in (("sampling", need.sampling), ("update", need.update)):
        for name, size in parts.items():
            table.add_row(f"  {phase}: {name}", in_gib(size))
    table.add_row("highest", in_gib(need.peak))
    if plan.available is not None:
        table.add_row("available", in_gib(plan.available))
    memory = plan.memory
    table.caption = f"{memory.parameters:,} parameters, {memory.trained:,} trained"
    return table


def _cost_table(found: Forecast) -> Table:
    from rich.table import Table

    def amount(value: float | None, most: bool = False) -> str:
        return "not known" if value is None else f"{'at most ' if most else ''}{value:,.0f}"

    table = Table(title="the whole run", show_header=False, min_width=TABLE_WIDTH)
    table.add_row("rollouts", f"{found.rollouts:,}")
    table.add_row("sampled tokens", amount(found.sampled_tokens, found.bounded))
    hours = "give --tokens-per-second or --measured RUN"
    if found.hours is not None:
        hours = f"{'at most ' if found.bounded else ''}{found.hours:,.2f}"
    table.add_row("hours", hours)
    table.add_row("requests of chat roles", amount(found.requests, bool(found.requests)))
    table.add_row("their prompt tokens", amount(found.prompt_tokens, bool(found.requests)))
    table.add_row("their completion tokens", amount(found.completion_tokens, bool(found.requests)))
    table.add_row("money", "not known" if found.money is None else f"{found.money:,.2f}")
    return table


if __name__ == "__main__":
    app()
