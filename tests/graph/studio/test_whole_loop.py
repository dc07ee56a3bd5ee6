"""The loop's graph leaves the records of the command, and does the next thing that a run lacks."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from support.acted_rounds import acted_out
from support.made_run import first_tasks, records, settings_for

from environments.base import InputError
from graph.records import Fork
from graph.run import loop
from graph.run.interruption import Interruption
from graph.run.loop import iterate
from graph.run.progress import Progress
from graph.run.stages import Run
from graph.run_iteration import open_run
from graph.state import RunContext
from graph.studio.whole_loop import loop_graph
from memory.run import RunDirectory, write_json
from memory.tasks import admit

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _rounds_are_acted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "train", acted_out)


def new_run(root: Path) -> RunDirectory:
    run = RunDirectory.create(root, settings_for(root.parent / "recipe", "iterations=1"))
    admit(run, first_tasks())
    return run


def in_studio(run: RunDirectory, given: Any, *, thread: str = "t", **options: Any) -> tuple[dict[str, Any], list[str]]:
    async def work() -> tuple[dict[str, Any], list[str]]:
        graph: Any = loop_graph().compile(checkpointer=saver)
        config = {"configurable": {"thread_id": thread}}
        context = RunContext(run=str(run.root))
        told = [
            event["text"]
            async for event in graph.astream(given, config, context=context, stream_mode="custom", **options)
        ]
        return (await graph.aget_state(config)).values, told

    saver = InMemorySaver()
    return asyncio.run(work())


def by_command(run: RunDirectory, iterations: int) -> None:
    async def work() -> None:
        async for _ in iterate(Run(directory, settings, progress, Interruption(), resumed)):
            pass

    directory, settings, resumed = open_run(run.root, None, [], iterations, resume=True)
    with directory.lock(), Progress() as progress:
        directory.save_settings(settings)
        asyncio.run(work())


def test_iterations_started_in_studio_leave_the_records_of_the_command(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    shutil.copytree(run.root, tmp_path / "commanded")
    values, told = in_studio(run, {"iterations": 2})
    commanded = RunDirectory.open(tmp_path / "commanded")
    by_command(commanded, 2)
    assert (values["iteration"], values["until"]) == (1, 2)
    assert records(run.root) == records(commanded.root)
    assert run.settings_path.read_bytes() == commanded.settings_path.read_bytes()
    assert values["digest"]["train"][0].startswith("iteration 1: trained on ")
    assert values["digest"]["evolve"][0] == "iteration 1: its thread is 00000000-0000-4000-8000-000000000001"
    assert any(line.startswith("iteration 0: graph: done in") for line in told)


def test_a_finished_run_gets_a_further_iteration_and_a_wrong_call_changes_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    by_command(run, 1)
    before = records(run.root)
    for given, sentence in (
        (0, "iterations: 0 is not a number of iterations: give one from 1 to 1000"),
        ("x", "iterations: 'x' is not a number"),
        (True, "iterations: True is not a number"),
    ):
        with pytest.raises(InputError, match=sentence):
            in_studio(run, {"iterations": given})
    assert records(run.root) == before
    in_studio(run, {})
    assert run.iteration(1).summary.exists()
    assert not run.iteration(2).root.exists()
    after = records(run.root)
    assert {name: after[name] for name in before if name.startswith("iterations/000")} == {
        name: text for name, text in before.items() if name.startswith("iterations/000")
    }


def test_a_stage_that_is_replayed_does_not_run_ahead(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")

    async def work() -> None:
        graph: Any = loop_graph().compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t"}}
        context = RunContext(run=str(run.root))
        await graph.aupdate_state(config, {"iteration": 7, "until": 9}, as_node="train")
        with pytest.raises(
            InputError, match="iteration 0 has no finished round of training: begin with the node tasks"
        ):
            await graph.ainvoke(None, config, context=context)

    asyncio.run(work())
    assert not run.iteration(0).root.exists()


def test_a_fork_whose_graph_has_not_ended_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    write_json(run.fork_path, Fork(of="other", thread="t", iteration=0))
    with pytest.raises(InputError, match="is a fork of other whose graph has not ended: go on with thread t"):
        in_studio(run, {})


def test_a_cancelled_call_stops_its_stage_and_releases_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path / "run")
    seen: list[str] = []

    async def endless(work: Run, iteration: int) -> None:
        seen.append("begun")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("stopped")
            raise

    async def work() -> None:
        graph: Any = loop_graph().compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t"}}
        call = asyncio.create_task(graph.ainvoke({}, config, context=RunContext(run=str(run.root))))
        while not seen:
            await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    monkeypatch.setattr(loop, "train", endless)
    asyncio.run(work())
    assert seen == ["begun", "stopped"]
    with run.lock():
        assert not run.iteration(0).round.exists()
