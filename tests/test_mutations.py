"""The tests of what decides notice small changes to it: operators, conditions and numbers, one at a time."""

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
    "environments.verification.replay": [VERIFICATION],
    "environments.verification.canonical": [
        "tests/environments/bfcl/test_bfcl_state.py",
        "tests/environments/python_class/test_python_episode.py",
        VERIFICATION,
    ],
    "memory.failures": ["tests/memory/test_failures.py", "tests/memory/test_embedding.py"],
}
"""What decides, with the tests that hold it."""
LEAST = 0.8
"""Share of the changes that tests must notice, the equivalent ones left out."""
ONE_OR_ZERO = "scores are 0 or 1, never 0.5"
EQUIVALENT: dict[str, dict[str, str]] = {
    "training.signals": {
        "_at_the_boundary: float(one.success) > SUCCESS -> float(one.success) >= SUCCESS": ONE_OR_ZERO,
        "_at_the_boundary: float(one.success) < SUCCESS -> float(one.success) <= SUCCESS": ONE_OR_ZERO,
        "_forgotten: score >= SUCCESS -> score > SUCCESS": ONE_OR_ZERO,
        "_forgotten: step < group[0].step -> step <= group[0].step": "a step is entered after its own group",
        "_rarely_done: 0 -> 1": "100 * count is 0, or 100 and more",
        "extract: 0 -> 1": "without a trajectory no signal has a step",
    },
    "environments.verification.verify": {
        "solving_policy: len(reads) > 1 -> len(reads) >= 1": "each read was tried alone before",
    },
}
"""Changes that no input shows, with the reason."""


@pytest.mark.parametrize("module", OF)
def test_small_changes_are_noticed(module: str) -> None:
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
    *lines, count = ran.stdout.splitlines()
    changes = {line.partition("  # ")[0] for line in lines}
    excused = EQUIVALENT.get(module, {})
    assert excused.keys() <= changes, f"not equivalent, or no more there: {excused.keys() - changes}"
    left = [line for line in lines if line.partition("  # ")[0] not in excused]
    print("\n".join(left))
    assert len(left) <= (1 - LEAST) * (int(count) - len(excused)), "\n".join(left)
