"""A policy on disk and in memory: model, tokenizer and the rendering that they were trained with.

A folder that this project wrote names its rendering in ``coevolve.json``; any other model speaks its own chat template.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from environments.base import InputError, Record
from memory.run import read_json, write_json
from training.compact_text import CompactSettings
from training.rendering import Rendering

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CARD = "coevolve.json"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class PolicyCard(Record):
    """``coevolve.json``: the rendering that a policy was trained with, and the caps of the compact one."""

    rendering: Literal["compact", "chat_template"]
    compact: CompactSettings | None = None


@dataclass(frozen=True)
class Policy:
    """A loaded policy. ``path`` is where it came from; ``card`` is None for a model that this project did not write."""

    path: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    rendering: Rendering
    card: PolicyCard | None


def load_policy(path: str, device: str = "auto", dtype: str = "float32") -> Policy:
    """Load the folder or hub id ``path``; ``device`` auto takes a GPU if there is one.

    Raises InputError for a path that is neither, a folder without a model, a model that is no causal language model,
    or one without a chat template or ``coevolve.json``.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    name = "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device cuda was asked for and this machine has none: set the device to auto or cpu")
    _check_exists(path)
    card, tokenizer, rendering = load_rendering(path)
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} holds no causal language model: {_first_line(error)}") from error
    torch.nn.Module.to(model, torch.device(name))
    model.train(False)
    return Policy(path, model, tokenizer, rendering, card)


def load_rendering(path: str) -> tuple[PolicyCard | None, PreTrainedTokenizerBase, Rendering]:
    """The card, tokenizer and rendering of the policy at ``path``, without its weights. Raises like ``load_policy``."""
    from transformers import AutoTokenizer

    _check_exists(path)
    card = read_json(Path(path) / CARD, PolicyCard) if (Path(path) / CARD).is_file() else None
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} holds no tokenizer: {_first_line(error)}") from error
    if card is not None and card.rendering == "compact":
        from training.compact import CompactRendering

        return card, tokenizer, CompactRendering(tokenizer, card.compact or CompactSettings())
    from training.chat_template import ChatTemplateRendering

    return card, tokenizer, ChatTemplateRendering(tokenizer)


def save_policy(
    path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, card: PolicyCard | None
) -> None:
    """Write a policy that ``load_policy`` reads; the card says how to render for it."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    if card is not None:
        write_json(path / CARD, card)


def _check_exists(path: str) -> None:
    """A hub id is only asked for where it cannot be a mistyped folder."""
    folder = Path(path)
    if folder.is_dir():
        return
    if folder.exists():
        raise InputError(f"{path} is a file: name the policy's folder")
    beside_folders = folder.parent.is_dir() and folder.parent != Path(".")
    if beside_folders or not _HUB_ID.fullmatch(path):
        raise InputError(
            f"the policy {path} does not exist: name a folder or a hub id, or make a starter with "
            "python -m training.warm_start"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
