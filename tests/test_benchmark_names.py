"""Benchmarks are packages: their names appear nowhere else, so that a new one needs no edit outside its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("environments", "memory", "agents", "training", "graph", "evaluation")
BENCHMARKS = {path.parent.name for path in (ROOT / "environments").glob("*/benchmark.py")}
AT_MOST = 5
"""The name of the default benchmark, and what else a command's default may need."""


def sources() -> Iterator[Path]:
    """Every source file outside the packages of a benchmark and of its scripted roles, and of other protocols."""
    own = [ROOT / room / name for room in ("environments", "agents/scripted") for name in BENCHMARKS]
    own.append(ROOT / "graph" / "interop")
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if not any(path.is_relative_to(folder) for folder in own):
                yield path


def references(source: str, names: set[str]) -> list[str]:
    """Lines that name a benchmark in an import, a name or a string; docstrings and comments are prose."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        words: list[str] = []
        match node:
            case ast.Import():
                words = [alias.name for alias in node.names]
            case ast.ImportFrom():
                words = [f"{node.module}.{alias.name}" for alias in node.names]
            case ast.Name():
                words = [node.id]
            case ast.Attribute():
                words = [node.attr]
            case ast.arg() | ast.keyword():
                words = [node.arg or ""]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                words = [node.name]
            case ast.Constant(value=str() as text) if id(node) not in prose:
                words = [text]
        found += [
            f"{getattr(node, 'lineno', 0)}: {word}" for word in words if any(name in word.lower() for name in names)
        ]
    return found


def test_a_reference_is_found_wherever_it_is_written() -> None:
    source = (
        '"""bfcl"""\n# bfcl\nimport environments.bfcl\nfrom environments import bfcl as b\nx = "bfcl"\nOF = b.BFCL\n'
    )
    assert [line.partition(":")[0] for line in sorted(references(source, {"bfcl"}))] == ["3", "4", "5", "6"]


def test_no_benchmark_is_named_outside_its_package() -> None:
    assert {"bfcl", "appworld"} <= BENCHMARKS
    found = {path.relative_to(ROOT): references(path.read_text(), BENCHMARKS) for path in sources()}
    named = [f"{path}:{line}" for path, lines in found.items() for line in lines]
    print(f"{len(named)} references to benchmarks outside their packages")
    assert len(named) <= AT_MOST, "\n".join(named)
