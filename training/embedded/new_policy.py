"""Make the tiny embedded policy, untrained: a tokenizer for the tools of given tasks, and a small Qwen3 (ours).

The tokenizer is byte-level BPE with the structure of the pointer-copy rendering as single tokens: the line starts,
``A @function``, `` @parameter=``, the pointers ``$1``, ``$2`` and so on, and the documented constants (only as whole
words: "on" inside "front" stays text). The other tokens are learnt from rendered lines. The model writes a tool's name
or a value as one token, so it does not need to learn to spell. ``training.warm_start`` teaches it the references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from environments.base import Environment, ToolSpec
from environments.registry import benchmark_of
from memory.jsonl import derive_seed
from memory.records import Task
from training.embedded.compact import (
    CALL,
    END,
    LINE,
    CompactRendering,
    CompactSettings,
    CompactText,
    constants_of,
    cue_words,
)
from training.rendering.base import EndTurn
from training.rollout.policy import Policy, PolicyCard, chosen_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

EMBEDDED = "embedded"
"""The name of the policy, in place of a path."""

VOCABULARY = 1024
"""Tokens of the tokenizer, more where the tools leave no room for merges."""

PAD = "<pad>"
_SPLIT = r" ?[A-Za-z_]+| ?[^\sA-Za-z0-9_]|[0-9]|\s"
_MIN_MERGES = 64
_CORPUS_TASKS = 2000
_PROBED_TASKS = 500


def new_policy(
    environment: Environment, tasks: Sequence[Task], positions: int, seed: int, device: str = "cpu", **shape: int
) -> Policy:
    """Return an untrained policy for the tools of ``tasks``.

    ``positions``: tokens of one episode at most. ``seed`` draws the weights, ``shape`` is that of ``make_model``.
    """
    import torch

    compact = CompactSettings(**benchmark_of(environment).exploration.compact.model_dump())
    names = {name for task in tasks for some in (task.tools, *task.withheld.values()) for name in some}
    several = [task for task in tasks if len(task.reference[0]) > 1][:_PROBED_TASKS]
    # Without their first calls others fail: errors are part of what a policy reads.
    cut = [task.model_copy(update={"reference": (task.reference[0][1:], *task.reference[1:])}) for task in several]
    lines = [line for task in (*tasks[:_CORPUS_TASKS], *cut) for line in reference_lines(environment, task, compact)]
    tokenizer = train_tokenizer(lines, environment.tools(sorted(names)), compact)
    model = make_model(tokenizer, positions, seed, **shape)
    torch.nn.Module.to(model, chosen_device(device))
    model.train(False)
    card = PolicyCard(rendering="compact", compact=compact)
    return Policy(EMBEDDED, model, tokenizer, CompactRendering(tokenizer, compact), card)


def reference_lines(environment: Environment, task: Task, compact: CompactSettings) -> Iterator[str]:
    """Replay the task's reference and yield what a policy reads and writes, line by line."""
    text = CompactText(compact)
    with closing(environment.open(task)) as episode:
        turn = episode.start()
        for calls in task.reference:
            text.know(environment.tools(turn.tools))
            yield text.user(turn)
            for call in calls:
                yield text.action(call)
                yield text.observation(episode.step(call))
            yield text.action(EndTurn())
            following = episode.end_turn()
            if following is None:
                return
            turn = following


def make_model(
    tokenizer: PreTrainedTokenizerBase, positions: int, seed: int, hidden: int = 128, layers: int = 3
) -> PreTrainedModel:
    """Make a Qwen3 model of this shape, with room for the tokenizer's tokens, and weights drawn from the seed."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        intermediate_size=2 * hidden,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "warm_start", "weights"))
        return Qwen3ForCausalLM(config)


def structure_tokens(tools: Sequence[ToolSpec], settings: CompactSettings) -> tuple[str, ...]:
    """Return the tokens of the rendering itself, in a fixed order."""
    parameters = sorted({parameter.name for tool in tools for parameter in tool.parameters})
    return (
        *(f"${number}" for number in range(1, settings.references + 1)),
        PAD,
        LINE,
        "U ",
        "O ",
        END,
        *(f"{CALL}{name}" for name in sorted(tool.name for tool in tools)),
        *(f" @{name}=" for name in parameters),
        *(cue_words() if settings.cues else ()),
    )


def train_tokenizer(
    lines: Iterable[str], tools: Sequence[ToolSpec], settings: CompactSettings, vocabulary: int = VOCABULARY
) -> PreTrainedTokenizerFast:
    """Train a transformers tokenizer of ``vocabulary`` tokens on rendered lines and tool documentation.

    Deterministic. It has more tokens where the structure and the 256 bytes leave no room for merges.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    structure = structure_tokens(tools, settings)
    constants = (*sorted(frozenset().union(*map(constants_of, tools))), "true", "false", "null")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocabulary - len(structure) - len(constants), len(alphabet) + _MIN_MERGES),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=alphabet,
    )
    longest_first = sorted((*structure, *constants), key=lambda token: (-len(token), token))
    cut = re.compile("|".join(rf"\b{re.escape(t)}\b" if t.isidentifier() else re.escape(t) for t in longest_first))
    texts = (*lines, *(tool.description for tool in tools))
    # The text between the fixed tokens alone, so that no merge is spent on them.
    tokenizer.train_from_iterator((piece for text in texts for piece in cut.split(text) if piece), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in structure])
    tokenizer.add_tokens([AddedToken(token, normalized=False, single_word=True) for token in constants])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=LINE, clean_up_tokenization_spaces=False
    )
