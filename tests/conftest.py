"""Tiers by marker, what runs first, and what tests share: the engine and the preloaded process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from support.preloaded import preloaded_process, through

from environments.appworld import environment
from environments.appworld.client import AppWorldEngine
from environments.appworld.installation import Installation, find_installation
from environments.appworld.records import EngineLimits
from environments.appworld.sandbox import require
from environments.base import InputError

# An example's time is its machine's. Each run draws other examples: fewer of them each time, at half the CPU time.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=50)
hypothesis.settings.load_profile("suite")

MAY_START_PROGRAMS = ("process", "appworld", "external", "browser")
INSTALLATION = "installation"
"""The fixture that every test of AppWorld's engine asks for, most through another one."""
ITS_ENGINE = (
    "agents/chat/test_programs_in_appworld.py",
    "agents/scripted/appworld/test_appworld_roles.py",
    "evaluation/test_run_appworld.py",
)
"""Files that share the engine of its package: one takes twelve seconds of CPU to start, and each worker has its own."""

# Groups of files by their CPU time, the longest first, by one file of each: they decide when a parallel run ends.
FIRST = (
    "environments/appworld/test_appworld_environment.py",
    "training/grpo/test_run_round.py",
    "training/rollout/test_vllm_contract.py",
    "graph/test_kill_matrix.py",
    "graph/test_new_environment.py",
    "graph/report/test_page_in_browser.py",
    "graph/studio/test_studio.py",
    "graph/test_seal_iterations.py",
    "evaluation/study/test_study.py",
)
PRELOADED = "COEVOLVE_TESTS_PRELOADED_AT"
"""Where the workers find the one preloaded process of a session: its address."""
ASKED_BY_LIBRARIES = {"uname", "lscpu", "ldconfig", "gcc", "cc"}  # of the platform they run on
HEAVY = {"torch", "transformers", "trl", "chromadb"}
_collected_with: set[str] = set()


def pytest_collection() -> None:
    """Collect the tests without collecting garbage: a tenth of that time, and there is none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was collected out of all later collections of garbage."""
    _collected_with.update(HEAVY & sys.modules.keys())
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for AppWorld's engine, and put the longest files first."""
    for item in items:
        if INSTALLATION in getattr(item, "fixturenames", ()):
            item.add_marker("appworld")
    items.sort(key=lambda item: FIRST.index(_file(item)) if _file(item) in FIRST else len(FIRST))


def group(file: str) -> str:
    """Return what one worker runs: a file, or files that share the session's engine, or imports of many seconds."""
    if file in ITS_ENGINE or file.startswith("environments/appworld/"):
        return "the engine"
    if file.startswith(("training/rollout/", "training/rendering/", "training/embedded/")):
        return "transformers"
    return "TRL" if file.startswith("training/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Start one preloaded process for all workers."""
    stack = ExitStack()
    os.environ[PRELOADED] = stack.enter_context(preloaded_process())
    config.add_cleanup(stack.close)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule by groups where xdist was asked to keep files together (its own loadgroup needs an older pytest)."""
    from xdist.scheduler import LoadFileScheduling

    class Groups(LoadFileScheduling):
        """Give each worker whole files, and files that share something expensive to one worker: see ``group``."""

        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid.partition("::")[0].removeprefix("tests/"))

    return Groups(config, log) if config.getvalue("dist") == "loadfile" else None


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].removeprefix("tests/")


@pytest.fixture(scope="session")
def collected_with() -> set[str]:
    """Large packages that were imported while tests were collected, which every worker does."""
    return _collected_with


@pytest.fixture(scope="session")
def installation() -> Installation:
    """The project's AppWorld, behind its wall; where it is not installed, what asks for it skips, with the reason."""
    try:
        installation = find_installation()
        require(installation)
    except InputError as error:
        pytest.skip(str(error))
    return installation


@pytest.fixture(scope="session")
def engine(installation: Installation) -> Iterator[AppWorldEngine]:
    """One engine for all tests that leave it as it was; code has 30 seconds and 256 MiB.

    It is what the project's own code opens in this process, too.
    """
    limits = EngineLimits(execute=30, grace=10.0, megabytes=256)
    with AppWorldEngine(installation, limits) as engine, pytest.MonkeyPatch.context() as patch:
        patch.setitem(environment._engines, (os.getpid(), installation.world), engine)
        yield engine


@pytest.fixture(scope="session")
def preloaded_address() -> Iterator[str]:
    """Where the preloaded process is: that of all workers, or one of this session."""
    if PRELOADED in os.environ:
        yield os.environ[PRELOADED]
        return
    with preloaded_process() as address:
        yield address


@pytest.fixture(scope="module")
def preloaded(preloaded_address: str) -> Iterator[None]:
    """Let the project's commands start with their packages imported while tests of the module run."""
    with through(preloaded_address):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fail a test of the fast tier where it, or a fixture that it is the first to ask for, starts a program."""
    start = subprocess.Popen.__init__

    def refused(process: Any, args: Any, *others: Any, **options: Any) -> None:
        name = Path(os.fsdecode(args if isinstance(args, str | bytes | Path) else args[0])).name
        if name not in ASKED_BY_LIBRARIES:
            pytest.fail(f"it starts {name}: mark it with @pytest.mark.process")
        start(process, args, *others, **options)

    # Not an audit hook: that is called for every id() of the session, over a million times in some files.
    with pytest.MonkeyPatch.context() as patch:
        if not any(item.get_closest_marker(name) for name in MAY_START_PROGRAMS):
            patch.setattr(subprocess.Popen, "__init__", refused)
        return (yield)
