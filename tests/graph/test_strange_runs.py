"""A run of anybody: whatever is in the place of one of its files, commands say so and touch nothing outside.

Each file and folder that `memory/run_files.py` names is replaced in turn.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.commands import run_here
from support.made_run import settings_for

from agents.settings import BudgetSettings
from agents.spending import Ledger, Request
from environments.base import InputError
from graph.checkpoints import discard_unfit
from graph.report.lineage import History
from graph.settings import load_recipe
from graph.tracking import follow_run
from memory.processes import exclusive, run_child
from memory.run import (
    SEED_STAGE,
    BranchDirectory,
    IterationDirectory,
    PolicyDirectory,
    RunDirectory,
    StageDirectory,
)
from memory.run_files import Folder, RunFile
from memory.tasks import load_tasks
from training.grpo.checkpoints import newest_checkpoint
from training.grpo.record import RoundRecord

SECRET = "export TOKEN=of-somebody-else\n"

Put = Callable[[Path, Path], None]
"""Puts something in the place of a file; the second path is of a folder outside."""


def places() -> dict[str, RunFile]:
    """Every file and folder of a run by its path in it."""
    run = RunDirectory(Path("run"))
    iteration = run.iteration(0)
    folders: tuple[Folder, ...] = (
        run,
        run.seed,
        iteration,
        iteration.branch("context-1"),
        PolicyDirectory(run.policy_path / "checkpoint-1"),
    )
    assert {type(one) for one in folders} == {
        RunDirectory,
        StageDirectory,
        IterationDirectory,
        BranchDirectory,
        PolicyDirectory,
    }
    return {
        str((folder.root / file.name).relative_to(run.root)): file
        for folder in folders
        for kind in type(folder).__mro__
        for file in vars(kind).values()
        if isinstance(file, RunFile)
    }


PLACES = places()


@pytest.fixture(scope="module")
def strange(grown_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A copy of a run, in which one thing after the other is replaced and put back."""
    root = tmp_path_factory.mktemp("strange") / "run"
    shutil.copytree(grown_run.root, root)
    return RunDirectory(root)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file that is nobody's business, and is the same afterwards."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / ".bashrc").write_text(SECRET)
    before = (folder / ".bashrc").stat().st_mtime_ns
    yield folder
    assert [one.name for one in folder.iterdir()] == [".bashrc"]
    assert (folder / ".bashrc").read_text() == SECRET
    assert (folder / ".bashrc").stat().st_mtime_ns == before


@contextmanager
def replaced(path: Path, run: RunDirectory, put: Callable[[Path], None]) -> Iterator[None]:
    """Put something in the place of a file or folder of a run, and what was there back afterwards."""
    aside = run.root.with_name("aside")
    there = path.exists()
    if there:
        path.rename(aside)
    made = [one for one in path.parents if not one.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path)
    try:
        yield
    finally:
        if os.path.lexists(path):
            path.unlink()
        for folder in made:
            folder.rmdir()
        if there:
            aside.rename(path)


def linked(path: Path, outside: Path) -> None:
    path.symlink_to(outside / ".bashrc")


def linked_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def piped(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def zero(path: Path, outside: Path) -> None:
    with suppress(PermissionError):
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        return
    path.symlink_to("/dev/zero")


KINDS: tuple[Put, ...] = (linked, linked_folder, piped, zero)
COMMANDS: dict[str, Callable[[RunDirectory], tuple[str, ...]]] = {
    "graph.show": lambda run: ("--run", str(run.root)),
    "graph.write_report": lambda run: (str(run.root),),
    "graph.export.__main__": lambda run: (str(run.root), "--output", str(run.root.with_name("exported"))),
    "graph.check_recipe": lambda run: (str(run.settings_path),),
    "graph.run_iteration": lambda run: ("--run", str(run.root), "--resume"),
}


@pytest.mark.parametrize("place", PLACES)
def test_commands_refuse_a_run_whose_file_is_none(strange: RunDirectory, outside: Path, place: str) -> None:
    path = strange.root / place
    for kind in KINDS:
        with replaced(path, strange, lambda one, kind=kind: kind(one, outside)):
            for module, arguments in COMMANDS.items():
                if kind is not linked and module not in ("graph.show", "graph.run_iteration"):
                    continue
                done = run_here(module, *arguments(strange))
                assert (done.returncode, done.stdout) == (2, ""), module
                assert done.stderr.startswith("error: "), module
                assert done.stderr.count("\n") == 1, module
                assert path.name in done.stderr or "is not a run" in done.stderr, module
    assert not strange.root.with_name("exported").exists()


def ledger(run: RunDirectory) -> None:
    Ledger(run.spending_path, BudgetSettings()).add(
        Request(role="explorer", subject="context-1", iteration=0, outcome="answered")
    )


def logged(run: RunDirectory) -> None:
    log = run.iteration(0).training_log
    asyncio.run(run_child([sys.executable, "--version"], log_path=log, deadline=60))


def locked(run: RunDirectory) -> None:
    with exclusive(run.lock_path, "the run"):
        pytest.fail("a lock that is a link was taken")


def tracked(run: RunDirectory) -> None:
    said: list[str] = []
    settings = load_recipe(run.settings_path)
    training = settings.training.model_copy(update={"report_to": ("tensorboard",)})
    with follow_run(run, settings.model_copy(update={"training": training}), said.append) as follow:
        follow(0)
    raise InputError(said[0])


WRITERS: dict[str, Callable[[RunDirectory], object]] = {
    "spending.jsonl": ledger,
    "iterations/000/training.log": logged,
    "checkpoints.sqlite": lambda run: discard_unfit(run.checkpoints_path, []),
    "checkpoints.sqlite-wal": lambda run: discard_unfit(run.checkpoints_path, []),
}
READERS: dict[str, Callable[[RunDirectory], object]] = {
    "tasks.jsonl": load_tasks,
    "iterations/000/trajectories.jsonl": History.read,
    "iterations/000/signals.jsonl": History.read,
    "seed/contexts.jsonl": History.read,
    "settings.recorded.yaml": RunDirectory.check_settings,
    "run.lock": locked,
    "trackers/id": tracked,
    "policy/checkpoint-1/round_checkpoint.json": lambda run: newest_checkpoint(run.policy_path, 0),
}


@pytest.mark.parametrize("kind", [linked, zero])
@pytest.mark.parametrize("place", [*WRITERS, *READERS])
def test_what_came_after_the_look_through_is_not_followed(
    strange: RunDirectory, outside: Path, place: str, kind: Put
) -> None:
    with (
        replaced(strange.root / place, strange, lambda one: kind(one, outside)),
        pytest.raises(InputError, match=r"is (a link|a pipe)|a pipe or a device") as refused,
    ):
        (WRITERS | READERS)[place](strange)
    assert Path(place).name in str(refused.value)


@pytest.mark.parametrize("place", WRITERS)
def test_a_hard_link_is_not_written_to(strange: RunDirectory, outside: Path, place: str) -> None:
    with (
        replaced(strange.root / place, strange, lambda one: one.hardlink_to(outside / ".bashrc")),
        pytest.raises(InputError, match="hard link" if place != "spending.jsonl" else r"line 1: "),
    ):
        WRITERS[place](strange)


@pytest.mark.parametrize("place", ["settings.yaml", "tasks.jsonl", "iterations/000/trajectories.jsonl"])
def test_a_file_without_an_end_is_one_sentence(strange: RunDirectory, place: str) -> None:
    def bomb(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(2**40)

    with replaced(strange.root / place, strange, bomb):
        module = "graph.check_recipe" if place == "settings.yaml" else "graph.write_report"
        done = run_here(module, *COMMANDS[module](strange))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert Path(place).name in done.stderr


def test_a_run_may_be_named_by_a_link(strange: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(strange.root)
    assert run_here("graph.show", "--run", str(tmp_path / "mine")).returncode == 0


def test_a_new_run_is_not_begun_in_a_folder_that_holds_a_link(outside: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "run.lock").symlink_to(outside / ".bashrc")
    with pytest.raises(InputError, match=r"run\.lock is a link"):
        RunDirectory.create(root, settings_for(tmp_path / "recipe"))
    assert [one.name for one in root.iterdir()] == ["run.lock"]


@pytest.mark.parametrize("name", ["../..", "/etc", "..", ".", "", "a/b", "a\0b", "a" * 300, "\ud800", ".hidden", "a\n"])
def test_a_record_names_nothing_outside_of_its_folder(strange: RunDirectory, name: str) -> None:
    stage = strange.iteration(0)
    places = (stage.branch, stage.reflection, stage.branch("context-1").validation, strange.stage)
    for place in places[: None if name else 1]:
        with pytest.raises(InputError, match="the record that"):
            place(name)


@pytest.mark.parametrize("policy", ["../policy", "/policy", "policy/../../x", ".."])
def test_a_round_names_no_policy_outside_of_its_run(strange: RunDirectory, policy: str) -> None:
    record = RoundRecord.model_validate_json(strange.iteration(0).round.read_text())
    with pytest.raises(ValueError, match="leads out of the run"):
        RoundRecord.model_validate(record.model_dump() | {"policy": policy})
    assert strange.stage(SEED_STAGE).root == strange.seed_path
