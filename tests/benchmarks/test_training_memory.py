"""The plan of memory against a real round of the smallest policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.training_memory import SIZES, above_imports, measured_round, planned


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.long
def test_the_plan_is_near_the_memory_of_a_round(tmp_path: Path) -> None:
    # Large enough that activations, 0.3 GiB, exceed what allocators keep, and small enough for a few CPU seconds.
    settings, used = measured_round(
        tmp_path,
        SIZES["0.6 M"],
        ("training.rollouts_per_task=16", "training.max_tokens=400", "training.micro_batch=16"),
    )
    above, peak = above_imports(planned(settings, used.longest), used.baseline), used.peak - used.baseline
    assert 0.75 < above / peak < 1.25, (above, peak)
