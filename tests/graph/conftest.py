"""For the tests of the graph: strict checkpoints, and one run of three iterations."""

import os
from pathlib import Path

import pytest
from support.large_run import make_large_run
from support.made_run import make_run, run_graph

from memory.run import RunDirectory

# Only types that the state's schema reaches may be stored. LangGraph reads this when it is imported.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"


@pytest.fixture(scope="session")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with one iteration, whose graph has run: nobody may change it."""
    run = make_run(tmp_path_factory.mktemp("small") / "run")
    run_graph(run)
    return run


@pytest.fixture(scope="session")
def grown_run(evolved: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Three iterations of varied copies of its records: nobody may change it."""
    root: Path = tmp_path_factory.mktemp("grown") / "run"
    return make_large_run(root, evolved)
