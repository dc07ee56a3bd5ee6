"""The tests of what decides notice small changes to it: operators, conditions and numbers, one at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import ROOT
from support.mutants import changes, mutant

pytestmark = [pytest.mark.long, pytest.mark.process]

VERIFICATION = "tests/environments/verification"
OF = {
    "training.signals": ["tests/training/test_signals.py"],
    "training.grpo.advantages": ["tests/training/grpo/test_loss.py"],
    "training.grpo.loss": ["tests/training/grpo/test_loss.py"],
    "environments.verification.verify": [VERIFICATION],
    "environments.verification.minimality": [VERIFICATION],
    "environments.verification.canonical": [
        "tests/environments/bfcl/test_bfcl_state.py",
        "tests/environments/python_class/test_python_episode.py",
        VERIFICATION,
    ],
    "memory.failures": ["tests/memory/test_failures.py"],
}
"""What decides, with the tests that hold it."""
PER_MODULE = 4
LEAST = 0.5
"""Share of the changes that tests must notice: a few change nothing that can be seen."""


@pytest.mark.parametrize("module", OF)
def test_small_changes_are_noticed(module: str) -> None:
    import ast

    path = ROOT / (module.replace(".", "/") + ".py")
    count = len(list(changes(ast.parse(path.read_text()))))
    survivors, chosen = [], sorted({number * count // PER_MODULE for number in range(PER_MODULE)})
    for index in chosen:
        command = [sys.executable, "-m", "support.mutants", module, str(index), *OF[module]]
        try:
            ran = subprocess.run(
                command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=120, check=False
            )
        except subprocess.TimeoutExpired:  # a loop that no longer ends is noticed, too
            continue
        assert ran.returncode in (0, 1, 2), ran.stdout + ran.stderr
        if ran.returncode == 0:
            survivors.append(mutant(path, index)[1])
    assert len(survivors) <= (1 - LEAST) * len(chosen), "\n".join(survivors)


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
