"""What the source's modules are, and the graph of what they import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from support import ROOT

PACKAGES = ("agents", "benchmarks", "environments", "evaluation", "graph", "memory", "training")


def modules() -> dict[str, Path]:
    """Every module of the source by its dotted name; a folder without ``__init__`` holds a package of its own."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not (path.parent / "__init__.py").exists():
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imported(path: Path) -> frozenset[str]:
    """Dotted names that a file imports anywhere in it; ``from a import b`` gives both a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def imports() -> dict[str, set[str]]:
    """Which modules of the source each of them imports, inside functions and for annotations too."""
    found = modules()
    graph = {}
    for name, path in found.items():
        names = imported(path)
        # `from package import module` needs the package's file only for what that file defines.
        inner = {one.rpartition(".")[0] for one in names if one in found}
        graph[name] = {one for one in names if one in found and one not in inner} - {name}
    return graph
