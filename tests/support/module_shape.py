"""What the source's modules are, and the graph of what they import.

``python tests/support/module_shape.py`` prints how many modules there are, their lines, and how many of them only one
other module imports. It is a figure to look at, not a limit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]  # spelt out: this file is a script too
PACKAGES = ("agents", "benchmarks", "environments", "evaluation", "graph", "memory", "training")

Imports = Mapping[str, set[str]]


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


def circle(graph: Imports) -> list[str]:
    """Modules that import each other in a ring, first and last the same; empty where there is none."""
    done: set[str] = set()

    def search(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if ring := search(other, [*way, name]):
                return ring
        done.add(name)
        return []

    return next((ring for name in graph if (ring := search(name, []))), [])


def public_classes() -> Iterator[tuple[str, str]]:
    """Name and module of each class of the source that stands at the top of its module and has no underscore."""
    for name, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, name


def main() -> None:
    """Print the figures."""
    graph = imports()
    lines = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    shown = {name: count for name, count in lines.items() if count > 1}  # not an empty __init__
    importers = {name: sum(name in others for others in graph.values()) for name in shown}
    single = [name for name, count in importers.items() if count == 1]
    print(f"modules: {len(shown)}")
    print(f"lines: {sum(shown.values())}, median {median(shown.values()):.0f}, longest {max(shown.values())}")
    print(f"with a single importer: {len(single)} ({len(single) / len(shown):.0%})")
    print(f"of these under 50 lines: {', '.join(sorted(name for name in single if shown[name] < 50)) or 'none'}")


if __name__ == "__main__":
    main()
