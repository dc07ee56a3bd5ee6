"""Tiny random models of real classes, and tokenizers with the real chat templates that TRL ships in its package."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

REAL = ("qwen2_5", "qwen3")
CALL_FORMATS = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_nothink", "llama3_1")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Added tokens that Qwen's tokenizers do not call special."""


def template(name: str) -> str:
    import trl.chat_template_utils as utils

    return (Path(utils.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()


@cache
def tokenizer(chat_template: str) -> PreTrainedTokenizerFast:
    """The tokenizer of few merges that tests share."""
    return new_tokenizer(chat_template)


def new_tokenizer(chat_template: str, texts: Sequence[str] = (), size: int = 320) -> PreTrainedTokenizerFast:
    """Bytes with merges, NFC and pre-tokens like Qwen's, and the control tokens of Qwen and Llama 3.

    Merges are learnt from a few words of a conversation and from ``texts``, up to ``size`` tokens.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    # The pre-tokenizer of Qwen2 and Qwen3, whose merges reach over the borders of template and content.
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    words += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(Regex(words), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    corpus = ['user\nassistant\n{"name": "x", "arguments": {"a": "b"}}\n', '"}\n', "\n\n", "]\n", "function tool"] * 3
    made.train_from_iterator(
        [*corpus, *texts], trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL + LLAMA])
    made.add_tokens([AddedToken(text, normalized=False) for text in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|eot_id|>" if "<|eot_id|>" in chat_template else "<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token="<|endoftext|>",
        chat_template=chat_template,
    )


def save_model(folder: Path, name: str, *, layers: int = 1, initializer_range: float = 0.02) -> Path:
    """A random Qwen2 or Qwen3 policy of real configuration class with the real template ``name``."""
    known = tokenizer(template(name))
    return save(folder, random_model(name, known, layers=layers, initializer_range=initializer_range), known)


def random_model(name: str, known: Sized = (), seed: int = 0, layers: int = 1, **shape: object) -> PreTrainedModel:
    """A random Llama, Qwen2 or Qwen3 for the vocabulary of ``known``; ``shape`` is of its configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = name if name == "llama" else name[: len("qwen2")]
    given = {
        "vocab_size": -(-len(known) // 64) * 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32768,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        **({"head_dim": 16} if kind == "qwen3" else {}),
    }
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **given | shape))


def save(folder: Path, model: PreTrainedModel, known: PreTrainedTokenizerFast) -> Path:
    """Save a policy as its makers do: messages end with either of Qwen's two stop tokens."""
    from transformers import GenerationConfig

    model.save_pretrained(folder)
    known.save_pretrained(folder)
    stops = known.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    GenerationConfig(eos_token_id=stops, pad_token_id=known.pad_token_id).save_pretrained(folder)
    return folder
