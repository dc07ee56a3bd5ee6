"""A sampler is injected: which one samples is chosen in one place."""

from __future__ import annotations

import re

import pytest
from support import ROOT

from training.rollout.sampling import EpisodeDriver, Sampler

CHOOSE = {"training/rollout/engines.py", "training/local_model.py"}  # for a policy, and for the local roles
ROOMS = ("agents", "environments", "evaluation", "graph", "memory", "training")


def test_only_the_choice_of_an_engine_names_a_sampler() -> None:
    naming = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\brollout(\.| import )in_process\b|\bInProcessSampler\b", path.read_text())
    }
    assert naming == CHOOSE | {"training/rollout/in_process.py"}


def test_a_sampler_without_weights_of_its_own_needs_no_more_than_run() -> None:
    class Silent(Sampler):
        def run(self, drivers: list[EpisodeDriver], *, temperature: float, concurrency: int) -> None:
            pass

    Silent().load_weights(3)

    class Nothing(Sampler):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Nothing()
