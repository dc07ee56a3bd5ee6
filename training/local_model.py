"""Run the language models of the local roles: two adapters, the in-process sampler, one call at a time (ours).

A folder of adapters ships with the project, or is of `python -m training.roles`. Import this module late: it needs
torch.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from environments.base import InputError
from environments.checkout import ROOT
from environments.turn_lines import WORDS, Adapter, Direction
from memory.files import sha256_of
from memory.run import read_json
from training.policy_files import ADAPTER, ADAPTER_WEIGHTS, check_folder
from training.roles import RECORD, RoleRecord
from training.rollout.in_process import InProcessSampler, shared_length
from training.rollout.policy import adapter_base, fetched, load_adapter, load_policy
from training.rollout.sampling import Sampled, TokenPrompt

ADAPTERS: tuple[Direction, ...] = get_args(Direction)

_TOGETHER = 8  # texts that are scored at once
_ROWS = 16  # texts that are written at once
_LONGEST = 1024  # tokens of a prompt, from its end


def adapters_folder(path: str) -> Path:
    """Return the folder of the two adapters; one of the checkout's has its name everywhere. Raises InputError."""
    given = Path(path)
    folder = ROOT / given if not given.is_absolute() and (ROOT / given).is_dir() else given
    for file in (folder / name / part for name in ADAPTERS for part in (ADAPTER, ADAPTER_WEIGHTS, RECORD)):
        if not file.is_file():
            raise InputError(
                f"roles.local.adapters: {file.parent} holds no {file.name}: make adapters with python -m "
                f"training.roles --out {path}"
            )
    return folder


def check_local(adapters: str) -> tuple[Path, str]:
    """Return the folder of the two adapters, and the model that they name.

    Raises InputError where one of them is not there, or cannot be used, for weights that its record does not have, and
    for adapters of two models.
    """
    folder = adapters_folder(adapters)
    writer, reader = (str(adapter_base(str(folder / name))) for name in ADAPTERS)
    if writer != reader:
        raise InputError(f"roles.local.adapters: {folder} has adapters of two models, {writer} and {reader}")
    for name in ADAPTERS:
        check_weights(folder / name)
    check_folder(fetched(writer))
    return folder, writer


def check_weights(folder: Path) -> RoleRecord:
    """Return the record of an adapter. Raises InputError where it is of other weights."""
    record = read_json(folder / RECORD, RoleRecord)
    if sha256_of(folder / ADAPTER_WEIGHTS) != record.weights_sha256:
        raise InputError(
            f"roles.local.adapters: {folder}: {ADAPTER_WEIGHTS} is not the file that {RECORD} records: restore both "
            "from one copy"
        )
    return record


class _Text:
    """One text that is written: a prompt, and what was sampled after it."""

    def __init__(self, ids: list[int], seed: int, stop_ids: frozenset[int], most: int) -> None:
        self.seed = seed
        self.stop_ids = stop_ids
        self.ids: list[int] = []
        self.likelihood = 0.0
        self._prompt: TokenPrompt | None = TokenPrompt(ids, most)

    def observe(self) -> TokenPrompt | None:
        return self._prompt

    def act(self, message: Sampled) -> None:
        self._prompt = None
        self.ids = message.ids
        self.likelihood = sum(message.logprobs) / len(message.logprobs)


class AdaptedModel:
    """A causal language model with the adapters ``writer`` and ``reader``."""

    def __init__(self, adapters: str) -> None:
        """Load it as a policy is loaded. Raises InputError like ``check_local`` and ``load_policy``."""
        folder, base = check_local(adapters)
        policy = load_policy(base, "cpu")
        self._tokenizer = policy.tokenizer
        self._models: dict[Adapter, PreTrainedModel] = {"untaught": policy.model}
        for name in ADAPTERS:
            # Each adapter is merged into a copy: layers beside layers would cost a third of the time of every token.
            adapted: Any = load_adapter(copy.deepcopy(policy.model), str(folder / name))
            self._models[name] = adapted.merge_and_unload().eval()
        end = policy.tokenizer.eos_token_id
        # The user's words are one line, and are not written where calls are asked for.
        self._end_of_words = frozenset([end, *self._ids("\n")])
        self._end_of_calls = frozenset([end, self._ids(WORDS)[0]])
        self._lock = threading.Lock()

    def write(
        self, prompts: Sequence[str], seeds: Sequence[int], adapter: Adapter, *, temperature: float, most: int
    ) -> list[tuple[str, float]]:
        """Return a continuation of each prompt, and the mean log-probability of its tokens as they were drawn.

        It ends where the model ends it, at the line of the words where calls are asked for, or after ``most`` tokens.
        """
        read = {prompt: self._ids(prompt)[-_LONGEST:] for prompt in dict.fromkeys(prompts)}
        texts = [
            _Text(read[prompt], seed, self._end_of_words if prompt.endswith(WORDS) else self._end_of_calls, most)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        with self._lock:
            InProcessSampler(self._models[adapter]).run(texts, temperature=temperature, concurrency=_ROWS)
        written = ([one for one in text.ids if one not in text.stop_ids] for text in texts)
        return [(str(self._tokenizer.decode(ids)), text.likelihood) for ids, text in zip(written, texts, strict=True)]

    @torch.no_grad()
    def likelihood(self, texts: Sequence[tuple[str, str]], adapter: Adapter) -> list[float]:
        """Return the mean log-probability of the tokens of each answer after its prompt, in nats."""
        rows = [(self._ids(prompt)[-_LONGEST:], self._ids(answer)) for prompt, answer in texts]
        found: list[float] = []
        with self._lock:
            for start in range(0, len(rows), _TOGETHER):
                found += self._scored(self._models[adapter], rows[start : start + _TOGETHER])
        return found

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    @staticmethod
    def _scored(model: PreTrainedModel, rows: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        # What all prompts begin with is most of the tokens, and goes through the model once.
        shared = min(shared_length(rows[0][0], prompt) for prompt, _ in rows)
        shared = max(0, min(shared, *(len(prompt) - 1 for prompt, _ in rows)))
        cache = None
        if shared and len(rows) > 1:
            begun = model(input_ids=torch.tensor([rows[0][0][:shared]]), use_cache=True, logits_to_keep=1)
            cache = begun.past_key_values
            cache.batch_repeat_interleave(len(rows))
            rows = [(prompt[shared:], answer) for prompt, answer in rows]
        padded = pad_sequence([torch.tensor([*prompt, *answer]) for prompt, answer in rows], batch_first=True)
        first = min(len(prompt) for prompt, _ in rows) - 1
        kept = padded.shape[1] - first
        logits = model(input_ids=padded, past_key_values=cache, use_cache=cache is not None, logits_to_keep=kept).logits
        means = []
        for row, (prompt, answer) in enumerate(rows):
            start = len(prompt) - 1 - first
            chosen = logits[row, start : start + len(answer)].log_softmax(-1)
            means.append(float(chosen.gather(1, torch.tensor(answer)[:, None]).mean()))
        return means
