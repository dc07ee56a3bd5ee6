"""`python -m training.warm_start`: the supervised start of any policy on the references of training tasks (ours).

It starts a language model, goes on with a policy that there is, or makes the tiny embedded policy and its tokenizer
(``training.embedded.new_policy``). Each reference is played through the policy's own rendering, as in the expert step
of a round (``training.start_rows``), and ``training.supervised`` learns from its tokens. Tasks are verified ones or a
benchmark's own training tasks; no evaluation set is opened here, and a task of a held-out set is refused.

With ``tokens`` arms of a comparison are at equal cost: what is counted is every token that goes through the model,
prompts included, passes counted. Of several files each but the last is learnt from in its number of passes, the last
one in as many as the tokens that are left allow. ``order`` changes the order of these rows and nothing else: ``given``
takes a file after the other, ``mixed`` spreads each file evenly over the whole course.

Equal files, settings and model give equal weights on one machine.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import JsonValue, ValidationError

from environments.base import InputError, Record, recorded
from environments.checkout import heavy_imports
from environments.command import OneSentence, check_output, exit_statuses, say, writing
from environments.registry import DEFAULT, open_named
from memory.files import sha256_of, whole_folder
from memory.jsonl import complaint, derive_seed, options_given
from memory.records import Measured
from memory.run import write_json
from training.device_memory import known_dtype
from training.embedded.compact import CompactRendering
from training.embedded.new_policy import EMBEDDED, new_policy
from training.rollout.episodes import TokenRow
from training.rollout.policy import Policy, check_policy_path, load_policy, save_policy
from training.settings import RenderingOptions
from training.start_rows import LearntFile, StartSettings, read_learnable, refuse_held_out, start_rows

if TYPE_CHECKING:
    from training.supervised import Learning

RECORD = "warm_start.json"

_REPORT_EVERY = 10.0  # seconds


class StartRecord(Record):
    """``warm_start.json``: how the policy beside it was made. Losses are means over a tenth of the updates.

    ``tokens`` went through the model, ``written_tokens`` of them were learnt to write. Losses are in nats per written
    token.
    """

    model: str
    environment: str
    settings: StartSettings
    files: tuple[LearntFile, ...]
    updates: int
    tokens: int
    written_tokens: int
    parameters: int
    first_loss: float
    last_loss: float
    weights_sha256: str
    measured: Measured = Measured()


def warm_start(
    model: str,
    files: Sequence[Path],
    out: Path,
    settings: StartSettings,
    environment_name: str = DEFAULT,
    *,
    options: Mapping[str, JsonValue] | None = None,
    report: Callable[[str], None] = say,
) -> StartRecord:
    """Learn from the references of the tasks in ``files`` and write the policy to ``out`` with its record.

    ``model`` is a folder, a shipped policy, a hub id or EMBEDDED. ``environment_name`` is a benchmark, or
    module:callable of the environment that the tasks are of; ``options`` are its options. Raises InputError, always
    before anything is written.
    """
    began = time.perf_counter()
    check_output("--out", out, "folder")
    if settings.tokens is not None and len(files) == 1 and settings.passes > 1:
        raise InputError("--passes: the only file is repeated until --tokens are used: give one of the two")
    if model == EMBEDDED:
        settings.check_compact(model)
    else:
        check_policy_path(model)
    rate = settings.learning_rate or (3e-3 if model == EMBEDDED else 2e-4)
    dtype = known_dtype(settings.dtype, settings.device)
    settings = settings.model_copy(update={"learning_rate": rate, "dtype": dtype})
    tasks = [read_learnable(file, environment_name) for file in files]
    together = [task for some in tasks for task in some]
    environment = recorded(open_named(environment_name, options))
    for file, some in zip(files, tasks, strict=True):
        refuse_held_out(file, some, environment)
    with heavy_imports():
        import torch

        from training.supervised import Learning, of_ends

    torch.set_num_threads(settings.threads)
    if model == EMBEDDED:
        policy = new_policy(environment, together, settings.max_tokens, settings.seed, settings.device)
    else:
        policy = load_policy(model, settings.device, options=settings)
    _check_rendering(model, policy, settings)
    if policy.adapter:
        raise InputError(f"--model {model} is a LoRA adapter: save the merged model (peft's merge_and_unload)")
    report(f"playing the references of {len(together)} tasks")
    rows, learnt = start_rows(policy, environment, files, tasks, settings)
    drawn = draw([[row.length for row in some] for some in rows], settings, [one.file for one in learnt])
    torch.manual_seed(derive_seed(settings.seed, "warm_start", "dropout") % 2**32)
    learning = Learning(rate, bfloat16=settings.dtype == "bfloat16")
    losses = list(_learn(policy, rows, drawn, settings, learning, report))
    first_loss, last_loss = of_ends(losses)
    with whole_folder(out) as partial, writing(out):
        save_policy(partial, policy.model, policy.tokenizer, policy.card)
        record = StartRecord(
            model=model,
            environment=environment_name,
            settings=settings,
            files=tuple(
                one.model_copy(
                    update={
                        "rows": sum(source == number for source, _ in drawn),
                        "tokens": sum(rows[number][place].length for source, place in drawn if source == number),
                    }
                )
                for number, one in enumerate(learnt)
            ),
            updates=len(losses),
            tokens=sum(rows[source][place].length for source, place in drawn),
            written_tokens=sum(sum(rows[source][place].mask) for source, place in drawn),
            parameters=policy.model.num_parameters(),
            first_loss=first_loss,
            last_loss=last_loss,
            weights_sha256=sha256_of(*sorted(partial.glob("*.safetensors"))),
            measured=Measured(seconds=time.perf_counter() - began),
        )
        write_json(partial / RECORD, record)
    return record


def _check_rendering(model: str, policy: Policy, settings: StartSettings) -> None:
    if policy.rendering.name == CompactRendering.name:
        if settings.tag_synthesised:
            raise InputError(f"--tag-synthesised: {model} has no chat template, so no system message: leave it out")
        if settings.questions:
            raise InputError(f"--questions: {model} has no chat template, and reads no documentation: leave it out")


def draw(lengths: Sequence[Sequence[int]], settings: StartSettings, files: Sequence[str]) -> list[tuple[int, int]]:
    """Return the rows that are learnt from, in order, as (file, row); ``lengths`` are the tokens of each file's rows.

    Each pass takes every row of a file once, in an order that the seed draws. The row that reaches ``tokens`` is the
    last one. Raises InputError when there is no token left for a file.
    """
    rng = random.Random(derive_seed(settings.seed, "warm_start", "passes"))
    taken: list[list[int]] = []
    left = math.inf if settings.tokens is None else settings.tokens
    for number, rows in enumerate(lengths):
        if left <= 0:
            raise InputError(f"--tokens {settings.tokens} are used before {files[number]}: raise it, or lower --passes")
        filling = settings.tokens is not None and number == len(lengths) - 1
        mine: list[int] = []
        for _ in count() if filling else range(settings.passes):
            for place in rng.sample(range(len(rows)), len(rows)):
                if left > 0:
                    mine.append(place)
                    left -= rows[place]
            if left <= 0:
                break
        taken.append(mine)
    if settings.order == "given":
        return [(number, place) for number, mine in enumerate(taken) for place in mine]
    spread = [
        ((at + 0.5) / len(mine), number, place) for number, mine in enumerate(taken) for at, place in enumerate(mine)
    ]
    return [(number, place) for _, number, place in sorted(spread, key=lambda one: one[:2])]


def pools(drawn: Sequence[tuple[int, int]], order: Literal["given", "mixed"]) -> Iterator[list[tuple[int, int]]]:
    """Yield the rows in stretches without a repeated one, whose batches are drawn together; ``given``: of one file.

    Sorted by length, two copies of a row would be in one batch, and an update would learn from fewer rows than it has.
    """
    pool: dict[tuple[int, int], None] = {}
    for one in drawn:
        if one in pool or (pool and order == "given" and one[0] != next(iter(pool))[0]):
            yield list(pool)
            pool = {}
        pool[one] = None
    if pool:
        yield list(pool)


def _learn(
    policy: Policy,
    rows: Sequence[Sequence[TokenRow]],
    drawn: Sequence[tuple[int, int]],
    settings: StartSettings,
    learning: Learning,
    report: Callable[[str], None],
) -> Iterator[float]:
    """Make the updates; yield the loss of each in nats per written token, and report the progress."""
    from training.supervised import BATCH, POOL, Diverged, batches, evenly, learn

    updates: list[list[TokenRow]] = []
    for part in (part for pool in pools(drawn, settings.order) for part in evenly(pool, POOL * BATCH)):
        some = [rows[source][place] for source, place in part]
        seed = derive_seed(settings.seed, "warm_start", "batches", len(updates))
        updates += [[some[place] for place in batch] for batch in batches([row.length for row in some], BATCH, seed)]
    total = sum(row.length for batch in updates for row in batch)
    began, reported, done = time.perf_counter(), time.perf_counter(), 0
    try:
        for number, loss in enumerate(learn(policy.model, updates, learning), start=1):
            done += sum(row.length for row in updates[number - 1])
            now = time.perf_counter()
            if now - reported >= _REPORT_EVERY or number == len(updates):
                reported = now
                report(
                    f"update {number} of {len(updates)}: {done:,} of {total:,} tokens, "
                    f"{done / (now - began):,.0f} tokens/s, loss {loss:.3f}"
                )
            yield loss
    except Diverged as loss:
        raise InputError(f"the loss became {loss}: lower --learning-rate ({learning.learning_rate:g})") from None


def _help(option: str) -> str | None:
    return RenderingOptions.model_fields[option].description


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="a folder, a shipped policy, a hub id, or embedded: a tiny one is made")],
    tasks: Annotated[list[Path], typer.Option(help="JSONL file of training tasks; several are learnt from in order")],
    out: Annotated[Path, typer.Option(help="new folder for the policy")],
    environment: Annotated[
        str, typer.Option(help="a benchmark, or module:callable of the tasks' environment")
    ] = DEFAULT,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="an option of the environment, as in a recipe's environment.options"),
    ] = None,
    passes: Annotated[int, typer.Option(help="passes over each file; with --tokens over each but the last")] = 1,
    tokens: Annotated[
        int | None, typer.Option(help="tokens that go through the model, prompts included; the last file fills them")
    ] = None,
    order: Annotated[str, typer.Option(help="given: file after file; mixed: the same rows spread evenly")] = "given",
    learning_rate: Annotated[
        float | None, typer.Option(help="peak learning rate; if none 2e-4, of embedded 3e-3")
    ] = None,
    seed: Annotated[int, typer.Option(help="of the order and the batches")] = 0,
    dtype: Annotated[str, typer.Option(help="type of matrix products: float32, bfloat16 or auto")] = "float32",
    max_tokens: Annotated[
        int, typer.Option(help="tokens of one episode at most; longer references are left out")
    ] = 4096,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads of torch; results differ between numbers of them")] = 1,
    questions: Annotated[
        int, typer.Option(help="single-turn questions of the benchmark that are learnt from before the files")
    ] = 0,
    tag_synthesised: Annotated[
        bool, typer.Option("--tag-synthesised", help="say in the system message of a synthesised task that it is one")
    ] = False,
    documentation: Annotated[str | None, typer.Option(help=_help("documentation"), metavar="schemas|lines")] = None,
    tools_shown: Annotated[str | None, typer.Option(help=_help("tools_shown"), metavar="all|K")] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help=_help("thinking"), show_default=False)
    ] = None,
) -> None:
    """Teach a policy the references of verified or official training tasks, and write it as a policy."""
    with exit_statuses():
        given = {name: one for name, one in context.params.items() if name in StartSettings.model_fields}
        shown = int(tools_shown) if tools_shown is not None and tools_shown.isdecimal() else tools_shown
        try:
            settings = StartSettings(**given | {"tools_shown": shown})
        except ValidationError as error:
            raise InputError(f"--{complaint(error).replace('_', '-', 1)}") from None
        options = options_given(option or [])
        record = warm_start(model, tasks, out, settings, environment, options=options)
    left_out = sum(one.left_out for one in record.files)
    typer.echo(
        f"{out}: {record.parameters:,} parameters, {record.updates} updates, {record.tokens:,} tokens "
        f"({record.written_tokens:,} written), loss {record.first_loss:.3f} -> {record.last_loss:.3f}, "
        f"{left_out} references left out, {record.measured.seconds:.0f} s, weights {record.weights_sha256[:16]}"
    )


if __name__ == "__main__":
    app()
