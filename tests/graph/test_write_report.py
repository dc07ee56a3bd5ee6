"""`coevolve report`: where the page is written, what is refused, what is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.commands import run_here
from support.made_run import make_run

from memory.run import RunDirectory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return make_run(tmp_path_factory.mktemp("made") / "run")


def report(*arguments: object) -> tuple[int, str, str]:
    done = run_here("graph.write_report", *map(str, arguments))
    return done.returncode, done.stdout, done.stderr


def test_the_page_is_in_the_run_and_is_replaced(run: RunDirectory) -> None:
    for _ in range(2):
        status, said, _ = report(run.root)
        assert status == 0
        assert re.match(rf"{re.escape(str(run.report_path))}: 0\.\d MB in ", said)
        assert said.endswith("with the turns of all 60 rollouts\n")
    page = run.report_path.read_bytes()
    assert page.startswith(b"<!doctype html>")
    assert page.rstrip().endswith(b"</html>")


def test_another_file_is_new(run: RunDirectory, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "page.html"
    assert report(run.root, "--output", path)[0] == 0
    before = path.read_bytes()
    status, _, error = report(run.root, "--output", path)
    assert (status, error) == (2, f"error: {path} exists: choose another --output\n")
    status, _, error = report(run.root, "--output", run.tasks_path)
    assert (status, error) == (2, f"error: {run.tasks_path} exists: choose another --output\n")
    assert path.read_bytes() == before


def test_a_folder_that_is_not_a_run_is_named(tmp_path: Path) -> None:
    status, _, error = report(tmp_path)
    assert status == 2
    assert error.startswith(f"error: {tmp_path} is not a run, it has no settings.yaml")
