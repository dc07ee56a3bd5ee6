"""SEAL is a package: ground records and roles import nothing of it, and nobody parses cues out of text."""

from __future__ import annotations

import ast

import pytest
from support import ROOT

PACKAGES = ("training.seal", "environments.learning_interface")
SOURCES = ("environments", "memory", "agents", "training", "graph", "evaluation")


def importers(room: str) -> set[str]:
    """Files of ``room``, outside SEAL's own packages, that import one of them."""
    found = set()
    for path in (ROOT / room).rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if name.startswith(("training/seal/", "environments/learning_interface/")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(one.startswith(PACKAGES) for one in names):
                found.add(name)
    return found


@pytest.mark.parametrize("room", ["environments", "memory", "agents"])
def test_ground_records_and_roles_import_nothing_of_seal(room: str) -> None:
    assert importers(room) == set()


def test_training_uses_it() -> None:
    assert "training/grpo/round.py" in importers("training"), "nobody uses it: the test looks for the wrong packages"


def test_the_form_of_a_cue_is_written_in_one_place() -> None:
    writers = {
        str(path.relative_to(ROOT))
        for room in SOURCES
        for path in (ROOT / room).rglob("*.py")
        if any(form in path.read_text() for form in ("[guideline: ", "[hint: "))
    }
    assert writers == {"environments/base.py"}
