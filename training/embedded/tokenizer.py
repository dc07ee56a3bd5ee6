"""The tiny policy's own tokenizer: byte-level BPE with the structure of the pointer-copy rendering as single tokens.

Single tokens are the line starts, ``A @function``, `` @parameter=``, the pointers ``$1``, ``$2`` and so on, and the
documented constants (only as whole words: "on" inside "front" stays text). The other tokens are learnt from rendered
lines. Our choice: the model writes a tool's name or a value as one token, so it does not need to learn to spell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from environments.base import InputError, ToolSpec
from training.embedded.compact_text import CALL, END, LINE, CompactSettings, constants_of, cue_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD = "<pad>"
_SPLIT = r" ?[A-Za-z_]+| ?[^\sA-Za-z0-9_]|[0-9]|\s"
_MIN_MERGES = 64


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
    lines: Iterable[str], tools: Sequence[ToolSpec], settings: CompactSettings, vocabulary: int
) -> PreTrainedTokenizerFast:
    """Train a transformers tokenizer of at most ``vocabulary`` tokens on rendered lines and tool documentation.

    Deterministic. Raises InputError when ``vocabulary`` is too small for the structure and the 256 bytes.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    structure = structure_tokens(tools, settings)
    constants = (*sorted(frozenset().union(*map(constants_of, tools))), "true", "false", "null")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fixed = len(structure) + len(constants) + len(alphabet)
    if vocabulary < fixed + _MIN_MERGES:
        raise InputError(
            f"a vocabulary of {vocabulary} has no room for {len(tools)} tools: use {fixed + _MIN_MERGES} or more"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(structure) - len(constants),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=alphabet,
    )
    tokenizer.train_from_iterator(_plain_pieces(lines, tools, (*structure, *constants)), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in structure])
    tokenizer.add_tokens([AddedToken(token, normalized=False, single_word=True) for token in constants])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=LINE, clean_up_tokenization_spaces=False
    )


def _plain_pieces(lines: Iterable[str], tools: Sequence[ToolSpec], tokens: Sequence[str]) -> Iterable[str]:
    """Yield the text between the fixed tokens, so that no merge is spent on them."""
    longest_first = sorted(tokens, key=lambda token: (-len(token), token))
    cut = re.compile("|".join(rf"\b{re.escape(t)}\b" if t.isidentifier() else re.escape(t) for t in longest_first))
    for text in (*lines, *(tool.description for tool in tools)):
        yield from filter(None, cut.split(text))
