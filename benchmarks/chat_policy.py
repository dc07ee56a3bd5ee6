"""A tiny policy in Qwen3's own chat format that calls file-system tools, and the tasks that it half knows.

It exists to be sampled: a random policy would end every episode at once. Its shape is that of recipes/starter, its
template the one that Qwen3-Instruct-2507 ships, its tools three of BFCL's with their documentation.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.base import ToolCall
from environments.bfcl.environment import BFCLEnvironment
from memory.records import Task
from training.embedded.new_policy import VOCABULARY, make_model
from training.rendering.tool_calls import tool_schema
from training.rollout.episodes import TokenRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[Any, Any]

CLASS = "GorillaFileSystem"
TOOLS = ("cat", "mkdir", "touch")
UPDATES = 120
BATCH = 4

_FOLDERS = ("archive", "drafts", "photos", "letters")
_FILES = ("notes.txt", "plan.txt", "todo.txt", "list.txt")
_SAID = "Done."


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
    schemas = [tool_schema(tool) for tool in BFCLEnvironment((CLASS,)).tools(TOOLS)]
    teach_chat_policy(folder, [_conversation(task) for task in chat_tasks()], schemas)


def teach_chat_policy(
    folder: Path, conversations: Sequence[list[Message]], schemas: list[Message], updates: int = UPDATES
) -> None:
    """Warm-start a policy on what the assistant says in ``conversations``, and write it to ``folder``."""
    import torch

    from training.rollout.policy import save_policy
    from training.supervised import Learning, learn

    torch.set_num_threads(1)
    tokenizer = _tokenizer(conversations, schemas)
    model = make_model(tokenizer, positions=2048, seed=0)
    rows = _rows(tokenizer, conversations, schemas)
    drawn = random.Random(0)
    batches = [drawn.choices(rows, k=BATCH) for _ in range(updates)]
    deque(learn(model, batches, Learning(3e-3)), maxlen=0)
    save_policy(folder, model, tokenizer, None)


def _conversation(task: Task) -> list[Message]:
    """Return the reference as messages, with the environment's observations."""
    episode = BFCLEnvironment((CLASS,)).open(task)
    messages: list[Message] = [{"role": "user", "content": episode.start().text}]
    for call in task.reference[0]:
        function = {"name": call.name, "arguments": call.arguments}
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        )
        messages.append({"role": "tool", "content": episode.step(call).text})
    episode.close()
    return [*messages, {"role": "assistant", "content": _SAID}]


def _tokenizer(conversations: Sequence[list[Message]], schemas: list[Message]) -> PreTrainedTokenizerBase:
    """Train byte-level BPE with Qwen's control tokens on the conversations and one copy of the schemas."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    from trl.chat_template_utils import qwen3_instruct_2507_chat_template

    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    plain = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    texts = [json.dumps(messages, ensure_ascii=False) for messages in [*conversations, schemas]]
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


def _rows(
    tokenizer: PreTrainedTokenizerBase, conversations: Sequence[list[Message]], schemas: list[Message]
) -> list[TokenRow]:
    """Return the conversations by token ids, with a mask of 1 on the assistant's."""
    from trl.chat_template_utils import qwen3_instruct_2507_training_chat_template

    rows: list[Any] = [
        tokenizer.apply_chat_template(
            messages,
            tools=list(schemas),
            chat_template=qwen3_instruct_2507_training_chat_template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        for messages in conversations
    ]
    return [TokenRow([], list(row["input_ids"]), [], list(row["assistant_masks"])) for row in rows]
