"""`python -m benchmarks.gpu`: two rounds on a GPU with all weights and with LoRA, measured and held against the plan.

Policies: a random Qwen3 of the shape of Qwen3-0.6B with the initial policy's tokenizer, and the embedded policy.
Nothing is downloaded. A random policy's output is malformed and is answered each time, so that rollouts reach their
limits: sampling and training do the work of real rollouts of that length. ``--toy --device cpu`` does all of it at toy
size.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from benchmarks.rounds import Used, above_imports, make_policy, prepared, train_rounds
from environments.base import InputError, Record
from environments.checkout import INITIAL_POLICY
from environments.command import FAILURE, OneSentence, check_output, exit_statuses
from memory.jsonl import write_json
from memory.processes import ChildFailure
from memory.run import RunDirectory, read_json
from training.grpo.record import RoundRecord
from training.model_shape import ModelShape
from training.plan import GIB, PROCESS_BYTES, memory_of, training_flops

if TYPE_CHECKING:
    from rich.table import Table

    from graph.settings import RunSettings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

ROUNDS = 2
BUDGET = 1150.0  # seconds of all cases together, so that the whole takes less than 20 minutes
LORA = "policy.lora={rank: 16, alpha: 32}"
QWEN3_06B: Mapping[str, int] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 4096,
}
TOY: Mapping[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 2048,
}
LARGE_ROUND = (
    *("training.steps=2", "training.tasks_per_step=4", "training.rollouts_per_task=8", "training.micro_batch=4"),
    *("training.max_tokens=1024", "training.max_new_tokens=128", "training.max_actions=50"),
)
EMBEDDED_ROUND = ("training.steps=4", "training.tasks_per_step=16", "training.rollouts_per_task=8")
TOY_ROUND = (
    *("training.steps=1", "training.tasks_per_step=2", "training.rollouts_per_task=4", "training.micro_batch=4"),
    *("training.max_tokens=160", "training.max_new_tokens=16", "training.max_actions=5"),
)


class GpuCase(NamedTuple):
    """One policy and how it is trained. ``size``: of a random one, None for the embedded policy."""

    name: str
    size: Mapping[str, int] | None
    overrides: tuple[str, ...]


class CaseResult(Record):
    """The figures of one case; rates are those of the second round, whose process is warm. None where it failed.

    ``sampled_per_second``: sampled tokens / seconds of rollouts, environment included. ``trained_per_second``: tokens
    of all rows / seconds of optimisation. ``memory_gib`` and ``planned_gib``: highest of the first round above imports
    or the GPU's context. ``context_gib``: the GPU's context, which the plan assumes. ``mfu``: see ``mfu_of``.
    """

    name: str
    parameters: int | None = None
    sampled_per_second: float | None = None
    trained_per_second: float | None = None
    memory_gib: float | None = None
    planned_gib: float | None = None
    context_gib: float | None = None
    mfu: float | None = None
    seconds: float
    failure: str | None = None


class GpuReport(Record):
    """The measurements and their device. ``peak_flops``: of a matrix product in that type on it, or as given."""

    device: str
    torch: str
    toy: bool
    peak_flops: float
    peak_source: Literal["measured", "given"]
    cases: tuple[CaseResult, ...]


@app.command(cls=OneSentence)
def main(
    output: Annotated[Path, typer.Option(help="the figures, as JSON")] = Path("build/benchmarks/gpu.json"),
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="where the policies are")] = "cuda",
    toy: Annotated[bool, typer.Option("--toy", help="everything at toy size, to try it")] = False,
    peak_tflops: Annotated[
        float | None, typer.Option(min=1e-6, help="the device's for MFU; measured with a matrix product if none")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="measure this case alone, by its name; repeatable")] = None,
) -> None:
    """Measure two rounds with all weights and with LoRA: tokens per second, memory against the plan, and MFU.

    Exit status: 0; 1 when a case failed, which the table names with its reason; 2 for a user's mistake.
    """
    with exit_statuses():
        check_output("--output", output)
        chosen = _chosen(cases(device, toy), only or [])
        name, version, measured = _device(device)
        peak = measured if peak_tflops is None else peak_tflops * 1e12
        results = list(_measured(chosen, device, peak))
        report = GpuReport(
            device=name,
            torch=version,
            toy=toy,
            peak_flops=peak,
            peak_source="measured" if peak_tflops is None else "given",
            cases=tuple(results),
        )
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, report)
        _print(report, output)
        if any(one.failure for one in results):
            raise typer.Exit(FAILURE)


def cases(device: str, toy: bool) -> Sequence[GpuCase]:
    """Return the cases: a random policy and the embedded one, each with all weights and with LoRA."""
    dtype = "bfloat16" if device == "cuda" else "float32"
    size, large, small = (TOY, TOY_ROUND, TOY_ROUND) if toy else (QWEN3_06B, LARGE_ROUND, EMBEDDED_ROUND)
    shared = (
        *(f"iterations={ROUNDS}", "evaluation.set=null", f"policy.device={device}", "tasks.initial_count=4"),
        f"policy.dtype={dtype}",
    )
    random = "random, toy" if toy else "random, 0.6 B"
    return [
        GpuCase(f"{random}, all weights", size, (*shared, *large)),
        GpuCase(f"{random}, LoRA", size, (*shared, *large, LORA)),
        GpuCase("embedded, all weights", None, (*shared, *small)),
        GpuCase("embedded, LoRA", None, (*shared, *small, LORA)),
    ]


def mfu_of(shape: ModelShape, used: Used, seconds: float, peak_flops: float, *, lora: bool, reference: bool) -> float:
    """Return the model FLOP utilisation of training: needed operations / (seconds of optimisation x peak per second).

    Needed: ``training.plan.training_flops`` of the tokens that were learnt from, with attention over ``used.attended``
    tokens, and one forward pass of the reference policy. Recomputed activations and rows' padding count as lost time
    (PaLM, arXiv 2204.02311, appendix B). Seconds include the loss, the optimizer and what is between two rollouts.
    """
    needed = training_flops(shape, used.trained, used.attended, lora=lora, reference=reference)
    return needed / (seconds * peak_flops)


def _chosen(every: Sequence[GpuCase], names: Sequence[str]) -> Sequence[GpuCase]:
    unknown = [name for name in names if all(name != case.name for case in every)]
    if unknown:
        raise InputError(f"--only {unknown[0]}: the cases are {'; '.join(case.name for case in every)}")
    return [case for case in every if not names or case.name in names]


def _measured(chosen: Sequence[GpuCase], device: Literal["cuda", "cpu"], peak: float) -> Iterator[CaseResult]:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        policies: dict[int, Path] = {}
        for number, case in enumerate(chosen):
            started = time.perf_counter()
            print(f"{case.name} ...", file=sys.stderr, flush=True)
            try:
                path = Path(INITIAL_POLICY)
                if case.size is not None:
                    path = policies.setdefault(id(case.size), Path(folder) / "random")
                    if not path.exists():
                        make_policy(path, case.size)
                run, settings = prepared(Path(folder) / f"run-{number}", [*case.overrides, f"policy.path={path}"])
                left = BUDGET - (time.perf_counter() - began)
                if left <= 0:
                    raise InputError(f"the other cases took {BUDGET:g} s: run it on a faster device")
                used = asyncio.run(train_rounds(run, ROUNDS, left))
            except (ChildFailure, InputError) as error:
                reason = str(error).strip().splitlines()[-1]
                yield CaseResult(name=case.name, seconds=time.perf_counter() - started, failure=reason)
                continue
            yield _result(case, run, settings, used, device, peak, time.perf_counter() - started)


def _result(
    case: GpuCase,
    run: RunDirectory,
    settings: RunSettings,
    used: Sequence[Used],
    device: Literal["cuda", "cpu"],
    peak: float,
    seconds: float,
) -> CaseResult:
    from graph.plan import read_config

    shape = read_config(settings, None)
    lora = settings.policy.lora is not None
    first, last = used[0], used[-1]
    need = memory_of(shape, settings.policy, settings.training, device=device, tokens=first.longest).devices[0]
    planned = need.peak - PROCESS_BYTES[device] if device == "cuda" else above_imports(need, first.baseline)
    record = read_json(run.iteration(ROUNDS - 1).round, RoundRecord)
    spent = record.measured
    return CaseResult(
        name=case.name,
        parameters=shape.parameters,
        sampled_per_second=record.sampled_tokens / spent.rollouts,
        trained_per_second=last.trained / spent.optimisation,
        memory_gib=(first.peak - first.baseline) / GIB,
        planned_gib=planned / GIB,
        context_gib=first.context / GIB,
        mfu=mfu_of(shape, last, spent.optimisation, peak, lora=lora, reference=settings.training.kl > 0),
        seconds=seconds,
    )


def _device(device: str) -> tuple[str, str, float]:
    """Return the device's name, torch's version, and the operations per second of a large matrix product there."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no GPU: use --device cpu --toy to try the script")
    on_gpu = device == "cuda"
    size = 8192 if on_gpu else 512
    dtype = torch.bfloat16 if on_gpu else torch.float32
    if not on_gpu:
        torch.set_num_threads(1)  # as training.threads
    one = torch.randn(size, size, device=device, dtype=dtype)

    def seconds(repeats: int) -> float:
        began = time.perf_counter()
        for _ in range(repeats):
            one @ one
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds(3)
    repeats = 20
    peak = 2.0 * size**3 * repeats / seconds(repeats)
    name = torch.cuda.get_device_name() if on_gpu else "cpu"
    return name, torch.__version__, peak


def _print(report: GpuReport, output: Path) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(_table(report))
    for one in report.cases:
        if one.failure:
            console.print(f"{one.name}: {one.failure}", markup=False)
    console.print(f"{output}", markup=False)


def _table(report: GpuReport) -> Table:
    from rich.table import Table

    def cell(value: float | None, form: str) -> str:
        return "failed" if value is None else format(value, form)

    title = f"{report.device}, {report.peak_flops / 1e12:.3g} TFLOP/s {report.peak_source}, torch {report.torch}"
    table = Table(title=title)
    columns = ("case", "sampled tok/s", "trained tok/s", "memory GiB", "planned GiB", "ratio", "MFU", "seconds")
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right")
    for one in report.cases:
        ratio: Any = None
        if one.memory_gib and one.planned_gib:
            ratio = one.planned_gib / one.memory_gib
        table.add_row(
            one.name,
            cell(one.sampled_per_second, ",.0f"),
            cell(one.trained_per_second, ",.0f"),
            cell(one.memory_gib, ".2f"),
            cell(one.planned_gib, ".2f"),
            cell(ratio, ".2f"),
            cell(one.mfu, ".3%"),
            f"{one.seconds:.0f}",
        )
    return table


if __name__ == "__main__":
    app()
