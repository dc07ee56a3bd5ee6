"""Measures the work of one side of a comparison, which waits for its turn."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import IO

from benchmarks.grpo_sides import Figures
from memory.processes import ORPHANED

__all__ = ["Meter"]


class Meter:
    """Waits for a line before the work, and reports its duration after it."""

    def __init__(self, commands: IO[str], answers: IO[str]) -> None:
        self.answers = answers
        self.turns: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._listen, args=(commands,), daemon=True).start()
        self.begin()

    def _listen(self, commands: IO[str]) -> None:
        """Queue the parent's lines; without a parent this process ends at once, in the middle of its work too."""
        for line in commands:
            self.turns.put(line)
        os._exit(ORPHANED)

    def begin(self) -> None:
        """Begin the measurement."""
        self.rollouts = self.successes = self.sampled_tokens = self.prompt_tokens = 0
        self.rollout_wall = self.rollout_cpu = 0.0
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def wait(self) -> None:
        """Wait for the parent, then begin."""
        self.turns.get()
        self.begin()

    @contextmanager
    def rolling_out(self) -> Iterator[None]:
        """Count the time inside as rollouts."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.rollout_wall += time.perf_counter() - wall
        self.rollout_cpu += time.process_time() - cpu

    def count(self, prompt_ids: Sequence[Sequence[int]], mask: Sequence[Sequence[int]]) -> None:
        """Add rollouts: their prompts, and masks that are 1 where a token was sampled."""
        self.rollouts += len(prompt_ids)
        self.prompt_tokens += sum(map(len, prompt_ids))
        self.sampled_tokens += sum(map(sum, mask))

    def record(self) -> None:
        """Answer the parent."""
        figures = Figures(
            rollouts=self.rollouts,
            successes=self.successes,
            sampled_tokens=self.sampled_tokens,
            prompt_tokens=self.prompt_tokens,
            rollout_wall=self.rollout_wall,
            rollout_cpu=self.rollout_cpu,
            wall=time.perf_counter() - self.wall,
            cpu=time.process_time() - self.cpu,
        )
        print(figures.model_dump_json(), file=self.answers, flush=True)
