"""Measures sampling and learning with a language model of 135 M parameters against plain transformers.

Ours is the in-process sampler and the scoring of ``RoundTrainer``, in bfloat16 autocast over float32 weights. Plain is
``generate`` of the same model in bfloat16, all rows in one batch, and ``model(input_ids, labels=...)`` with a backward
pass in bfloat16 autocast, as ``Trainer`` does it. Both learn from the same rows, with one update of AdamW.

Rows are those of a step: groups of rollouts that share a prompt of random ids. All rows are equally long, so that plain
transformers computes no padding. Each side is a process of its own on all cores, measured in turn.

Where ``make vllm`` has installed vLLM's CPU build, it samples the same rows in bfloat16, in a third process
(``benchmarks.vllm_side``). It learns nothing.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.measurement import Measurement, interleaved, of_pairs
from environments.base import InputError, Record
from environments.checkout import ROOT
from training.rollout.sampling import Sampled, TokenPrompt

if TYPE_CHECKING:
    import torch

OURS, PLAIN, VLLM = "ours", "plain", "vllm"
MODEL = Path(".models/smollm2-135m")
FASTER = 3.0  # times the sampled tokens per second of generate
MOST = 6.0  # GiB of a process that samples and learns
ROWS = 4  # of plain learning at once: all of them take 20 GiB

VLLM_FOLDER = ROOT / ".venvs" / "vllm"


class Shape(Record):
    """The rows of a step: ``tasks`` groups of ``rollouts``, each ``prompt`` shared ids and ``new`` sampled ones."""

    tasks: int = 4
    rollouts: int = 8
    prompt: int = 400
    new: int = 48

    @property
    def rows(self) -> int:
        """Return the rows of a step."""
        return self.tasks * self.rollouts


class LanguageModelFigures(Record):
    """What one side did once: wall seconds of sampling and of learning, and the GiB that its process has needed.

    vLLM's side has the seconds of sampling alone.

    ``products`` are GFLOP/s of matrix products in a bfloat16 forward pass over 8 x 512 ids, the head left out.
    """

    sampling: float
    learning: float = 0.0
    peak: float = 0.0
    products: float = 0.0


def measure(repeats: int, model: str | None = None, shape: Shape | None = None) -> Sequence[Measurement]:
    """Measure tokens per second of sampling and of learning, and peak memory.

    ``model`` is the folder of a causal language model; None: MODEL. Raises InputError for a folder without a model,
    RuntimeError when a side ends early.
    """
    shape, path = shape or Shape(), model or str(MODEL)
    if not (Path(path) / "config.json").is_file():
        raise InputError(f"--model {path} has no config.json: run make model, or name a causal language model's folder")
    arguments = path, shape.model_dump_json()
    sides: dict[str, tuple[str, ...]]
    sides = {side: (sys.executable, "-m", "benchmarks.language_model", side, *arguments) for side in (OURS, PLAIN)}
    if any(VLLM_FOLDER.glob(".installed-*")):
        python, program = VLLM_FOLDER / "bin" / "python", Path(__file__).with_name("vllm_side.py")
        sides[VLLM] = (str(python), str(program), *arguments)
    # The first time is not counted.
    threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
    taken = interleaved(sides, threads, LanguageModelFigures, repeats + 1)[1:]
    pairs = [(each[OURS], each[PLAIN]) for each in taken]
    products = median(plain.products for _, plain in pairs)
    size = f"{shape.tasks} tasks x {shape.rollouts} rows, {shape.prompt} shared and {shape.new} new ids"
    note = f"{Path(path).name}, {os.cpu_count()} threads; {size}; bfloat16 prefill {products:.0f} GFLOP/s"
    learnt = shape.rows * (shape.prompt + shape.new)

    def sampled(one: LanguageModelFigures) -> float:
        return shape.rows * shape.new / one.sampling

    name, compared, unit = "language model, sampling", "in-process sampler / transformers generate", "sampled tokens/s"
    rows = [of_pairs(name, compared, pairs, sampled, unit, least=FASTER, note=note)]
    if VLLM in sides:
        name, compared = f"{name} beside vLLM", "in-process sampler / vLLM (its CPU build without compilation)"
        beside = [(each[OURS], each[VLLM]) for each in taken]
        rows.append(of_pairs(name, compared, beside, sampled, unit, note=note))
    compared = "scoring of RoundTrainer / model(input_ids, labels=), forward, backward and update"
    counted = f"{note}; all {learnt:,} tokens of the rows count, shared ones in each row"
    speed = of_pairs(
        "language model, learning", compared, pairs, lambda one: learnt / one.learning, "tokens/s", note=counted
    )
    compared = f"sampling and learning in one process, micro-batches of {shape.rollouts} rows / of {ROWS}"
    held = "weights, gradients and AdamW included, without a reference model"
    memory = of_pairs("language model, peak memory", compared, pairs, lambda one: one.peak, "GiB", note=held)
    met = max(own.peak for own, _ in pairs) <= MOST
    return [*rows, speed, memory.model_copy(update={"expected": f"ours at most {MOST:g} GiB", "met": met})]


class _Writer:
    """An episode of one message that has all its tokens."""

    stop_ids: frozenset[int] = frozenset()

    def __init__(self, prompt: list[int], new: int, seed: int) -> None:
        self.prompt = TokenPrompt(prompt, new)
        self.seed = seed
        self.written: list[int] = []

    def observe(self) -> TokenPrompt | None:
        return None if self.written else self.prompt

    def act(self, message: Sampled) -> None:
        self.written = message.ids


class _Side:
    """One side in its own process."""

    def __init__(self, side: str, path: str, shape: Shape) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.shape, self.ours = shape, side == OURS
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        def load(dtype: torch.dtype) -> Any:  # noqa: ANN401 - transformers has no types
            model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
            return model.to(self.device)

        self.model = load(torch.float32)
        self.rounded = None if self.ours else load(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-6)
        rng, last = random.Random(0), self.model.config.vocab_size
        self.prompts = [[rng.randrange(10, last) for _ in range(shape.prompt)] for _ in range(shape.tasks)]

    def figures(self) -> LanguageModelFigures:
        """Sample the rows of a step, and learn from them."""
        import torch

        began = self._now()
        rows = self._sampled() if self.ours else self._generated()
        sampled = self._now()
        self.model.train()
        size = self.shape.rollouts if self.ours else ROWS
        for start in range(0, len(rows), size):
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = self._loss(rows[start : start + size])
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        learnt = self._now()
        self.model.train(False)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated() / 2**30
        products = 0.0 if self.ours else self._products()
        return LanguageModelFigures(sampling=sampled - began, learning=learnt - sampled, peak=peak, products=products)

    def _now(self) -> float:
        """Return the time once the device has done its work."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _sampled(self) -> torch.Tensor:
        import torch

        from training.rollout.in_process import InProcessSampler

        writers = [
            _Writer(self.prompts[row // self.shape.rollouts], self.shape.new, row) for row in range(self.shape.rows)
        ]
        with torch.autocast(self.device.type, torch.bfloat16):
            InProcessSampler(self.model).run(writers, temperature=1.0, concurrency=self.shape.rows)
        return torch.tensor([writer.prompt.ids + writer.written for writer in writers], device=self.device)

    def _generated(self) -> torch.Tensor:
        import torch

        assert self.rounded is not None
        ids = torch.tensor(self.prompts, device=self.device).repeat_interleave(self.shape.rollouts, dim=0)
        length = {"max_new_tokens": self.shape.new, "min_new_tokens": self.shape.new}
        rows: torch.Tensor = self.rounded.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **length
        )
        return rows

    def _loss(self, rows: torch.Tensor) -> torch.Tensor:
        import torch

        from training.grpo.scoring import score_written

        loss: torch.Tensor
        if self.ours:
            everything = torch.ones_like(rows)
            written = everything[:, self.shape.prompt :]
            loss = -score_written(self.model, rows, everything, written, 1.0, entropy=True).logps.mean()
        else:
            loss = self.model(input_ids=rows, labels=rows, use_cache=False).loss
        return loss

    def _products(self) -> float:
        import torch

        assert self.rounded is not None
        backbone = self.rounded.base_model
        weights = sum(weight.numel() for weight in backbone.layers.parameters())
        ids = torch.arange(10, 522, device=self.device).expand(8, -1) % self.model.config.vocab_size
        with torch.inference_mode():
            began = self._now()
            backbone(ids, use_cache=False)
            return float(2 * weights * ids.numel() / (self._now() - began) / 1e9)


def _serve(side: str, path: str, shape: str) -> None:
    """Answer each line of the standard input with the figures of one measurement."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed belongs to the errors
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    measured = _Side(side, path, Shape.model_validate_json(shape))
    for _ in sys.stdin:
        print(measured.figures().model_dump_json(), file=answers, flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
