"""For the tests of the graph: one run of three iterations."""

import shutil
from pathlib import Path

import pytest
from support.made_run import AFTER, BEFORE, make_round, make_run, run_graph

from graph.report.summary import summarise
from graph.settings import load_recipe
from memory.run import RunDirectory, write_json


@pytest.fixture(scope="session")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with one iteration, whose graph has run: nobody may change it."""
    run = make_run(tmp_path_factory.mktemp("small") / "run")
    run_graph(run)
    return run


@pytest.fixture(scope="session")
def grown_run(evolved: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The same run after three iterations, with scores and summaries: nobody may change it."""
    root: Path = tmp_path_factory.mktemp("grown") / "run"
    shutil.copytree(evolved.root, root)
    run = RunDirectory(root)
    for number in range(3):
        folder = run.iteration(number)
        if number:
            make_round(run, number)
            run_graph(run, number)
        write_json(folder.evaluation_before, BEFORE)
        write_json(folder.evaluation_after, AFTER)
        write_json(folder.summary, summarise(run, load_recipe(run.settings_path), number))
    return run
