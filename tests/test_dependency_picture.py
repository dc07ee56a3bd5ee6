"""The direction of dependencies between the rooms, held against what the files import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("environments", "memory", "agents", "training", "graph", "evaluation")
ALLOWED = {
    "environments": set(),
    "memory": {"environments"},
    "agents": {"environments", "memory"},
    "training": {"environments", "memory"},
    "graph": {"environments", "memory", "agents"},
    "evaluation": {"environments", "memory", "training"},
}
# graph reads signals and SEAL, both torch-free; its settings compose every room's section, and its
# preflight every room's own: what is heavy there is imported when it is needed.
GRAPH_MAY = {
    "training.signals",
    "training.seal",
    "training.settings",
    "training.rollout.policy",
    "training.rollout.policy_path",
    "training.grpo.record",
    "training.preflight",
    "evaluation.outcomes",
    "evaluation.settings",
    "evaluation.preflight",
}
HEAVY = ("torch", "transformers", "trl", "chromadb", "langgraph", "bfcl_eval")
PANEL_MODULES = ("environments.bfcl.templated.panels", "environments.appworld.panels")
# The methods of a benchmark that open evaluation sets, held-out ones too, or read all of them for the record of hashes.
OPENERS = {"open_evaluation_set", "open_category", "evaluation_environment", "make_held_out_record"}
TEST_SPLITS = {"test_normal", "test_challenge"}
# Beside evaluation: what evaluation opens them with, and the package's data sets that a made world has, both empty.
NAME_TEST_SPLITS = {"environments/appworld/panels.py", "environments/appworld/made_world/tasks.py"}


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, at any depth; ``from a import b`` gives both a and a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def within(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_lies_below(room: str) -> None:
    wrong = []
    for path in sources(room):
        for name in imports(path):
            other = name.split(".")[0]
            if other not in ROOMS or other == room or other in ALLOWED[room]:
                continue
            if room == "graph" and (within(name, GRAPH_MAY) or name in {m.split(".")[0] for m in GRAPH_MAY}):
                continue
            wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert sources(room)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", PANEL_MODULES)
def test_only_the_benchmark_itself_reads_its_panels(module: str) -> None:
    package = module.split(".")[1]
    readers = {
        str(path.relative_to(ROOT))
        for room in (*ROOMS, "benchmarks")
        for path in sources(room)
        if any(within(name, {module}) for name in imports(path))
    }
    allowed = {f"environments/{package}/benchmark.py", f"environments/{package}/held_out_record.py"}
    assert f"environments/{package}/benchmark.py" in readers, "the test looks for the wrong module"
    assert readers <= allowed, readers


def test_only_evaluation_opens_panels() -> None:
    """Through the methods of a benchmark that open them, whether they are called or handed on."""
    openers = {
        str(path.relative_to(ROOT))
        for room in (*ROOMS, "benchmarks")
        for path in sources(room)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in OPENERS
    }
    assert openers >= {"evaluation/panels.py", "evaluation/selection.py", "evaluation/held_out.py"}, openers
    assert all(path.startswith("evaluation/") for path in openers), openers


def test_only_evaluation_names_appworlds_test_splits() -> None:
    """Whoever opens one must name it somewhere; help texts and sentences are no names."""
    named = {
        str(path.relative_to(ROOT))
        for room in (*ROOMS, "benchmarks")
        for path in sources(room)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in TEST_SPLITS
    }
    assert named >= NAME_TEST_SPLITS
    assert all(path.startswith("evaluation/") for path in named - NAME_TEST_SPLITS), named


def test_warm_start_calls_no_role() -> None:
    assert not any(name.split(".")[0] in {"agents", "graph"} for name in imports(ROOT / "training" / "warm_start.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_importing_a_room_is_cheap_and_ours(room: str) -> None:
    code = f"import sys, {room}; print({room}.__file__); print([m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    place, heavy = run.stdout.splitlines()
    assert Path(place) == ROOT / room / "__init__.py"
    assert heavy == "[]"


@pytest.mark.parametrize(
    "command",
    [
        "benchmarks",
        "graph.run_iteration",
        "graph.seed_tasks",
        "training.run_round",
        "training.warm_start",
        "evaluation.run",
        "evaluation.decontaminate",
        "evaluation.held_out",
        "evaluation.study.arm",
        "evaluation.study",
        "graph.check_recipe",
        "graph.command",
    ],
)
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['{command}', '--help']\n"
        "try:\n"
        f"    runpy.run_module('{command}', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code in (0, None), end.code\n"
        f"print('HEAVY', [m for m in {HEAVY} if m in sys.modules])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.rstrip().endswith("HEAVY []"), run.stdout[-300:]
    assert "Usage" in run.stdout
