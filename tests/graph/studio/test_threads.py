"""The server's list of threads is made that of the run when the server starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.made_run import make_run, run_graph

from graph.checkpoints import thread_id
from graph.studio.server import list_threads, name_of
from memory.run import RunDirectory

pytestmark = pytest.mark.slow


class Listed:
    """The part of a server's client that lists threads, with a list of its own."""

    def __init__(self, threads: dict[str, dict[str, Any]]) -> None:
        self.listed = threads
        self.threads = self.assistants = self

    async def search(
        self, *, metadata: dict[str, Any] | None = None, graph_id: str = "", limit: int
    ) -> list[dict[str, Any]]:
        if metadata is None:
            return [{"graph_id": "iteration", "assistant_id": "assistant-1"}]
        return [{"thread_id": name} for name, one in self.listed.items() if metadata.items() <= one.items()]

    async def create(self, *, thread_id: str, metadata: dict[str, Any], if_exists: str) -> None:
        self.listed.setdefault(thread_id, metadata)

    async def update(self, thread: str, *, metadata: dict[str, Any]) -> None:
        self.listed[thread] |= metadata


@pytest.fixture
def evolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run whose first iteration's graph was run by the command."""
    run = make_run(tmp_path / "mine")
    run_graph(run)
    monkeypatch.setenv("COEVOLVE_RUN", str(run.root))
    return run


@pytest.mark.usefixtures("evolved")
async def test_threads_of_the_run_are_listed_by_name() -> None:
    client = Listed({})
    await list_threads(client)  # type: ignore[arg-type]
    assert client.listed == {
        thread_id(0): {
            "graph_id": "iteration",
            "assistant_id": "assistant-1",
            "name": "mine, iteration 0",
            "run": "mine",
        },
    }


async def test_a_run_without_a_thread_is_listed_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "mine")
    monkeypatch.setenv("COEVOLVE_RUN", str(run.root))
    client = Listed({})
    await list_threads(client)  # type: ignore[arg-type]
    assert client.listed == {}


def test_a_thread_is_named_after_its_run_and_iteration(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "quickstart")
    assert name_of(run, thread_id(4), 4) == "quickstart, iteration 4"
    assert name_of(run, "other", 4) == "quickstart, iteration 4, made in Studio"
    assert name_of(run, "other", "x") == "quickstart, not begun"
