"""A tiny policy in Qwen3's own chat format that calls file-system tools, and the tasks that it half knows.

It exists to be sampled: a random policy would end every episode at once. Its shape is that of recipes/starter, its
template the one that Qwen3-Instruct-2507 ships, its tools three of BFCL's with their documentation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from environments.base import ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from memory.jsonl import write_jsonl
from memory.records import Task
from training.embedded.new_policy import VOCABULARY, make_model
from training.rendering.tool_calls import tool_schema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLASS = "GorillaFileSystem"
TOOLS = ("cat", "mkdir", "touch")
PASSES = 40
POSITIONS = 2048

_FOLDERS = ("archive", "drafts", "photos", "letters")
_FILES = ("notes.txt", "plan.txt", "todo.txt", "list.txt")


def chat_tasks() -> tuple[Task, ...]:
    """Return eight tasks of one user turn and two or three calls each."""
    return tuple(_task(number, *_request(number)) for number in range(8))


def _request(number: int) -> tuple[str, tuple[ToolCall, ...]]:
    folder, file = _FOLDERS[number // 2], _FILES[number // 2]
    make = ToolCall(name="mkdir", arguments={"dir_name": folder})
    touch = ToolCall(name="touch", arguments={"file_name": file})
    read = ToolCall(name="cat", arguments={"file_name": "readme.md"})
    if number % 2:
        return f'Create the folder "{folder}" and the file "{file}", then show "readme.md".', (make, touch, read)
    return f'Show what "readme.md" says, then create the folder "{folder}".', (read, make)


def _task(number: int, text: str, calls: tuple[ToolCall, ...]) -> Task:
    readme = {"type": "file", "content": "Keep this folder tidy."}
    root = {"type": "directory", "contents": {"readme.md": readme}}
    return Task(
        id=f"benchmark-{number}",
        origin="seed",
        environment="bfcl",
        split="train",
        classes=(CLASS,),
        turns=(text,),
        initial_state={CLASS: {"root": {"home": root}}},
        tools=TOOLS,
        reference=(calls,),
    )


def make_chat_policy(folder: Path) -> None:
    """Warm-start a policy on the tasks' references (half a minute on one core) and write it to ``folder``."""
    from training.rollout.policy import save_policy
    from training.warm_start import StartSettings, warm_start

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
