"""Measures a GRPO step against plain TRL: both phases together, and the optimisation of equal rollouts alone.

Plain TRL is GRPOTrainer with ``environment_factory`` and the same configuration, every rollout of the step in one
batch as TRL does by default. A step is one batch of rollouts, its loss with the KL term, and one update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.grpo_sides import OUR_ROLLOUTS, OURS, TRL, Figures, interleaved, what_was_sampled
from benchmarks.measurement import Measurement, Pair, of_pairs

__all__ = ["measure"]

MOST = 0.8  # of plain TRL's seconds


def measure(repeats: int) -> Sequence[Measurement]:
    """Measure wall and CPU seconds of a step, and CPU seconds of the optimisation of equal rollouts."""
    figures = interleaved("step", (OURS, TRL, OUR_ROLLOUTS), repeats)

    def row(name: str, compared: str, other: str, seconds: Callable[[Figures], float], expected: bool) -> Measurement:
        pairs = [Pair(seconds(one), seconds(two)) for one, two in zip(figures[OURS], figures[other], strict=True)]
        if not expected:
            return of_pairs(name, compared, pairs, "s")
        note = what_was_sampled(figures)
        return of_pairs(name, compared, pairs, "s", f"at most {MOST}", lambda ratio: ratio <= MOST, note)

    step = "RoundTrainer over the sampler / GRPOTrainer with environment_factory"
    alone = "RoundTrainer / GRPOTrainer, both on the sampler's rollouts with equal seeds"
    return [
        row("GRPO step, wall clock", step, TRL, lambda taken: taken.wall, expected=True),
        row("GRPO step, CPU time", step, TRL, lambda taken: taken.cpu, expected=True),
        row("optimisation alone, CPU time", alone, OUR_ROLLOUTS, lambda taken: taken.cpu - taken.rollout_cpu, False),
    ]
