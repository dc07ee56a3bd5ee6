"""What is found about an environment before a run, what follows, and the run that a server's command begins."""

import random
import sys

import pytest
from support import ROOT
from support.commands import run_here

from environments.example import Depot, depot
from environments.python_class.environment import PythonEnvironment
from environments.trust import TRUST_VARIABLE
from graph.check_environment import findings

STARTS = [start.initial_state["Depot"] for start in depot(3).starts()]


class Moody(Depot):
    """A depot that begins in another state each time, and rolls dice."""

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self.mood = random.random()

    def roll_die(self) -> int:
        """Roll one die."""
        return random.randrange(10**9)


class Still:
    """Nothing changes here, and one tool fails."""

    def look_around(self) -> str:
        """Look around."""
        return "dust"

    def break_down(self) -> str:
        """Break down."""
        raise OSError("broken")


class Shut:
    """Nothing can be called."""

    def open_up(self) -> str:
        """Open up."""
        from environments.python_class.environment import ToolRefused

        raise ToolRefused("no")


def found(world, starts):
    return {row.words: row.problem for row in findings(PythonEnvironment("odd", world, starts))}


def test_nothing_is_found_about_a_sound_environment():
    rows = found(Depot, STARTS)
    assert [words for words, problem in rows.items() if problem] in ([], ["every tool was called and ran"])


def test_starts_that_differ_and_answers_that_differ_are_found():
    rows = found(Moody, STARTS)
    assert rows["it begins alike each time"] == "two episodes of odd-0, odd-1, odd-2 begin in different states"
    assert rows["equal calls do equal things"] == "roll_die did not"
    assert rows["it answers"] is None


def test_faults_and_a_state_that_never_changes_are_found():
    rows = found(Still, [{}])
    assert " of 4 episodes failed, the last so: Still.break_down failed" in rows["it answers"]
    assert "none of" in rows["calls change the state that is compared"]


def test_a_tool_that_refuses_every_call_is_found():
    assert found(Shut, [{}])["every tool was called and ran"] == "open_up did not"


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--mcp", "no-such-program"], "environment.options.command: there is no program 'no-such-program'"),
        (["--mcp", "a 'b"], "No closing quotation: write the command as in a shell"),
        (["--mcp", "a", "--resume"], "--mcp begins a run of its own: leave --recipe and --resume out"),
        (["--mcp", "a", "--recipe", "recipes/mcp.yaml"], "leave --recipe and --resume out"),
        (["--mcp", "a", "--set", "environment.options.probes=1"], "did you mean 'probe'?"),
    ],
)
def test_a_mistake_before_a_servers_run_writes_nothing(words, says, tmp_path, monkeypatch):
    monkeypatch.setenv(TRUST_VARIABLE, "")  # what the command sets is undone with it
    done = run_here("graph.run_iteration", *words, "--run", str(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert [*tmp_path.iterdir()] == []


@pytest.mark.process
def test_a_role_without_its_model_is_refused_before_a_servers_run_writes(tmp_path, monkeypatch):
    monkeypatch.setenv(TRUST_VARIABLE, "")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    sets = ["environment.options.env=[PYTHONPATH]", "roles.local.adapters=nowhere"]
    given = [word for one in sets for word in ("--set", one)]
    server = f"{sys.executable} -m support.mcp_depot"
    done = run_here("graph.run_iteration", "--mcp", server, "--run", str(tmp_path / "run"), *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert "roles.local.adapters: nowhere/writer holds no adapter_config.json" in done.stderr
    assert [*tmp_path.iterdir()] == []
