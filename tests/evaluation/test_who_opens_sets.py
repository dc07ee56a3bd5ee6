"""Which files open held-out sets, by what they import and name."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from support import ROOT
from support.module_shape import PACKAGES as ROOMS
from support.module_shape import imported as imports

SET_MODULES = ("environments.bfcl.evaluation_sets", "environments.appworld.evaluation_sets")
# The methods of a benchmark that open evaluation sets, held-out ones too.
OPENERS = {"open_evaluation_set", "evaluation_environment"}
TEST_SPLITS = {"test_normal", "test_challenge"}
# Beside evaluation: the layout of the package's data, which says where ids and files are and opens nothing.
NAME_TEST_SPLITS = {"environments/appworld/layout.py"}


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@cache
def spelt(path: Path) -> tuple[frozenset[str], frozenset[object]]:
    """The attributes that a file names, and its constants."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    attributes = frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute))
    return attributes, frozenset(node.value for node in nodes if isinstance(node, ast.Constant))


def within(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


@pytest.mark.parametrize("module", SET_MODULES)
def test_only_the_benchmark_itself_reads_its_evaluation_sets(module: str) -> None:
    package = module.split(".")[1]
    readers = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sources(room)
        if any(within(name, {module}) for name in imports(path))
    }
    assert readers == {f"environments/{package}/benchmark.py"}


def test_only_evaluation_opens_evaluation_sets() -> None:
    """Through the methods of a benchmark that open them, whether they are called or handed on."""
    openers = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sources(room)
        if not OPENERS.isdisjoint(spelt(path)[0])
    }
    assert "evaluation/sets.py" in openers, openers
    defined = "environments/benchmark.py"  # which asks whether a benchmark has an evaluation_environment of its own
    assert all(path.startswith("evaluation/") or path == defined for path in openers), openers


def test_only_evaluation_names_appworlds_test_splits() -> None:
    """Whoever opens one must name it somewhere; help texts and sentences are no names."""
    named = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sources(room)
        if not TEST_SPLITS.isdisjoint(spelt(path)[1])
    }
    assert named >= NAME_TEST_SPLITS
    assert all(path.startswith("evaluation/") for path in named - NAME_TEST_SPLITS), named


def test_warm_start_calls_no_role() -> None:
    assert not any(name.split(".")[0] in {"agents", "graph"} for name in imports(ROOT / "training" / "warm_start.py"))
