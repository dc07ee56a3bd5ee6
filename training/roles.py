"""`python -m training.roles`: teaches a small language model the local roles, as two LoRA adapters (ours).

``writer``: tools, known values and calls so far -> the next calls, then the user's words. It proposes calls to an
explorer, and words for calls that were made. ``reader``: tools, calls so far and words -> the calls. It says whether
words ask for what they should. Both learn from turns that people wrote (``Benchmark.written_turns``), never from a
development, test or reserved task. ``environments.turn_lines`` has their texts.

The answer alone is learnt: with all tokens of the short prompts (NOMAD, arXiv 2410.20362) a reader of 40,000 tokens
was worse on questions that were held out. On a share of rows the functions are renamed, so that documentation is read
(Hammer, arXiv 2410.04587). TRL trains; a course that was interrupted goes on from its last checkpoint.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from environments.base import InputError, Record, ToolCall, ToolSpec
from environments.benchmark import HumanTurn
from environments.checkout import heavy_imports
from environments.command import OneSentence, exit_statuses, say
from environments.registry import DEFAULT, benchmark_of, open_named
from environments.turn_lines import (
    WORDS,
    Direction,
    KnownFact,
    TurnView,
    calls_text,
    chosen_facts,
    known_values,
    one_line,
    reader_prompt,
    with_found,
    words_prompt,
    writer_prompt,
)
from memory.files import sha256_of
from memory.jsonl import derive_seed
from memory.records import Measured
from memory.run import write_json
from training.device_memory import keep_freed

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

RECORD = "role.json"

RANK = 16
LONGEST = 384  # tokens of a row; longer ones are left out
HUMAN_PASSES = 2  # times that a turn of several is learnt from, with other tools and values around it
PER_FUNCTION = 1  # single-turn questions that the same functions answer
MASKED = 0.15  # share of single-turn rows with other names of functions
BATCH = 4  # rows of an update; with 16 a course of so few tokens has too few updates
IGNORED = -100  # label of an id that is not learnt
LEARNING_RATE = 1e-3
_FACTS = 10
SAVED = 32  # updates between two checkpoints


class RoleRecord(Record):
    """``role.json``: how an adapter was taught.

    Losses are in nats per learnt token, means of the first and of the last eight updates.
    """

    direction: Direction
    model: str
    environment: str
    seed: int
    rows: dict[str, int]
    tokens: int
    updates: int
    first_loss: float
    last_loss: float
    weights_sha256: str
    measured: Measured = Measured()


@dataclass(frozen=True)
class LearntText:
    """One text to learn: a prompt, and the answer that is learnt."""

    source: str
    prompt: str
    answer: str


def rows_of(turns: Sequence[HumanTurn], direction: Direction, seed: int) -> list[LearntText]:
    """Return the rows of one direction in a drawn order: single-turn ones once, the others in several views."""
    rng = random.Random(derive_seed(seed, "roles", direction))
    taught = [turn for turn in turns if not turn.held_out]
    single = _few_of_each([turn for turn in taught if not turn.answers[0]], rng)
    human = [turn for turn in taught if turn.answers[0]]
    values = [(name, str(value)) for turn in single for call in turn.calls for name, value in call.arguments.items()]
    rows = [row_of(turn, direction, rng, values) for turn in single]
    rows += [row_of(turn, direction, rng, values) for turn in human for _ in range(HUMAN_PASSES)]
    if direction == "writer":
        rows += [wording_of(turn, rng) for turn in (*single, *human)]
    rng.shuffle(rows)
    return rows


def row_of(turn: HumanTurn, direction: Direction, rng: random.Random, values: Sequence[KnownFact]) -> LearntText:
    """Return one view of a turn, with drawn tools and values around those that it is about."""
    executed = bool(turn.answers[0])
    offered = (1, 3) if direction == "reader" else (0, 1)
    others = rng.sample(turn.others, min(rng.randint(*offered), len(turn.others)))
    tools = rng.sample([*turn.tools, *others], len(turn.tools) + len(others))
    before = [answer for _, answer in turn.done]
    words = one_line(turn.words)
    read = direction == "reader"  # who reads sees the earlier answers, so that their values are there
    shown = with_found(turn.calls, turn.answers, " ".join([words, *before]) if read else words, () if read else before)
    if not executed:
        tools, shown = _masked(tools, shown, rng)
    if read:
        view = TurnView(tuple(tools), done=turn.done)
        return LearntText(turn.source, reader_prompt(view, words), calls_text(shown))
    own = [(name, str(value)) for call in turn.calls for name, value in call.arguments.items()]
    if executed:
        wanted = {value for _, value in own} if rng.random() < 0.75 else {name for name, _ in own}
        known = chosen_facts(known_values(turn.state), wanted, rng, _FACTS)
    else:
        drawn = [fact for fact in own if rng.random() < 0.8]
        drawn += rng.sample(values, min(rng.randint(3, 8), len(values)))
        known = tuple(rng.sample(drawn, len(drawn))) if rng.random() < 0.5 else ()
    view = TurnView(tuple(tools), known, turn.done)
    return LearntText(turn.source, writer_prompt(view), f"{calls_text(shown)}{WORDS} {words}")


def wording_of(turn: HumanTurn, rng: random.Random) -> LearntText:
    """Return a turn's words behind nothing but the tools that it calls and its calls: what an abstractor asks for."""
    shown = with_found(turn.calls, turn.answers, turn.words, [answer for _, answer in turn.done])
    view = TurnView(tuple(rng.sample(turn.tools, len(turn.tools))))
    return LearntText(turn.source, words_prompt(view, shown), f" {one_line(turn.words)}")


def _masked(
    tools: Sequence[ToolSpec], calls: Sequence[ToolCall], rng: random.Random
) -> tuple[list[ToolSpec], tuple[ToolCall, ...]]:
    if rng.random() >= MASKED:
        return list(tools), tuple(calls)
    names = {tool.name: f"function_{number}" for number, tool in enumerate(tools, rng.randrange(1, 90))}
    return (
        [tool.model_copy(update={"name": names[tool.name]}) for tool in tools],
        tuple(call.model_copy(update={"name": names[call.name]}) for call in calls),
    )


def _few_of_each(turns: Sequence[HumanTurn], rng: random.Random) -> list[HumanTurn]:
    """Return the turns in a drawn order, at most ``PER_FUNCTION`` of the same functions."""
    met: Counter[tuple[str, ...]] = Counter()
    kept = []
    for turn in rng.sample(turns, len(turns)):
        names = tuple(sorted({call.name for call in turn.calls}))
        met[names] += 1
        if met[names] <= PER_FUNCTION:
            kept.append(turn)
    return kept


def encoded(rows: Sequence[LearntText], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Return the rows as ids and the mask of those that are learnt, without the rows that are too long."""
    end = [tokenizer.eos_token_id]
    found = []
    for row in rows:
        prompt = tokenizer(row.prompt, add_special_tokens=False).input_ids
        answer = tokenizer(row.answer, add_special_tokens=False).input_ids + end
        if len(prompt) + len(answer) <= LONGEST:
            labels = [*[IGNORED] * len(prompt), *answer]
            found.append({"input_ids": prompt + answer, "labels": labels, "length": len(labels), "source": row.source})
    return found


def within(rows: Sequence[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """Return the first rows, up to so many tokens."""
    kept, used = [], 0
    for row in rows:
        if used + row["length"] > tokens:
            break
        used += row["length"]
        kept.append(row)
    return kept


@heavy_imports()
def teach(
    direction: Direction,
    model: str,
    out: Path,
    *,
    tokens: int,
    seed: int = 0,
    threads: int = 2,
    environment_name: str = DEFAULT,
    report: Callable[[str], None] = say,
) -> RoleRecord:
    """Teach one adapter and write it to ``out`` with its record; go on with an interrupted one.

    ``tokens`` go through the model, prompts included. Raises InputError for a folder that holds something else, and for
    an environment without written turns.
    """
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PrinterCallback, TrainerCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from training.rollout.policy import load_policy

    began = time.perf_counter()
    environment = open_named(environment_name, None)
    turns = benchmark_of(environment).written_turns(environment)
    if not turns:
        raise InputError(f"--environment {environment_name} has no turns that people wrote: name one that has")
    torch.set_num_threads(threads)
    keep_freed()
    policy = load_policy(model, "cpu")
    base, tokenizer = policy.model, policy.tokenizer
    rows = within(encoded(rows_of(turns, direction, seed), tokenizer), tokens)
    course = out.with_name(f"{out.name}.course")
    report(f"{direction}: {len(rows)} rows of {sum(row['length'] for row in rows)} tokens")

    class Reports(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ANN401
            if logs and "loss" in logs:
                report(f"{direction}: update {state.global_step} of {state.max_steps}, loss {logs['loss']:.3f}")

    data = Dataset.from_list([{key: row[key] for key in ("input_ids", "labels", "length")} for row in rows])
    # The gradient ends at the lowest layer that learns: a fifth of an update is saved.
    layers = base.config.get_text_config().num_hidden_layers
    trainer = SFTTrainer(
        model=base,
        processing_class=tokenizer,
        train_dataset=data,
        peft_config=LoraConfig(
            r=RANK,
            lora_alpha=2 * RANK,
            target_modules=sorted(_linear_names(base)),
            layers_to_transform=list(range(layers // 3, layers)),
            task_type="CAUSAL_LM",
        ),
        args=SFTConfig(
            output_dir=str(course),
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="linear",
            warmup_steps=0.1,
            max_length=LONGEST,
            train_sampling_strategy="group_by_length",
            dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=True,
            gradient_checkpointing=False,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            seed=seed,
            save_strategy="steps",
            save_steps=SAVED,
            save_total_limit=1,
            logging_steps=8,
            report_to=[],
            disable_tqdm=True,
        ),
        callbacks=[Reports()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=any(course.glob("checkpoint-*")) or None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    adapter: Any = trainer.model
    adapter.to(torch.bfloat16)
    for config in adapter.peft_config.values():
        config.base_model_name_or_path = model  # as it was named, not where this machine has it
    adapter.save_pretrained(str(out))
    (out / "README.md").unlink(missing_ok=True)  # peft's form of a model card
    record = RoleRecord(
        direction=direction,
        model=model,
        environment=environment_name,
        seed=seed,
        rows=dict(Counter(row["source"] for row in rows)),
        tokens=sum(row["length"] for row in rows),
        updates=trainer.state.global_step,
        first_loss=losses[0],
        last_loss=losses[-1],
        weights_sha256=sha256_of(out / "adapter_model.safetensors"),
        measured=Measured(seconds=time.perf_counter() - began),
    )
    write_json(out / RECORD, record)
    shutil.rmtree(course)
    return record


def _linear_names(model: torch.nn.Module) -> set[str]:
    """Return the last names of the linear modules within the model's layers."""
    from torch import nn

    named = (name.split(".") for name, module in model.named_modules() if isinstance(module, nn.Linear))
    return {parts[-1] for parts in named if any(part.isdecimal() for part in parts)}


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    out: Annotated[Path, typer.Option(help="folder of the two adapters, writer and reader")],
    model: Annotated[str, typer.Option(help="folder of the language model, or smollm2-135m")] = "smollm2-135m",
    writer_tokens: Annotated[int, typer.Option(min=1, help="tokens that the writer learns from")] = 130_000,
    reader_tokens: Annotated[int, typer.Option(min=1, help="tokens that the reader learns from")] = 130_000,
    seed: Annotated[int, typer.Option(min=0, help="every random draw derives from it")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="threads of the processor")] = 2,
) -> None:
    """Teach the adapters of the local roles; adapters that are there stay, an interrupted one goes on."""
    with exit_statuses():
        for direction, tokens in zip(get_args(Direction), (writer_tokens, reader_tokens), strict=True):
            if (out / direction / RECORD).exists():
                say(f"{direction}: is there already")
                continue
            record = teach(direction, model, out / direction, tokens=tokens, seed=seed, threads=threads)
            seconds = record.measured.seconds
            say(f"{direction}: loss {record.first_loss:.3f} -> {record.last_loss:.3f} in {seconds:.0f} s")


if __name__ == "__main__":
    app()
