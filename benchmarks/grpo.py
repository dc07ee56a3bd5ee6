"""Measures rollouts and a GRPO step against plain TRL.

Ours is RoundTrainer over the in-process sampler. Plain TRL is GRPOTrainer with ``environment_factory``, its own way to
act over several turns, and the same configuration, every rollout of the step in one batch as TRL does by default. A
step is one batch of rollouts, its loss with the KL term, and one update.

Both sides open the same BFCL tasks of one user turn, act in them with the same tiny chat policy on one thread, and are
scored by the official checker; prompts are equal id by id and only the policy's own tokens count. TRL allows one
trainer per process, hence a process for each side, measured in turn; one that waits uses no time.

With a ``model`` both act with that one, on the GPU where there is one, else on all cores, in bfloat16, half as many
tasks and micro-batches of a group. Further rows are then the memory that each side has needed, and the arithmetic of
learning, 6 operations for each parameter and token of all rows, over what the same device does in one large matrix
product: utilisation as it was measured, not of a data sheet.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.chat_policy import make_chat_policy
from benchmarks.measurement import Measurement, of_pairs
from environments.base import Record

OURS, TRL = "ours", "trl"
LEAST = 1.5  # times the sampled tokens per second of TRL's path
MOST = 0.8  # of the seconds of plain TRL's step

QUIET = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


class Figures(Record):
    """The samples of one side for one step, with wall seconds and CPU seconds of the process.

    ``rollout_*`` is everything from opening the episodes to their rewards; ``wall`` and ``cpu`` is all of the step.
    ``peak`` is the GiB that the process has needed so far, of the GPU where it has one.
    """

    rollouts: int
    successes: int
    sampled_tokens: int
    prompt_tokens: int
    rollout_wall: float
    rollout_cpu: float
    wall: float
    cpu: float
    peak: float
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
    figures = _interleaved(repeats, model)
    note = _what_was_sampled(figures)

    def rate(clock: str, figure: Callable[[Figures], float]) -> Measurement:
        name, compared = f"rollout phase, {clock}", "in-process sampler / TRL environment_factory"
        expected = f"at least {LEAST}"
        return of_pairs(name, compared, pairs(figure), "sampled tokens/s", expected, lambda ratio: ratio >= LEAST, note)

    def step(clock: str, figure: Callable[[Figures], float]) -> Measurement:
        name, compared = f"GRPO step, {clock}", "RoundTrainer over the sampler / GRPOTrainer with environment_factory"
        return of_pairs(name, compared, pairs(figure), "s", f"at most {MOST}", lambda ratio: ratio <= MOST, note)

    def pairs(figure: Callable[[Figures], float]) -> list[tuple[float, float]]:
        return [(figure(ours), figure(trl)) for ours, trl in zip(figures[OURS], figures[TRL], strict=True)]

    return [
        rate("wall clock", lambda taken: taken.sampled_tokens / taken.rollout_wall),
        rate("CPU time", lambda taken: taken.sampled_tokens / taken.rollout_cpu),
        step("wall clock", lambda taken: taken.wall),
        step("CPU time", lambda taken: taken.cpu),
        of_pairs(
            "GRPO step without rollouts, CPU time",
            "RoundTrainer / GRPOTrainer, each on its own rollouts",
            pairs(lambda taken: taken.cpu - taken.rollout_cpu),
            "s",
        ),
        *(
            []
            if model is None
            else [
                of_pairs(
                    "GRPO step, peak memory",
                    "RoundTrainer over the sampler / GRPOTrainer with environment_factory",
                    pairs(lambda taken: taken.peak),
                    "GiB",
                    note="weights, gradients and AdamW included",
                ),
                of_pairs(
                    "GRPO step without rollouts, utilisation",
                    "RoundTrainer / GRPOTrainer, of a matrix product's operations per second",
                    pairs(lambda taken: taken.utilisation),
                    "",
                    note=f"{model}; matrix product {figures[OURS][0].products / 1e12:.3g} TFLOP/s",
                ),
            ]
        ),
    ]


def _interleaved(repeats: int, model: str | None = None) -> dict[str, tuple[Figures, ...]]:
    """Measure both sides in turn ``repeats`` times, after one time that is not counted."""
    with TemporaryDirectory(prefix="benchmark-") as folder:
        policy = Path(model or Path(folder) / "chat-policy")
        if model is None:
            make_chat_policy(policy)
        threads = {"OMP_NUM_THREADS": "1" if model is None else str(os.cpu_count())}
        command = [sys.executable, "-m", "benchmarks.grpo_side"]
        given = [f"{repeats + 1}", *(["model"] if model is not None else [])]
        started = {
            side: subprocess.Popen(
                [*command, side, policy, Path(folder) / side, *given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | QUIET | threads,
            )
            for side in (OURS, TRL)
        }
        try:
            taken = [
                {side: Figures.model_validate_json(_answered(side, process)) for side, process in started.items()}
                for _ in range(repeats + 1)
            ]
        finally:
            for process in started.values():
                process.kill()
                process.communicate()
    lengths = {side: figures.prompt_tokens for side, figures in taken[0].items()}
    if len(set(lengths.values())) > 1:
        raise RuntimeError(f"the sides' prompts differ, so that their figures cannot be compared: {lengths} tokens")
    return {side: tuple(figures[side] for figures in taken[1:]) for side in (OURS, TRL)}


def _answered(side: str, process: subprocess.Popen[str]) -> str:
    """Make a side take a step; return its line. Raises RuntimeError when it ends early."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # its absence shows in the missing answer
        print("go", file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the side {side} ended early with status {process.wait()}: its output is above")
    return line


def _what_was_sampled(figures: dict[str, tuple[Figures, ...]]) -> str:
    """Return a note that shows how far both sides did the same work."""
    parts = []
    for side in (OURS, TRL):
        tokens = median(each.sampled_tokens for each in figures[side])
        success = sum(each.successes for each in figures[side]) / sum(each.rollouts for each in figures[side])
        parts.append(f"{side} {tokens:.0f} tokens (success {success:.2f})")
    one = figures[OURS][0]
    prompt = one.prompt_tokens / one.rollouts
    return f"{one.rollouts} rollouts of prompts of {prompt:.0f} tokens; sampled: {', '.join(parts)}"
