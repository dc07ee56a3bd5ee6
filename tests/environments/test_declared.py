"""A name in data runs nothing that does not declare itself an environment, and no module that is not the user's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.tiny_benchmark import BENCHMARK

from environments import registry
from environments.base import InputError
from environments.example import depot
from environments.registry import find, find_benchmark, look
from environments.settings import EnvironmentSettings

NOT_DECLARED = "does not declare that it makes an environment: name a function with the annotation -> Environment"
NOT_REACHED = "is of Python or of an installed package, which a name does not import"
STALL = """
from __future__ import annotations

import os
import subprocess
from functools import cache, partial
from subprocess import check_output as borrowed
from typing import TYPE_CHECKING

from environments.base import Environment
from environments.example import Depot, depot
from environments.python_class.environment import PythonEnvironment

if TYPE_CHECKING:
    from decimal import Decimal

    from environments.base import Environment as Unseen

run = os.system
kept = depot
bound = partial(depot, 2)
small = lambda: depot(2)

class Opened(PythonEnvironment):
    def __init__(self, price: Decimal | None = None) -> None: ...

class Runs:
    def __init__(self, *words: str) -> None:
        subprocess.check_output(words)

def silent(starts=2):
    return depot(starts)

def text(words: list[str]) -> str:
    return subprocess.check_output(words)

def quoted(price: Decimal | None = None) -> Environment:
    return depot(2)

def unresolved() -> Unseen:
    return depot(2)

def nothing() -> None:
    subprocess.check_output("never")

def price() -> "Decimal":
    return depot(2)

@cache
def cached() -> PythonEnvironment:
    return depot(2)

try:
    import no_such_library
except ImportError:
    def otherwise() -> PythonEnvironment:
        return depot(2)
"""


@pytest.fixture
def stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules of the user's, and one that leaves a trace when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("stall_for_tests", "traced_for_tests", "pack_for_tests", "pack_for_tests.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "stall_for_tests.py").write_text(STALL)
    (tmp_path / "traced_for_tests.py").write_text("open('TRACE', 'w')\ndef main(): ...\nOTHER = 3\n")
    (tmp_path / "pack_for_tests").mkdir()
    (tmp_path / "pack_for_tests" / "__init__.py").write_text("open('TRACE', 'w')\n")
    (tmp_path / "pack_for_tests" / "inner.py").write_text("from environments.example import depot\n")
    return tmp_path


@pytest.mark.parametrize("attribute", ["kept", "Opened", "quoted", "cached", "otherwise", "depot"])
def test_what_declares_itself_an_environment_is_found(stall: Path, attribute: str) -> None:
    assert callable(find(f"stall_for_tests:{attribute}"))


def test_a_benchmark_and_the_example_are_found() -> None:
    assert find("support.tiny_benchmark:BENCHMARK") is BENCHMARK
    assert find("environments.example:depot") is depot


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("subprocess:check_output", NOT_REACHED),
        ("os:system", NOT_REACHED),
        ("sys:exit", NOT_REACHED),
        ("antigravity:webbrowser", NOT_REACHED),
        ("pydantic:BaseModel", NOT_REACHED),
        ("pytest:main", NOT_REACHED),
        ("__main__:main", "there is no module '__main__'"),
        ("stall_for_tests:borrowed", NOT_DECLARED),
        ("stall_for_tests:run", NOT_DECLARED),
        ("stall_for_tests:bound", NOT_DECLARED),
        ("stall_for_tests:small", NOT_DECLARED),
        ("stall_for_tests:Runs", NOT_DECLARED),
        ("stall_for_tests:Depot", NOT_DECLARED),
        ("stall_for_tests:text", NOT_DECLARED),
        ("stall_for_tests:os", NOT_DECLARED),
        ("stall_for_tests:nothing", NOT_DECLARED),
        ("stall_for_tests:price", NOT_DECLARED),
        ("stall_for_tests:silent", r"does not say that it returns an environment: write def silent\(\.\.\.\) -> Env"),
        ("stall_for_tests:unresolved", "annotation 'Unseen' of .* cannot be resolved .NameError"),
        ("stall_for_tests:breakfast", "stall_for_tests has no 'breakfast'"),
        ("stall_for_tests.inner:depot", "there is no module 'stall_for_tests.inner'"),
    ],
)
def test_what_does_not_is_refused_in_one_sentence(stall: Path, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        find(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("tests.support.mcp_hostile:send", "tests.support.mcp_hostile:LOOK", "tests.conftest:pytest"),
        *("tests.graph.conftest:Path", "tests.support.tiny_benchmark:BENCHMARK", "benchmarks.vllm_side:main"),
        *("docs.linked_files:on_files", "docs.train_with_trl:main", "graph.run_iteration:main", "memory.run:document"),
        *("graph.export.__main__:main", "evaluation.study.__main__:main", "training.run_round:see_one_gpu"),
    ],
)
def test_programs_and_tests_of_this_project_are_not_imported(name: str) -> None:
    before = set(sys.modules)
    with pytest.raises(InputError, match="is of this project and not of its environments"):
        find(name)
    assert not {one for one in set(sys.modules) - before if one.startswith(name.partition(".")[0])}


@pytest.mark.parametrize(
    "name",
    [
        *("environments.command:say", "environments.checkout:shipped_policy"),
        *("environments.registry:find", "environments.example:Depot", "environments.mcp.connection:json"),
        *("environments.appworld.sandbox:Path", "environments.base:Outcome", "environments.openenv.host:dataclass"),
    ],
)
def test_of_the_projects_environments_those_are_imported_that_declare_one(name: str) -> None:
    with pytest.raises(InputError) as refused:
        look(name)
    assert "\n" not in str(refused.value)


def test_a_look_runs_nothing(stall: Path) -> None:
    before = set(sys.modules)
    assert look("stall_for_tests:quoted")
    assert not look("stall_for_tests:kept")
    assert not look("pack_for_tests.inner:depot")
    assert EnvironmentSettings(name="stall_for_tests:kept").stated_benchmark is None
    for name in (
        "traced_for_tests:main",
        "traced_for_tests:OTHER",
        "traced_for_tests:more",
        "subprocess:check_output",
        "antigravity:x",
    ):
        with pytest.raises(InputError):
            look(name)
    assert not (stall / "TRACE").exists()
    assert not {"stall_for_tests", "antigravity"} & (set(sys.modules) - before)


def test_a_function_that_declares_nothing_is_refused_before_its_module_is_imported(stall: Path) -> None:
    with pytest.raises(InputError, match="does not say that it returns an environment"):
        find_benchmark("traced_for_tests:main")
    assert not (stall / "TRACE").exists()


def test_modules_of_the_working_directory_precede_none(stall: Path) -> None:
    (stall / "secrets.py").write_text("from environments.example import depot\n")
    (stall / "environments").mkdir()
    (stall / "environments" / "__init__.py").write_text("open('TRACE', 'w')\n")
    (stall / "environments" / "mine.py").write_text("from environments.example import depot\n")
    with pytest.raises(InputError, match=NOT_REACHED):
        find("secrets:depot")
    with pytest.raises(InputError, match=r"there is no module 'environments.mine'"):
        find("environments.mine:depot")
    assert sys.path[-1] != str(stall)  # no such name gives the folder a place
    find("stall_for_tests:kept")
    assert sys.path[-1] == str(stall)
    assert not (stall / "TRACE").exists()


def test_an_installed_package_is_not_imported(stall: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_folders", lambda: (stall,))  # as if it were installed there
    with pytest.raises(InputError, match=r"name a module of your own, which may import it"):
        find("stall_for_tests:kept")


def test_what_is_not_python_is_not_imported(stall: Path) -> None:
    for name, content in {
        "torn": b"def shop(:\n",
        "null": b"\0",
        "deep": b"(" * 10_000,
        "coded": b"# coding: nope\n",
    }.items():
        (stall / f"{name}_for_tests.py").write_bytes(content)
        with pytest.raises(InputError, match=f"{name}_for_tests cannot be imported: ") as caught:
            find(f"{name}_for_tests:shop")
        assert os.linesep not in str(caught.value)
