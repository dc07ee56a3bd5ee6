"""The tests of what decides notice every small change to it: operators, conditions and numbers, one at a time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import ROOT

pytestmark = [pytest.mark.long, pytest.mark.process]

VERIFICATION = "tests/environments/verification"
OF = {
    "training.signals": ["tests/training/test_signals.py", "tests/training/test_choice.py"],
    "training.grpo.advantages": ["tests/training/grpo/test_loss.py", "tests/training/grpo/test_reward.py"],
    "training.grpo.loss": ["tests/training/grpo/test_loss.py"],
    "environments.verification.verify": [VERIFICATION],
    "environments.verification.absence": [f"{VERIFICATION}/test_absence.py"],
    "environments.verification.replay": [VERIFICATION],
    "environments.verification.provenance": [
        f"{VERIFICATION}/test_provenance.py",
        f"{VERIFICATION}/test_grounding.py",
    ],
    "environments.verification.canonical": [
        "tests/environments/bfcl/test_bfcl_state.py",
        "tests/environments/python_class/test_python_episode.py",
        VERIFICATION,
    ],
    "memory.failures": ["tests/memory/test_failures.py", "tests/memory/test_embedding.py"],
}
"""What decides, with the tests that hold it."""
ONE_OR_ZERO = "scores are 0 or 1, never 0.5"
EQUIVALENT: dict[str, dict[str, str]] = {
    "training.signals": {
        "_at_the_boundary: float(one.success) > SUCCESS -> float(one.success) >= SUCCESS": ONE_OR_ZERO,
        "_at_the_boundary: float(one.success) < SUCCESS -> float(one.success) <= SUCCESS": ONE_OR_ZERO,
        "_forgotten: score >= SUCCESS -> score > SUCCESS": ONE_OR_ZERO,
        "_forgotten: step < group[0].step -> step <= group[0].step": "a step is entered after its own group",
        "_preference: 0 -> 1": "signals of one kind are compared: all of them have a count, or none",
        "_rarely_done: 0 -> 1 (2)": "100 * count is 0, or 100 and more",
        "extract: 0 -> 1": "without a trajectory no signal has a step",
    },
    "environments.verification.verify": {
        "solving_policy: len(reads) > 1 -> len(reads) >= 1": "each read was tried alone before",
    },
    "memory.failures": {
        "hashed_ngrams: 1.0 -> 2.0": "it is the only number of its row, which is divided by its length",
    },
}
"""Changes that no input shows, with the reason. ``(2)`` is the second change of its function that reads like this."""


@pytest.mark.parametrize("module", OF)
def test_every_small_change_is_noticed(module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "support.mutants", module, *OF[module]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    survivors = {line.partition("  # ")[0]: line for line in ran.stdout.splitlines()}
    excused = EQUIVALENT.get(module, {}).keys()
    unnoticed = [survivors[change] for change in survivors.keys() - excused]
    assert not unnoticed, "write a test that fails with it, or excuse it:\n" + "\n".join(unnoticed)
    assert excused <= survivors.keys(), f"not equivalent, or no more there: {excused - survivors.keys()}"
