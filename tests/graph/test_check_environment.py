"""`coevolve environment check`: one line for each property, what follows where one does not hold, and the status."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.commands import run_here

from environments.contract.checks import PROPERTIES

SHOPS = """
import random
from environments.example import Depot, depot
from environments.python_class.environment import PythonEnvironment, ToolRefused

STARTS = [start.initial_state["Depot"] for start in depot(4).starts()]

class Dice:
    "Dice are rolled."

    def __init__(self) -> None:
        self.rolled = 0

    def roll_die(self) -> int:
        "Roll one die."
        self.rolled = random.randrange(10**9)
        return self.rolled

class Counts(Depot):
    seen = 0
    def list_parcels(self) -> list[str]:
        "List what waits in the depot."
        Counts.seen += 1
        return [*super().list_parcels(), str(Counts.seen // 10)]
    def _waiting(self, label: str) -> dict[str, int]:
        if label not in self.parcels:
            raise ToolRefused("no such parcel")
        return self.parcels[label]

class Mute(Depot):
    def shut_gate(self) -> None:
        self.gate_open = False

class Elsewhere(PythonEnvironment):
    def starts(self):
        return ()

def sound(starts: int = 4) -> PythonEnvironment:
    return depot(starts)

def dice() -> PythonEnvironment:
    return PythonEnvironment("dice", Dice, [{}])

def counts() -> PythonEnvironment:
    return PythonEnvironment("counts", Counts, STARTS)

def mute() -> PythonEnvironment:
    return PythonEnvironment("mute", Mute, STARTS)

def elsewhere() -> PythonEnvironment:
    return Elsewhere("elsewhere", Depot, STARTS)

def plain():
    return depot()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "checked_shops.py").write_text(SHOPS)
    (tmp_path / "mine.yaml").write_text("environment: {name: checked_shops:sound}\nevaluation: {set: null}\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "checked_shops", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["checked_shops:sound"], 0, f"all {len(PROPERTIES)} properties hold"),
        (["mine.yaml", "--option", "starts=2"], 0, f"all {len(PROPERTIES)} properties hold"),
        (["checked_shops:dice"], 1, "FAILS  tasks can be found in it: exploration found 0 tasks in 40 "),
        (["checked_shops:counts"], 1, "properties do not hold"),
        (
            ["checked_shops:elsewhere"],
            1,
            "FAILS  starts are of the training split and can be opened: there is no start",
        ),
        (["checked_shops:mute"], 2, "shut_gate"),
        (["checked_shops:plain"], 2, "does not say that it returns an environment"),
        (["mine.yaml", "--option", "rooms=2"], 2, "does not take them"),
        (["no.yaml"], 2, "no.yaml"),
        (["checked_shops:sound", "--option", "rooms=2"], 2, "does not take them"),
        (["nowhere:sound"], 2, "there is no module 'nowhere'"),
        (["bfcl"], 0, "all 23 properties hold"),
        (["bfc"], 2, "'bfc' is not an environment"),
        (["subprocess:check_output"], 2, "is of Python or of an installed package"),
    ],
)
def test_an_environment_is_checked(folder: Path, words: list[str], status: int, says: str) -> None:
    done = run_here("graph.check_environment", "check", *words, cwd=folder)
    assert done.returncode == status, done.stdout + done.stderr
    assert says in done.stdout + done.stderr
    if status == 2:
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    else:
        assert done.stderr == ""


def test_a_failure_says_why_and_what_follows(folder: Path) -> None:
    done = run_here("graph.check_environment", "check", "checked_shops:dice", cwd=folder)
    failure, follows = done.stdout.splitlines()[-2:]
    assert failure.endswith("and that equal calls do equal things")
    assert " nondeterministic" in failure
    assert follows.strip() == "A run has nothing to train on."
    assert done.stdout.startswith("ok     it answers\n")
