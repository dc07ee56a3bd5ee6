"""The run directory: its layout, who may create and open it, and its settings."""

import os
import subprocess
import sys

import pytest
import yaml
from pydantic import Field

from environments.base import InputError
from environments.settings import Section
from graph.settings import RunSettings
from memory.failures import MemorySettings
from memory.run import RunDirectory, write_jsonl
from training.settings import TrainingSettings


class Small(Section):
    seed: int = Field(0, ge=0)
    memory: MemorySettings = MemorySettings()


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "runs" / "one", Small(seed=7))


def test_layout(run):
    assert run.settings_path == run.root / "settings.yaml"
    assert run.tasks_path == run.root / "tasks.jsonl"
    assert run.iteration(0).root == run.root / "iterations" / "000"
    assert run.iteration(12).root == run.root / "iterations" / "012"
    assert run.checkpoints_path == run.root / "checkpoints.sqlite"
    assert run.policy_path == run.root / "policy"
    assert run.failures_path == run.root / "failures"
    assert RunDirectory.open(run.root) == run


def test_an_existing_run_is_not_created_again(run):
    with pytest.raises(InputError, match=r"one exists: add --resume to continue it or choose another --run"):
        RunDirectory.create(run.root, Small(seed=8))
    assert run.settings(Small).seed == 7


def test_remains_of_a_run_and_files_are_not_created_over(tmp_path):
    write_jsonl(tmp_path / "remains" / "tasks.jsonl", [])
    with pytest.raises(InputError, match=r"remains holds parts of a run but no settings\.yaml"):
        RunDirectory.create(tmp_path / "remains", Small())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file cannot be made, File exists: choose another --run"):
        RunDirectory.create(tmp_path / "file", Small())
    with pytest.raises(InputError, match="below cannot be made, Not a directory: choose another --run"):
        RunDirectory.create(tmp_path / "file" / "below", Small())


def test_a_folder_that_holds_other_things_may_become_a_run(tmp_path):
    (tmp_path / "recipe.yaml").write_text("seed: 1")
    assert RunDirectory.create(tmp_path, Small(seed=3)).settings(Small).seed == 3


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_a_folder_that_is_no_run_is_not_opened(tmp_path, kind):
    path = tmp_path / "somewhere"
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("")
    with pytest.raises(InputError, match=r"somewhere is not a run, it has no settings\.yaml"):
        RunDirectory.open(path)


def test_the_whole_recipe_comes_back(tmp_path):
    settings = RunSettings(seed=5, training=TrainingSettings(learning_rate=1e-9))
    run = RunDirectory.create(tmp_path / "run", settings)
    assert run.settings(RunSettings) == settings
    assert run.section("training", TrainingSettings) == settings.training
    assert run.section("seed", int) == 5
    run.check_settings()
    continued = settings.model_copy(update={"iterations": 9})
    run.save_settings(continued)
    assert RunDirectory.open(run.root).section("iterations", int) == 9


def _changed(run, change):
    document = yaml.safe_load(run.settings_path.read_text())
    change(document)
    run.settings_path.write_text(yaml.safe_dump(document))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d["memory"].update(embeder="x"), "settings.yaml: memory.embeder: Extra inputs are not permitted"),
        (
            lambda d: d["memory"].update(duplicate_above=2),
            "settings.yaml: memory.duplicate_above: Input should be less than",
        ),
        (lambda d: d.pop("memory"), "settings.yaml has no section 'memory'"),
        (lambda d: d.update(memory=3), "settings.yaml: memory: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_section_is_told_with_file_and_key(run, change, told):
    _changed(run, change)
    with pytest.raises(InputError) as caught:
        run.section("memory", MemorySettings)
    assert told in str(caught.value)


def test_settings_that_were_edited_are_read_by_nobody(run):
    _changed(run, lambda d: d["memory"].update(duplicate_above=0.5))
    told = r"settings\.yaml: 'memory\.duplicate_above' is 0\.5, the run was made with 0\.9: put it back"
    with pytest.raises(InputError, match=told):
        run.section("seed", int)
    with pytest.raises(InputError, match=told):
        run.settings(Small)
    run.recorded_path.unlink()
    with pytest.raises(InputError, match=r"settings\.recorded\.yaml is gone.*: restore it, or start a new run with"):
        run.settings(Small)


def test_a_process_that_is_killed_while_it_makes_a_run_leaves_none(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("memory.run.write_atomically", lambda path, content: written.append(path.name))
    RunDirectory.create(tmp_path / "run", RunSettings())
    assert written == ["settings.recorded.yaml", "settings.yaml"]  # a folder with settings.yaml is a run


@pytest.mark.parametrize(
    ("text", "told"),
    [("a: [", "not YAML"), ("", "holds no sections"), ("!!python/object/apply:os.getcwd []", "not YAML")],
)
def test_broken_settings_are_told(run, text, told):
    run.settings_path.write_text(text)
    with pytest.raises(InputError, match=told):
        run.section("memory", MemorySettings)


@pytest.mark.process
def test_locking_clears_leftovers_and_excludes_another_process(run):
    leftover = run.iteration(0) / ".signals.jsonl.4194999-1.tmp"  # above Linux's largest process id
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    with run.lock():
        assert not leftover.exists()
        tried = subprocess.run(
            [sys.executable, "-c", LOCK, str(run.root)], capture_output=True, text=True, check=True, timeout=60
        )
    assert tried.stdout.strip() == (
        f"another process (pid {os.getpid()}) uses {run.root}: wait until it ends or stop it"
    )


LOCK = """
import sys
from pathlib import Path
from environments.base import InputError
from memory.run import RunDirectory

try:
    with RunDirectory.open(Path(sys.argv[1])).lock():
        print("held")
except InputError as error:
    print(error)
"""

CREATE = """
import sys
from pathlib import Path
from environments.base import InputError
from memory.run import RunDirectory
from memory.failures import MemorySettings

sys.stdin.readline()
try:
    RunDirectory.create(Path(sys.argv[1]), MemorySettings())
    print("created")
except InputError as error:
    print("refused")
"""


@pytest.mark.process
def test_of_two_processes_that_create_one_run_one_succeeds(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE, str(tmp_path / "run")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert sorted(process.communicate(timeout=60)[0].strip() for process in processes) == ["created", "refused"]
