"""A sampler that writes given texts, one per message, in every episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from training.rollout.sampling import EpisodeDriver, Sampled, Sampler


class ScriptedSampler(Sampler):
    """Writes ``texts`` through ``encode``; a text longer than its room is cut off. Notes the versions of weights."""

    def __init__(self, encode: Callable[[str], list[int]], *texts: str) -> None:
        self.encode = encode
        self.texts = texts
        self.versions: list[int] = []

    def run(self, drivers: Sequence[EpisodeDriver], *, temperature: float, concurrency: int) -> None:
        for driver in drivers:
            context = 0
            for text in self.texts:
                prompt = driver.observe()
                if prompt is None:
                    break
                context += len(prompt.ids)
                ids = self.encode(text)[: prompt.max_new_tokens]
                driver.act(Sampled(ids, [-1.0] * len(ids), context))
                context += len(ids)

    def load_weights(self, version: int) -> None:
        self.versions.append(version)
