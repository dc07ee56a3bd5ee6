"""Measures rollouts and a GRPO step against plain TRL.

Ours is RoundTrainer over the in-process sampler. Plain TRL is GRPOTrainer with ``environment_factory``, its own way to
act over several turns, and the same configuration, every rollout of the step in one batch as TRL does by default. A
step is one batch of rollouts, its loss with the KL term, and one update.

Both sides open the same BFCL tasks of one user turn, act in them with the same tiny chat policy on one thread, and are
scored by the official checker; prompts are equal id by id and only the policy's own tokens count. TRL allows one
trainer per process, hence a process for each side, measured in turn; one that waits uses no time.

The policy writes Qwen3's own chat format (the template that Qwen3-Instruct-2507 ships), calls three of BFCL's
file-system tools, and half knows the tasks: a random one would end every episode at once. Its shape is that of
recipes/starter.

With a ``model`` both act with that one, on the GPU where there is one, in bfloat16 and micro-batches of a group. A
further row is then the arithmetic of learning, 6 operations for each parameter and token of all rows, over what the
same device does in one large matrix product: utilisation as it was measured, not of a data sheet.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.measurement import Measurement, interleaved, of_pairs
from environments.base import Record, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from memory.jsonl import write_jsonl
from memory.records import Task
from training.embedded.new_policy import VOCABULARY, make_model
from training.rendering.tool_calls import tool_schema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OURS, TRL = "ours", "trl"
LEAST = 1.5  # times the sampled tokens per second of TRL's path
MOST = 0.8  # of the seconds of plain TRL's step

QUIET = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}

CLASS = "GorillaFileSystem"
TOOLS = ("cat", "mkdir", "touch")
PASSES = 40
POSITIONS = 2048

_FOLDERS = ("archive", "drafts", "photos", "letters")
_FILES = ("notes.txt", "plan.txt", "todo.txt", "list.txt")


class Figures(Record):
    """The samples of one side for one step, with wall seconds and CPU seconds of the process.

    ``rollout_*`` is everything from opening the episodes to their rewards; ``wall`` and ``cpu`` is all of the step.
    """

    rollouts: int
    successes: int
    sampled_tokens: int
    prompt_tokens: int
    rollout_wall: float
    rollout_cpu: float
    wall: float
    cpu: float
    parameters: int = 0
    products: float = 0.0

    @property
    def utilisation(self) -> float:
        """Return the share of ``products``, operations per second of a matrix product, that learning used."""
        operations = 6 * self.parameters * (self.prompt_tokens + self.sampled_tokens)
        return operations / (self.wall - self.rollout_wall) / self.products


def measure(repeats: int, model: str | None = None) -> Sequence[Measurement]:
    """Measure sampled tokens per second of rollouts, the seconds of a step, and those of its optimisation.

    ``model``: folder of a causal language model in place of the tiny policy. Raises RuntimeError when a side ends
    early, or when the sides' prompts are not equally long.
    """
    pairs = _interleaved(repeats, model)
    ours = [own for own, _ in pairs]
    size = f"{ours[0].rollouts} rollouts of prompts of {ours[0].prompt_tokens / ours[0].rollouts:.0f} tokens"
    note = f"{size}; sampled: {_sampled(OURS, ours)}, {_sampled(TRL, [other for _, other in pairs])}"
    in_rollouts = "in-process sampler / TRL environment_factory"
    in_step = "RoundTrainer over the sampler / GRPOTrainer with environment_factory"

    def rate(clock: str, figure: Callable[[Figures], float]) -> Measurement:
        name = f"rollout phase, {clock}"
        return of_pairs(name, in_rollouts, pairs, figure, "sampled tokens/s", least=LEAST, note=note)

    def step(clock: str, figure: Callable[[Figures], float]) -> Measurement:
        return of_pairs(f"GRPO step, {clock}", in_step, pairs, figure, "s", most=MOST, note=note)

    rows = [
        rate("wall clock", lambda taken: taken.sampled_tokens / taken.rollout_wall),
        rate("CPU time", lambda taken: taken.sampled_tokens / taken.rollout_cpu),
        step("wall clock", lambda taken: taken.wall),
        step("CPU time", lambda taken: taken.cpu),
        of_pairs(
            "GRPO step without rollouts, CPU time",
            "RoundTrainer / GRPOTrainer, each on its own rollouts",
            pairs,
            lambda taken: taken.cpu - taken.rollout_cpu,
            "s",
        ),
    ]
    if model is not None:
        name = "GRPO step without rollouts, utilisation"
        compared = "RoundTrainer / GRPOTrainer, of a matrix product's operations per second"
        note = f"{model}; matrix product {ours[0].products / 1e12:.3g} TFLOP/s"
        rows.append(of_pairs(name, compared, pairs, lambda taken: taken.utilisation, "", note=note))
    return rows


def _sampled(side: str, taken: Sequence[Figures]) -> str:
    """Return a note that shows how far both sides did the same work."""
    tokens = median(one.sampled_tokens for one in taken)
    return f"{side} {tokens:.0f} tokens (success {fmean(one.successes / one.rollouts for one in taken):.2f})"


def _interleaved(repeats: int, model: str | None = None) -> list[tuple[Figures, Figures]]:
    """Measure both sides in turn ``repeats`` times, after one time that is not counted."""
    with TemporaryDirectory(prefix="benchmark-") as folder:
        policy = Path(model or Path(folder) / "chat-policy")
        if model is None:
            make_chat_policy(policy)
        command, more = (sys.executable, "-m", "benchmarks.grpo_side"), () if model is None else ("model",)
        sides = {
            side: (*command, side, str(policy), str(Path(folder) / side), str(repeats + 1), *more)
            for side in (OURS, TRL)
        }
        taken = interleaved(sides, QUIET, Figures, repeats + 1)
    lengths = {side: figures.prompt_tokens for side, figures in taken[0].items()}
    if len(set(lengths.values())) > 1:
        raise RuntimeError(f"the sides' prompts differ, so that their figures cannot be compared: {lengths} tokens")
    return [(one[OURS], one[TRL]) for one in taken[1:]]


def chat_tasks() -> tuple[Task, ...]:
    """Return eight tasks of one user turn and two or three calls each."""
    readme = {"type": "file", "content": "Keep this folder tidy."}
    read = ToolCall(name="cat", arguments={"file_name": "readme.md"})
    tasks = []
    for number in range(8):
        folder, file = _FOLDERS[number // 2], _FILES[number // 2]
        make = ToolCall(name="mkdir", arguments={"dir_name": folder})
        touch = ToolCall(name="touch", arguments={"file_name": file})
        calls: tuple[ToolCall, ...] = (read, make)
        text = f'Show what "readme.md" says, then create the folder "{folder}".'
        if number % 2:
            text = f'Create the folder "{folder}" and the file "{file}", then show "readme.md".'
            calls = (make, touch, read)
        task = Task(
            id=f"benchmark-{number}",
            origin="seed",
            environment="bfcl",
            split="train",
            classes=(CLASS,),
            turns=(text,),
            initial_state={CLASS: {"root": {"home": {"type": "directory", "contents": {"readme.md": readme}}}}},
            tools=TOOLS,
            reference=(calls,),
        )
        tasks.append(task)
    return tuple(tasks)


def make_chat_policy(folder: Path) -> None:
    """Warm-start a policy on the tasks' references (half a minute on one core) and write it to ``folder``."""
    from training.rollout.policy import save_policy
    from training.start_rows import StartSettings
    from training.warm_start import warm_start

    tasks = chat_tasks()
    schemas = [tool_schema(tool) for tool in BFCLEnvironment((CLASS,)).tools(TOOLS)]
    tokenizer = chat_tokenizer([json.dumps(schemas), *(task.model_dump_json() for task in tasks)])
    with TemporaryDirectory() as beside:
        untrained, file = Path(beside) / "untrained", Path(beside) / "learnt.jsonl"
        save_policy(untrained, make_model(tokenizer, POSITIONS, seed=0), tokenizer, None)
        write_jsonl(file, tasks)
        settings = StartSettings(passes=PASSES, learning_rate=3e-3, max_tokens=POSITIONS, device="cpu")
        warm_start(str(untrained), [file], folder, settings, report=lambda _: None)


def chat_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """Train byte-level BPE with Qwen's control tokens and chat template on ``texts``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    from trl.chat_template_utils import qwen3_instruct_2507_chat_template

    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    plain = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(controls) - len(plain),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_special_tokens([AddedToken(token) for token in controls])
    bpe.add_tokens([AddedToken(token, special=False) for token in plain])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        eos_token=controls[2],
        pad_token=controls[0],
        chat_template=qwen3_instruct_2507_chat_template,
    )
