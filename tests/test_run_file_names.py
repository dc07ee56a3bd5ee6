"""Rule 4: memory/run.py names every file of a run and its record type; docs/run-directory.md follows from it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from support import ROOT

from memory.run import RunDirectory, document
from memory.run_files import (
    BranchDirectory,
    Folder,
    IterationDirectory,
    PolicyDirectory,
    RunFile,
    StageDirectory,
    iteration_of,
)

FOLDERS: tuple[type[Folder], ...] = (
    RunDirectory,
    StageDirectory,
    IterationDirectory,
    BranchDirectory,
    PolicyDirectory,
)
OWNERS = {"memory/run.py", "memory/run_files.py"}
PACKAGES = ("agents", "benchmarks", "environments", "evaluation", "graph", "memory", "training")
TABLE = [(folder, file) for folder in FOLDERS for file in vars(folder).values() if isinstance(file, RunFile)]
FILES = {file.name for _, file in TABLE if not file.is_folder}
PLACES = {file.name for _, file in TABLE if file.is_folder}


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the constants that are docstrings."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def spelt(source: str) -> list[str]:
    """The string constants that equal or end with a file's name, and the folders' names that a path is joined with."""
    tree = ast.parse(source)
    prose, found = docstrings(tree), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if node.value.endswith(tuple(FILES)) or node.value.startswith(tuple(f"{place}/" for place in PLACES)):
                found.append(node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            right = node.right
            if isinstance(right, ast.Constant) and right.value in PLACES:
                found.append(str(right.value))
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('x = folder / "drafts.jsonl"', ["drafts.jsonl"]),
        ('x = f"{name}.spending.jsonl"', [".spending.jsonl"]),
        ('x = run.root / "seed" / "known.json"', ["known.json", "seed"]),
        ('x = f"iterations/{number:03d}"', ["iterations/"]),
        ('def f():\n    """Writes drafts.jsonl"""\n    return "seed"', []),
    ],
)
def test_a_spelt_name_is_found(source: str, found: list[str]) -> None:
    assert sorted(spelt(source)) == found


def test_nobody_else_spells_a_name() -> None:
    wrong = {
        str(path.relative_to(ROOT)): names
        for path in sources()
        if str(path.relative_to(ROOT)) not in OWNERS and (names := spelt(path.read_text()))
    }
    assert wrong == {}


@pytest.mark.parametrize(("folder", "file"), TABLE, ids=[f"{one.__name__}/{file.name}" for one, file in TABLE])
def test_a_row_names_what_exists(folder: type[Folder], file: RunFile) -> None:
    record = file.record.rpartition(".")
    if record[0]:
        kind = getattr(importlib.import_module(record[0]), record[2])
        assert issubclass(kind, BaseModel | Folder)


def test_the_document_is_current() -> None:
    path = ROOT / "docs" / "run-directory.md"
    assert path.read_text() == document(), "run `make docs`"


def test_a_stage_names_its_iteration() -> None:
    assert iteration_of("iterations/012") == 12
    assert iteration_of("seed") is None
    assert iteration_of("iterations/012/branches") is None
