"""Which package may import which, and what importing one costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import defaultdict
from graphlib import TopologicalSorter

import pytest
from support import ROOT
from support.module_shape import imported, imports, modules

BELOW = {
    "environments": set(),
    "memory": {"environments"},
    "agents": {"environments", "memory"},
    "training": {"environments", "memory"},
    "graph": {"environments", "memory", "agents", "training"},
    "evaluation": {"environments", "memory", "training"},
}
"""What a package may import beside itself. ``benchmarks`` measures all of them and may import any."""

GRAPH_FROM_EVALUATION = {
    *("evaluation.settings", "evaluation.outcomes", "evaluation.power", "evaluation.statistics"),
    "evaluation.study.recipe",
}
"""What ``graph`` may import of ``evaluation``: settings, records, intervals. Evaluation is a process of its own."""

EVALUATION_FROM_AGENTS = ("agents.chat.", "agents.settings", "agents.spending")
"""What ``evaluation`` may import of ``agents``: the client of chat endpoints, its settings and its ledger; no role."""

HEAVY = ("torch", "transformers", "trl", "peft", "chromadb", "langgraph", "langchain_core", "openai", "bfcl_eval")
COMMANDS = sorted(name for name, path in modules().items() if "app = typer.Typer(" in path.read_text())
TRAINS = ("torch", "transformers", "trl", "peft")


def package(module: str) -> str:
    return module.partition(".")[0]


def below_study(module: str) -> bool:
    return module.startswith("evaluation") and not module.startswith("evaluation.study")


def excepted(module: str, other: str) -> bool:
    """Whether one of the two exceptions to the picture allows this import."""
    if package(module) == "graph":
        return other in GRAPH_FROM_EVALUATION
    return package(module) == "evaluation" and other.startswith(EVALUATION_FROM_AGENTS)


def test_packages_import_only_what_lies_below() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in imports().items()
        if package(module) in BELOW
        for other in (one for one in others if not excepted(module, one))
        if package(other) not in {package(module), *BELOW[package(module)]}
        or (below_study(module) and other.startswith("evaluation.study"))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_ring() -> None:
    TopologicalSorter(imports()).prepare()  # raises CycleError, which names them


def test_only_studio_imports_what_serves_it() -> None:
    """The command names its module in a table; what a run and Studio both need is outside of the package."""
    users = {name for name, others in imports().items() if any(one.startswith("graph.studio") for one in others)}
    assert [name for name in users if not name.startswith("graph.studio")] == []
    assert "graph.studio.forks" in users


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(list)
    for module, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def fresh(code: str) -> list[str]:
    """What a new process prints as its last line: JSON."""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.process
def test_importing_packages_and_showing_help_imports_nothing_heavy() -> None:
    """One process: what any of them imports is found."""
    code = f"""
import importlib, json, runpy, sys
for package in {list(BELOW)}:
    importlib.import_module(package)
heavy = lambda: sorted(name for name in {HEAVY} if name in sys.modules)
found = [f"import of the packages: {{heavy()}}"] if heavy() else []
for command in {COMMANDS}:
    sys.argv = [command, "--help"]
    sys.modules.pop(command, None)
    try:
        runpy.run_module(command, run_name="__main__")
    except SystemExit as end:
        assert end.code in (0, None), (command, end.code)
    if heavy():
        found.append(f"{{command}} --help: {{heavy()}}")
print(json.dumps(found))
"""
    assert len(COMMANDS) > 8
    assert fresh(code) == []


@pytest.mark.process
def test_the_graph_trains_and_samples_nothing_itself() -> None:
    """What it imports of training and evaluation are settings, records and signals."""
    graph = [
        name
        for name, path in modules().items()
        if package(name) == "graph" and not name.endswith("__main__")
        # Runs in an environment of its own, which may not be there.
        if not any(one.startswith("openenv.") for one in imported(path))
    ]
    code = f"""
import importlib, json, sys
for name in {graph}:
    importlib.import_module(name)
print(json.dumps([name for name in {TRAINS} if name in sys.modules]))
"""
    assert fresh(code) == []
