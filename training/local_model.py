"""Run the language model of the local roles: its two adapters, the in-process sampler, one call at a time (ours).

A folder of adapters ships with the project, or is of `python -m training.roles`. Import this module late: it needs
torch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from peft import PeftModel
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from environments.base import InputError
from environments.checkout import ROOT
from environments.turn_lines import WORDS
from training.policy_files import ADAPTER, check_folder, read_adapter
from training.rollout.in_process import InProcessSampler
from training.rollout.policy import fetched, policy_folder
from training.rollout.sampling import Sampled, TokenPrompt

Adapter = Literal["writer", "reader", "untaught"]

ADAPTERS = ("writer", "reader")

_TOGETHER = 8  # texts that are scored at once
_ROWS = 16  # texts that are written at once
_LONGEST = 1024  # tokens of a prompt, from its end


def adapters_folder(path: str) -> Path:
    """Return the folder of the two adapters; one of the checkout's has its name everywhere. Raises InputError."""
    given = Path(path)
    folder = ROOT / given if not given.is_absolute() and (ROOT / given).is_dir() else given
    for name in ADAPTERS:
        if not (folder / name / ADAPTER).is_file():
            raise InputError(
                f"roles.local.adapters: {folder / name} holds no adapter: make one with python -m training.roles --out "
                f"{path}"
            )
    return folder


def check_local(model: str, adapters: str) -> None:
    """Raise InputError unless the model and both adapters are there, and belong together."""
    folder = adapters_folder(adapters)
    place = fetched(policy_folder(model))
    check_folder(place)
    for name in ADAPTERS:
        read_adapter(folder / name)


class _Text:
    """One text that is written: a prompt, and what was sampled after it."""

    def __init__(self, ids: list[int], seed: int, stop_ids: frozenset[int], most: int) -> None:
        self.seed = seed
        self.stop_ids = stop_ids
        self.ids: list[int] = []
        self._prompt: TokenPrompt | None = TokenPrompt(ids, most)

    def observe(self) -> TokenPrompt | None:
        return self._prompt

    def act(self, message: Sampled) -> None:
        self._prompt = None
        self.ids = [one for one in message.ids if one not in self.stop_ids]


class AdaptedModel:
    """A causal language model with the adapters ``writer`` and ``reader``."""

    def __init__(self, model: str, adapters: str, threads: int) -> None:
        """Load it. Raises InputError like ``check_local``, and for an adapter of another model."""
        folder = adapters_folder(adapters)
        check_local(model, adapters)
        place = fetched(policy_folder(model), with_weights=True)
        torch.set_num_threads(threads)
        self._tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        base = AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
        try:
            wrapped = PeftModel.from_pretrained(base, str(folder / "writer"), adapter_name="writer")
            wrapped.load_adapter(str(folder / "reader"), adapter_name="reader")
        except Exception as error:
            raise InputError(
                f"roles.local.adapters: {folder} does not fit {model}: {str(error).partition('.')[0]}"
            ) from error
        self._wrapped = wrapped.eval()
        self._model = base
        self._lock = threading.Lock()
        words = self._tokenizer(WORDS, add_special_tokens=False).input_ids
        end = self._tokenizer.eos_token_id
        self._end = frozenset([end])
        # The user's words are not written where calls are asked for.
        self._end_of_calls = frozenset([end, words[0]])

    @contextmanager
    def _as(self, adapter: Adapter) -> Iterator[None]:
        with self._lock:
            if adapter == "untaught":
                with self._wrapped.disable_adapter():
                    yield
            else:
                self._wrapped.set_adapter(adapter)
                yield

    def write(
        self, prompts: Sequence[str], seeds: Sequence[int], adapter: Adapter, *, temperature: float, most: int
    ) -> list[str]:
        """Return a continuation of each prompt: to the model's end, to the line of the words, or of ``most`` tokens."""
        texts = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            ids = self._ids(prompt)[-_LONGEST:]
            texts.append(_Text(ids, seed, self._end if prompt.endswith(WORDS) else self._end_of_calls, most))
        with self._as(adapter):
            InProcessSampler(self._model).run(texts, temperature=temperature, concurrency=_ROWS)
        return [str(self._tokenizer.decode(text.ids)) for text in texts]

    @torch.no_grad()
    def likelihood(self, texts: Sequence[tuple[str, str]], adapter: Adapter) -> list[float]:
        """Return the mean log-probability of the tokens of each answer after its prompt, in nats."""
        rows = [(self._ids(prompt)[-_LONGEST:], self._ids(answer)) for prompt, answer in texts]
        found: list[float] = []
        with self._as(adapter):
            for start in range(0, len(rows), _TOGETHER):
                found += self._scored(rows[start : start + _TOGETHER])
        return found

    def _scored(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        padded = pad_sequence([torch.tensor([*prompt, *answer]) for prompt, answer in rows], batch_first=True)
        logits = self._model(input_ids=padded, use_cache=False).logits
        means = []
        for row, (prompt, answer) in enumerate(rows):
            chosen = logits[row, len(prompt) - 1 : len(prompt) + len(answer) - 1].log_softmax(-1)
            means.append(float(chosen.gather(1, torch.tensor(answer)[:, None]).mean()))
        return means

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids
