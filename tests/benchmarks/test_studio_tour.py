"""The tour of LangGraph Studio on a small run: every action is as docs/studio.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import run_here
from support.made_run import make_round, make_run, run_graph

from graph.recipe import load_recipe
from graph.report.summary import summarise
from memory.run import write_json

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.long, pytest.mark.external]


def test_every_action_is_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # langgraph-api 0.16.7 copies its checkpointer when checkpoints are strict, and recurses without end.
    monkeypatch.delenv("LANGGRAPH_STRICT_MSGPACK", raising=False)
    run = make_run(tmp_path / "run")
    run_graph(run)
    write_json(run.iteration(0) / "summary.json", summarise(run, load_recipe(run.settings_path), 0))
    make_round(run, 1)
    toured = run_here("benchmarks.studio_tour", str(run.root))
    assert (toured.returncode, toured.stderr) == (0, ""), toured.stdout
    *actions, counted = toured.stdout.splitlines()
    assert counted == f"{len(actions) - 1} of {len(actions) - 1} actions as documented"
