"""The command: exit statuses, what stands on stdout, and runs that are continued. Training is done beforehand."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.made_run import make_run, records, settings_for
from typer.testing import CliRunner

from agents.settings import BudgetSettings
from agents.spending import Ledger, Request
from environments.base import InputError
from graph.run_iteration import app, open_run
from memory.records import Measured, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl, write_json, write_jsonl
from training.grpo.record import RoundRecord

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("preloaded")]

KEYS = {"iteration", "tasks", "admitted", "refused", "signals", "contexts", "evaluation", "seconds", "cost"}
COST = {"model_calls", "prompt_tokens", "completion_tokens", "environment_calls", "sampled_tokens"}
COST |= {"money", "stages"}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "graph.run_iteration", *map(str, arguments)]


def start(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), check=False, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, str]:
    """A run whose first iteration the command finished, and what it printed."""
    run = make_run(tmp_path_factory.mktemp("trained") / "run")
    ended = start("--run", run.root, "--resume", "--iterations", "1", "--json")
    assert ended.returncode == 0, ended.stderr
    return run, ended.stdout


def test_json_is_one_line_an_iteration_and_nothing_else(trained: tuple[RunDirectory, str]) -> None:
    run, printed = trained
    (line,) = printed.splitlines()
    told = json.loads(line)
    assert set(told) >= KEYS
    assert set(told["signals"]) == {"forgetting", "boundary", "rare"}
    assert set(told["contexts"]) == {"new", "known", "left_out"}
    assert set(told["cost"]) == COST
    assert (told["iteration"], told["tasks"]) == (0, 5)
    assert told["admitted"] > 0
    assert told["evaluation"] is None
    assert set(told["seconds"]) == {"seed", "train", "evolve"}
    assert told["cost"]["sampled_tokens"] > 0
    assert told["cost"]["environment_calls"] > 0
    assert "scripted roles" in told["labels"]
    assert json.loads((run.iteration(0) / "summary.json").read_text()) == told


def test_a_finished_run_prints_the_same_again_and_does_nothing(trained: tuple[RunDirectory, str]) -> None:
    run, printed = trained
    before = records(run.root)
    ended = start("--run", run.root, "--resume", "--iterations", "1", "--json")
    assert (ended.returncode, ended.stdout) == (0, printed)
    assert records(run.root) == before


def test_without_json_tables_stand_on_stdout_and_progress_does_not(trained: tuple[RunDirectory, str]) -> None:
    run, _ = trained
    ended = start("--run", run.root, "--resume", "--iterations", "1")
    assert ended.returncode == 0
    assert ended.stdout.startswith("iteration  tasks  ")
    assert "Nothing is left to do" in ended.stdout, "an earlier command did the iteration, and printed its words"
    assert ended.stdout.index("\n0 ") < ended.stdout.index("Next")
    assert "done in" not in ended.stdout


def test_an_existing_run_needs_resume(trained: tuple[RunDirectory, str]) -> None:
    run, _ = trained
    ended = start("--run", run.root)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--resume" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("change", [("--set", "training.kl=0.5"), ("--seed", "99")])
def test_a_run_keeps_its_settings(trained: tuple[RunDirectory, str], change: tuple[str, str]) -> None:
    run, _ = trained
    ended = start("--run", run.root, "--resume", *change)
    assert ended.returncode == 2
    assert ("training.kl" if "kl" in change[1] else "'seed'") in ended.stderr


def test_a_child_that_calls_its_input_wrong_is_a_users_mistake(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run.iteration(0) / "round.json").unlink()
    run.tasks_path.write_text("")
    ended = start("--run", run.root, "--resume", "--json")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"error: training.run_round: {run.tasks_path} holds no task" in ended.stderr
    assert run.settings_path.exists()


def test_a_new_run_that_begins_with_a_mistake_is_unmade(tmp_path: Path) -> None:
    settings_for(tmp_path)
    options = ("--recipe", tmp_path / "recipe.yaml", "--run", tmp_path / "run")
    given = ("--set", f"tasks.initial={tmp_path / 'none.jsonl'}", "--set", "tasks.initial_count=100")
    ended = start(*options, *given)
    assert ended.returncode == 2
    assert "none.jsonl cannot be read" in ended.stderr
    assert not (tmp_path / "run").exists()
    assert open_run(tmp_path / "run", tmp_path / "recipe.yaml", [], None, resume=False).resumed is False


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_and_keeps_the_state(tmp_path: Path, number: signal.Signals, status: int) -> None:
    root = tmp_path / "run"
    settings_for(tmp_path)
    options = ("--recipe", tmp_path / "recipe.yaml", "--run", root, "--set", "tasks.initial_count=100000", "--json")
    with subprocess.Popen(command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "unguided exploration" in process.stderr.readline()
        time.sleep(1.0)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, "")
    assert "--resume" in err
    assert RunDirectory.open(root).settings_path.exists()
    with RunDirectory.open(root).lock():
        pass


def test_only_the_total_of_iterations_may_grow(trained: tuple[RunDirectory, str]) -> None:
    root = trained[0].root
    assert open_run(root, None, [], 5, resume=True).settings.iterations == 5
    assert open_run(root, None, ["iterations=1"], None, resume=True).settings.iterations == 2
    assert open_run(root, None, [], 1, resume=True).settings.iterations == 1
    with pytest.raises(InputError, match="add --resume"):
        open_run(root, None, [], 5, resume=False)


def test_a_budget_of_the_chat_roles_may_be_raised_and_not_otherwise_changed(tmp_path: Path) -> None:
    root = tmp_path / "run"
    chat = "roles.reflector={kind: chat, model: some-model}"
    make_run(root, chat, "roles.budget.calls=40")
    assert open_run(root, None, ["roles.budget.calls=41"], None, resume=True).settings.roles.budget.calls == 41
    assert open_run(root, None, [], None, resume=True).settings.roles.budget.calls == 40
    for change in ("roles.budget.calls=39", "roles.budget.calls=null", "roles.budget.tokens=1000"):
        with pytest.raises(InputError, match=change.partition("=")[0]):
            open_run(root, None, [change], None, resume=True)


def test_resume_of_a_run_that_was_never_made_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    settings_for(tmp_path)
    with pytest.raises(InputError, match=r"there is nothing to resume: name another --run or leave --resume out"):
        open_run(tmp_path / "run", tmp_path / "recipe.yaml", [], 1, resume=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("seed: 3\n", "seed: 4\n", r"'seed' is 4, the run was made with 3"),
        ("  steps: 3\n", "  steps: 30\n", r"'training.steps' is 30, the run was made with 3"),
        ("- GorillaFileSystem\n", "", r"'environment.options.classes' is \['VehicleControlAPI'\]"),
        ("iterations: 2\n", "iterations: 1\n", r"'iterations' is 1, the run was made with 2"),
    ],
)
def test_a_settings_file_that_was_edited_is_refused_with_its_key(tmp_path: Path, old: str, new: str, told: str) -> None:
    run = make_run(tmp_path / "run")
    text = run.settings_path.read_text()
    assert old in text
    run.settings_path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=told):
        open_run(run.root, None, [], None, resume=True)
    run.settings_path.write_text(f"# a remark\n{text}")
    assert open_run(run.root, None, [], None, resume=True).resumed


def test_what_resume_may_raise_may_be_raised_in_the_file_and_is_recorded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    text = run.settings_path.read_text()
    run.settings_path.write_text(text.replace("iterations: 2\n", "iterations: 4\n", 1))
    settings = open_run(run.root, None, [], None, resume=True).settings
    assert settings.iterations == 4
    run.save_settings(settings)
    run.settings_path.write_text(text)
    with pytest.raises(InputError, match="'iterations' is 2, the run was made with 4"):
        open_run(run.root, None, [], None, resume=True)


def test_a_run_without_the_record_of_its_settings_does_not_go_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.recorded_path.unlink()
    run.settings_path.write_text(run.settings_path.read_text().replace("\nseed: ", "\nseed: 4", 1))
    with pytest.raises(InputError, match=r"settings\.recorded\.yaml is gone, so nothing shows whether"):
        open_run(run.root, None, [], None, resume=True)


@pytest.fixture
def hopeless(tmp_path: Path) -> RunDirectory:
    """A run whose round is done and had no success: one rollout in eight wrote a call, the others nothing."""
    run = make_run(tmp_path / "run", "signals.rare_percent=0.001")
    path = run.iteration(0).trajectories
    failed = []
    for place, one in enumerate(read_jsonl(path, Trajectory)):
        assert one.outcome is not None
        outcome = one.outcome.model_copy(update={"success": False})
        turns = one.turns if place % 8 == 0 else ()
        failed.append(one.model_copy(update={"outcome": outcome, "reward": 0.0, "turns": turns}))
    write_jsonl(path, failed)
    record = read_json(run.iteration(0).round, RoundRecord)
    write_json(run.iteration(0).round, record.model_copy(update={"success": 0.0}))
    return run


def test_a_round_without_any_success_is_told_with_advice_and_is_no_success_of_the_command(
    hopeless: RunDirectory,
) -> None:
    options = ["--run", str(hopeless.root), "--resume", "--iterations", "1"]
    ended = CliRunner().invoke(app, options)
    assert ended.exit_code == 4, ended.stderr
    told = " ".join(ended.stderr.split())
    found = re.search(r"iteration 0: none of the (\d+) rollouts of this round succeeded \((\d+) made no call", told)
    assert found, told
    assert int(found[1]) > int(found[2]) > 0
    assert "To change that, choose a policy that was trained to call these tools" in told
    assert f"iterations/000/trajectories.jsonl, for example in lines 1 and {found[1]}" in told
    assert f"Iteration 0: none of the {found[1]} rollouts" in " ".join(ended.stdout.split()), "at the end again"
    (line,) = CliRunner().invoke(app, [*options, "--json"]).stdout.splitlines()
    assert json.loads(line)["without_success"].startswith("none of the ")


def test_a_budget_that_is_spent_before_the_first_iteration_prints_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    run = make_run(tmp_path / "run", "roles.reflector={kind: chat, model: m}", "roles.budget.calls=1")
    run.iteration(0).round.unlink()
    Ledger(run.spending_path, BudgetSettings()).add(
        Request(role="reflector", subject="s", iteration=None, outcome="failed", measured=Measured(calls=1))
    )
    ended = CliRunner().invoke(app, ["--run", str(run.root), "--resume"])
    assert (ended.exit_code, ended.stdout) == (4, ""), ended.stderr
    assert "stopped before the first iteration: roles.budget.calls (1) is spent" in ended.stderr
