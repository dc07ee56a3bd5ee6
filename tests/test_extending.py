"""The examples of docs/extending.md run: files are imported and used, diffs apply to a copy of the checkout."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import ROOT

from environments.base import Environment
from environments.example import depot
from environments.settings import EnvironmentSettings
from memory.records import FailureContext

PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = {text.split()[1]: text for language, text in BLOCKS if language == "python"}


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write the page's files into a folder on the search path; a function that imports one."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    names = [Path(name).stem for name in FILES]

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in names:
        sys.modules.pop(name, None)


def opened(name: str, **options: int) -> Environment:
    return EnvironmentSettings.model_validate({"name": name, "options": options}).open()


def test_every_block_is_known() -> None:
    assert set(FILES) == {"shelf.py", "reader.py"}
    assert {language for language, _ in BLOCKS} == {"python", "diff"}


def test_a_benchmark_and_its_metric(examples) -> None:
    registry, shelf = importlib.import_module("environments.registry"), examples("shelf")
    benchmark = registry.find_benchmark("shelf:BENCHMARK")
    environment = opened("shelf:BENCHMARK", starts=1)
    assert registry.benchmark_of(environment) is benchmark is shelf.BENCHMARK
    with pytest.raises(ValueError, match="'start' is not an option"):
        registry.parse_options(benchmark, {"start": 1})
    tasks = benchmark.open_evaluation_set("final")
    assert len(tasks) == benchmark.evaluation_set("final").tasks
    for task in tasks:
        episode = environment.open(task.spec)
        episode.start()
        for call in task.spec.reference[0]:
            episode.step(call)
        episode.end_turn()
        assert episode.outcome().success
        episode.close()
    attempted = importlib.import_module("environments.metrics").Attempted
    metric = benchmark.metrics["all_solved"]
    assert metric([attempted("a", None, True), attempted("b", None, True)]) == 1.0
    assert metric([attempted("a", None, True), attempted("b", None, False)]) == 0.0


def test_a_role(examples) -> None:
    environment = depot()
    start = environment.starts()[0]
    context = FailureContext(
        id="context-1",
        environment="depot",
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
    )
    found = asyncio.run(examples("reader").Reader(steps=4).explore(context, environment, seed=0))
    assert [(one.action.name, one.changed) for one in found] == [("list_parcels", False), ("open_gate", True)]


CHANGED = """
from pathlib import Path

from agents.roles import build_roles
from agents.settings import RolesSettings
from agents.spending import Ledger
from environments.base import Outcome
from memory.records import KINDS, SignalKind, Trajectory
from training.signals import SignalSettings
from training.signals import choose, extract
from types import SimpleNamespace

from agents.chat.reflector import _signal_text
from environments.base import TaskSpec, ToolCall
from environments.settings import VerificationSettings
from environments.verification.verify import Refusal, verify

def rollout(task, sample, success):
    outcome = Outcome(success=success, turns=())
    where = {"task_id": task, "iteration": 0, "step": 1, "sample": sample}
    return Trajectory(id=f"{task}-{sample}", turns=(), outcome=outcome, **where)

settings = SignalSettings(kinds=tuple(SignalKind))
played = [rollout("never", 0, False), rollout("never", 1, False), rollout("once", 0, True), rollout("once", 1, False)]
found = [one for one in extract(played, {}, settings, iteration=0).signals if one.kind is SignalKind.HOPELESS]
assert sorted((one.task_id, one.trajectory_id) for one in found) == [("never", "never-0"), ("never", "never-1")], found
assert [one.task_id for one in choose(found, settings, seed=0).chosen] == ["never"]
assert _signal_text(SimpleNamespace(signal=found[0])) == f"The attempt is {KINDS[SignalKind.HOPELESS].meaning}."
roles = RolesSettings.model_validate({"explorer": {"kind": "reader"}})
assert type(build_roles(roles, Ledger(Path("spending.jsonl"), roles.budget)).explorer).__name__ == "Reader"
calls = ((ToolCall(name="look"),),) * 2
shape = {"environment": "any", "split": "train", "classes": (), "initial_state": {}, "tools": ("look",)}
draft = TaskSpec(turns=("Look.",) * 2, reference=calls, **shape)
refused = verify(draft, None, (), (), VerificationSettings(max_turns=1))
assert (refused.reason, refused.detail) == (Refusal.TOO_LONG, "The draft has 2 user turns, 1 are allowed.")
print("all work")
"""


def changed(source: str, change: str) -> str:
    """Apply the hunks of a diff: each one's old lines, which must be in ``source`` once, become its new ones."""
    for hunk in change.split("\n@@\n")[1:]:
        lines = hunk.splitlines()
        old = "\n".join(line[1:] for line in lines if line[:1] in (" ", "-", ""))
        new = "\n".join(line[1:] for line in lines if line[:1] in (" ", "+", ""))
        assert source.count(f"{old}\n") == 1, f"these lines are not in the file once:\n{old}"
        source = source.replace(f"{old}\n", f"{new}\n")
    return source


@pytest.mark.process
def test_the_changes_for_a_signal_a_role_and_an_option(tmp_path: Path) -> None:
    for package in ("agents", "environments", "memory", "training"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "reader.py").write_text(FILES["reader.py"])
    changes = [text for language, text in BLOCKS if language == "diff"]
    assert len(changes) == 6
    for change in changes:
        path = tmp_path / change.split()[1].removeprefix("a/")
        path.write_text(changed(path.read_text(), change))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    argv = [sys.executable, "-c", CHANGED]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "all work\n", done.stderr
