"""Packages in virtual environments of their own, which ``make NAME`` makes below .venvs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import ROOT

VENVS = ROOT / ".venvs"
OPENENV = VENVS / "openenv" / "bin" / "python"
VERIFIERS = VENVS / "verifiers" / "bin" / "vf-eval"
VERL = VENVS / "verl" / "bin" / "python"


def needs(*programs: Path) -> pytest.MarkDecorator:
    """Return the mark that skips a test while one of the programs is not installed, with the command to run."""
    names = " ".join(program.relative_to(VENVS).parts[0] for program in programs)
    missing = not all(program.exists() for program in programs)
    return pytest.mark.skipif(missing, reason=f"not installed: make {names}")


def of_programs(*programs: Path) -> list[pytest.MarkDecorator]:
    """Return the marks of a module whose tests run such programs."""
    return [needs(*programs), pytest.mark.slow, pytest.mark.process, pytest.mark.external]
