"""`python -m training.embedded.warm_start`: train a tiny initial policy on verified tasks (supervised fine-tuning).

Each task's reference is replayed in the environment; the policy learns to write its calls after the text that it would
have read. The recipe (Qwen3 architecture, sizes, optimizer) is our choice. The number of steps, never seconds, defines
the result: equal tasks, settings and seed give equal weights on one machine. No evaluation set is opened here, and a
task of a held-out set is refused.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field, JsonValue, ValidationError

from environments.base import Environment, InputError, Record, recorded
from environments.command import OneSentence, check_output, exit_statuses, writing
from environments.registry import DEFAULT, benchmark_of, is_import_path, open_named
from memory.jsonl import complaint, derive_seed, whole_folder
from memory.records import Measured
from memory.run import write_json
from memory.strict_yaml import options_given
from training.embedded.compact import CompactRendering
from training.embedded.compact_text import CompactSettings, CompactText
from training.embedded.demonstrations import (
    Demonstration,
    Example,
    demonstrate,
    example,
    lines,
    read_tasks,
    refuse_held_out,
)
from training.rollout.policy import PolicyCard, save_policy

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RECORD = "warm_start.json"
_CORPUS_TASKS = 2000
_PROBED_TASKS = 500


class WarmStartSettings(Record):
    """The model's shape and its training.

    ``balance`` (ours): 0 draws tasks uniformly, 1 makes functions equally frequent, 0.5 lies between. It gives the
    policy a little of what unguided exploration seldom reaches, because GRPO cannot reinforce what is never sampled.
    """

    steps: int = Field(1000, ge=1, le=10_000_000)
    seed: int = Field(0, ge=0, lt=2**63)
    hidden: int = Field(128, ge=16, le=65_536, multiple_of=8)
    layers: int = Field(3, ge=1, le=1000)
    vocabulary: int = Field(1024, ge=1, le=1_000_000)
    learning_rate: float = Field(3e-3, gt=0, le=1.0)
    batch: int = Field(16, ge=1, le=65_536)
    balance: float = Field(0.5, ge=0, le=1)
    warmup_steps: int = Field(30, ge=0, le=10_000_000)
    max_length: int = Field(1024, ge=64, le=1_048_576)
    held_out: int = Field(200, ge=1, le=1_000_000)


class WarmStartRecord(Record):
    """``warm_start.json``: how the policy beside it was made. Losses are in nats per token of the policy's.

    ``tasks`` are those that were learnt from or held out.
    """

    settings: WarmStartSettings
    tasks_sha256: str
    tasks: int
    held_out_tasks: int
    parameters: int
    first_loss: float
    last_loss: float
    held_out_loss: float
    weights_sha256: str
    measured: Measured = Measured()


def make_tokenizer(
    environment: Environment, demonstrations: Sequence[Demonstration], card: CompactSettings, vocabulary: int
) -> PreTrainedTokenizerBase:
    """Train the tokenizer for these tasks' tools on the first tasks' lines and on errors of incomplete replays."""
    from training.embedded.tokenizer import train_tokenizer

    tools = {tool.name: tool for shown in demonstrations for _, tools, _ in shown.turns for tool in tools}
    several = [shown.task for shown in demonstrations if len(shown.task.reference[0]) > 1][:_PROBED_TASKS]
    cut = [task.model_copy(update={"reference": (task.reference[0][1:], *task.reference[1:])}) for task in several]
    failing = [demonstrate(environment, task, verified=False) for task in cut]
    shown = (*demonstrations[:_CORPUS_TASKS], *failing)
    corpus = [line for one in shown for line, _ in lines(one, CompactText(card))]
    return train_tokenizer(corpus, [tools[name] for name in sorted(tools)], card, vocabulary)


def make_model(tokenizer: PreTrainedTokenizerBase, settings: WarmStartSettings) -> PreTrainedModel:
    """Make a Qwen3 model of the settings' shape with weights drawn from the seed."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=settings.hidden // 4,
        intermediate_size=2 * settings.hidden,
        max_position_embeddings=settings.max_length,
        tie_word_embeddings=True,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(settings.seed, "warm_start", "weights"))
        return Qwen3ForCausalLM(config)


def loss_of(model: PreTrainedModel, examples: Sequence[Example], pad: int) -> torch.Tensor:
    """Return the mean cross-entropy over the tokens that the policy writes, in nats."""
    import torch

    width = max(len(shown.ids) for shown in examples)
    ids = torch.tensor([shown.ids + [pad] * (width - len(shown.ids)) for shown in examples])
    written = torch.tensor([shown.mask + [0] * (width - len(shown.mask)) for shown in examples])
    labels = ids.masked_fill(written == 0, -100)[:, 1:]
    # Right padding needs no attention mask: no token that counts comes after it.
    logits = model(input_ids=ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batches(examples: Sequence[Example], settings: WarmStartSettings) -> Iterator[list[Example]]:
    """Draw ``steps`` batches with replacement; an example's weight is its rarest function's count ** -balance."""
    rng = random.Random(derive_seed(settings.seed, "warm_start", "batches"))
    counts = Counter(name for shown in examples for name in shown.tools)
    weights = [min(counts[name] for name in shown.tools) ** -settings.balance for shown in examples]
    cumulative = list(accumulate(weights))
    for _ in range(settings.steps):
        yield rng.choices(examples, cum_weights=cumulative, k=settings.batch)


def train(
    model: PreTrainedModel, examples: Sequence[Example], pad: int, settings: WarmStartSettings
) -> Iterator[float]:
    """Train, yielding each step's loss. The learning rate warms up, then decays linearly to a tenth."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step, batch in enumerate(batches(examples, settings)):
        rise = min(1.0, (step + 1) / max(1, settings.warmup_steps))
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * rise * (1.0 - 0.9 * step / settings.steps)
        loss = loss_of(model, batch, pad)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        yield loss.item()
    model.train(False)


def warm_start(
    tasks: Path,
    out: Path,
    settings: WarmStartSettings,
    environment_name: str = DEFAULT,
    *,
    options: Mapping[str, JsonValue] | None = None,
) -> WarmStartRecord:
    """Train a policy on a file of tasks and write it to ``out`` with its record.

    ``environment_name`` is a benchmark, or module:callable of the environment that the tasks are of; ``options``
    are its options. Raises InputError.
    """
    check_output("--out", out, "folder")
    started = time.monotonic()
    learnt = read_tasks(tasks)
    others = {task.environment for task in learnt} - {environment_name}
    if others and not is_import_path(environment_name):
        raise InputError(f"--environment: the tasks are of the environment {min(others)!r}: name its module:callable")

    import torch
    from rich.console import Console
    from rich.progress import track

    torch.set_num_threads(1)  # sums of several threads round otherwise
    console = Console(stderr=True)
    opened = open_named(environment_name, options)
    environment = recorded(opened)
    refuse_held_out(tasks, learnt, environment)
    shown = [demonstrate(environment, task) for task in track(learnt, "replaying tasks", console=console)]
    compact = CompactSettings(**benchmark_of(environment).exploration.compact.model_dump())
    card = PolicyCard(rendering="compact", compact=compact)
    tokenizer = make_tokenizer(environment, shown, compact, settings.vocabulary)
    rendering = CompactRendering(tokenizer, compact)
    examples = [example(demonstration, rendering) for demonstration in shown]
    longest = max(len(rendered.ids) for rendered in examples)
    if longest > settings.max_length:
        raise InputError(f"{tasks}: a task takes {longest} tokens: raise --max-length ({settings.max_length})")
    random.Random(derive_seed(settings.seed, "warm_start", "held_out")).shuffle(examples)
    held_out = examples[: min(settings.held_out, len(examples) // 2)]
    model = make_model(tokenizer, settings)
    pad = tokenizer.pad_token_id
    steps = train(model, examples[len(held_out) :], pad, settings)
    losses = list(track(steps, "warm start", total=settings.steps, console=console))
    with torch.inference_mode():
        held_out_loss = loss_of(model, held_out, pad).item()
    recent = losses[-50:]
    with whole_folder(out) as partial, writing(out):
        save_policy(partial, model, tokenizer, card)
        record = WarmStartRecord(
            settings=settings,
            tasks_sha256=_sha256(tasks),
            tasks=len(learnt),
            held_out_tasks=len(held_out),
            parameters=model.num_parameters(),
            first_loss=losses[0],
            last_loss=sum(recent) / len(recent),
            held_out_loss=held_out_loss,
            weights_sha256=_sha256(partial / "model.safetensors"),
            measured=Measured(seconds=time.monotonic() - started),
        )
        write_json(partial / RECORD, record)
    return record


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    context: typer.Context,
    tasks: Annotated[Path, typer.Option(help="JSONL file of verified tasks of the training split")],
    out: Annotated[Path, typer.Option(help="new folder for the policy")],
    environment: Annotated[
        str, typer.Option(help="a benchmark, or module:callable of the tasks' environment")
    ] = DEFAULT,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="an option of the environment, as in a recipe's environment.options"),
    ] = None,
    steps: Annotated[int, typer.Option(help="optimizer steps; they define the result")] = 1000,
    seed: Annotated[int, typer.Option(help="of the weights and the batches")] = 0,
    hidden: Annotated[int, typer.Option(help="hidden size; the feed-forward layers have twice as much")] = 128,
    layers: Annotated[int, typer.Option()] = 3,
    balance: Annotated[float, typer.Option(help="0 draws tasks uniformly, 1 evens out their functions")] = 0.5,
    vocabulary: Annotated[int, typer.Option(help="tokens of the policy's own tokenizer at most")] = 1024,
    learning_rate: Annotated[float, typer.Option(help="peak learning rate")] = 3e-3,
    max_length: Annotated[int, typer.Option(help="tokens of the longest episode")] = 1024,
) -> None:
    """Train a tiny initial policy on the references of verified tasks."""
    with exit_statuses():
        try:
            given = context.params.items()
            settings = WarmStartSettings(**{name: one for name, one in given if name in WarmStartSettings.model_fields})
        except ValidationError as error:
            raise InputError(f"--{complaint(error).replace('_', '-', 1)}") from None
        options = options_given(option or [])
        record = warm_start(tasks, out, settings, environment, options=options)
    typer.echo(
        f"{out}: {record.parameters:,} parameters, {record.tasks} tasks, loss {record.first_loss:.3f} -> "
        f"{record.last_loss:.3f} (held out {record.held_out_loss:.3f}), {record.measured.seconds:.0f} s, "
        f"weights {record.weights_sha256[:16]}"
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    app()
