"""Forks and edits of a run: its finished records stay, and a copy that is a run of its own takes what comes of them."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import ExecutionInfo, Runtime
from support.made_run import first_tasks, make_run, records, run_graph

from environments.base import InputError
from graph.checkpoints import open_checkpoints, run_checkpoints
from graph.forks import working_run
from graph.iteration import iteration_graph
from graph.records import Evolution
from graph.report.summary import Summary, summarise
from graph.run.interruption import Interruption
from graph.run.loop import iterate
from graph.run.progress import Progress
from graph.run.stages import Run, thread_id
from graph.run_iteration import open_run
from graph.state import BranchState, RunContext
from memory.records import FailureContext
from memory.run import RunDirectory, read_json, read_jsonl, write_json
from memory.tasks import load_tasks

Calls = Callable[[Any, RunnableConfig, RunContext], Awaitable[None]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, dict[str, str]]:
    """A run whose only iteration is finished, and its records."""
    run = make_run(tmp_path_factory.mktemp("forks") / "run", "iterations=1")
    (run.policy_path / "none").mkdir(parents=True)
    (run.policy_path / "none" / "weights").write_bytes(b"w" * 100)
    run_graph(run)
    write_json(run.iteration(0) / "summary.json", summarise(run, open_run(run.root, None, [], None, resume=True)[1], 0))
    return run, records(run.root)


@pytest.fixture
def finished(made: tuple[RunDirectory, dict[str, str]], tmp_path: Path) -> Iterator[RunDirectory]:
    """A copy of the finished run, which must be as it was at the end of the test."""
    shutil.copytree(made[0].root, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    before = contents(run)
    yield run
    assert contents(run) == before


@pytest.fixture
def unfinished(made: tuple[RunDirectory, dict[str, str]], tmp_path: Path) -> RunDirectory:
    """The run with its round of training, before its graph."""
    return make_run(tmp_path / "run", "iterations=1")


def contents(run: RunDirectory) -> dict[str, str]:
    return {
        str(path.relative_to(run.root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.root.rglob("*"))
        if path.is_file() and not path.name.startswith(("checkpoints.sqlite", "run.lock"))
    }


def in_studio(run: RunDirectory, thread: str, calls: Calls) -> None:
    """What a server does: calls of the graph with the run's checkpoints, and edits between them."""

    async def work() -> None:
        async with run_checkpoints(run) as saver:
            graph = iteration_graph().compile(checkpointer=saver)
            await calls(graph, {"configurable": {"thread_id": thread}}, RunContext(run=str(run.root)))

    asyncio.run(work())


async def one_signal(graph: Any, config: RunnableConfig, context: RunContext) -> None:
    """Stop before ``reflect``, leave one signal of those chosen, and go on."""
    await graph.ainvoke({"iteration": 0}, config, context=context, interrupt_before=["reflect"])
    state = await graph.aget_state(config)
    await graph.aupdate_state(config, {"signals": tuple(state.values["signals"][:1])})
    await graph.ainvoke(None, config, context=context)


async def stop_after_one_signal(graph: Any, config: RunnableConfig, context: RunContext) -> None:
    await graph.ainvoke({"iteration": 0}, config, context=context, interrupt_before=["reflect"])
    state = await graph.aget_state(config)
    await graph.aupdate_state(config, {"signals": tuple(state.values["signals"][:1])})
    await graph.ainvoke(None, config, context=context, interrupt_before=["update"])


def contexts_in(run: RunDirectory) -> list[FailureContext]:
    return read_jsonl(run.iteration(0) / "contexts.jsonl", FailureContext)


def summaries(run: RunDirectory) -> list[Summary]:
    """What --resume of the run does."""

    async def collect() -> list[Summary]:
        return [summary async for summary in iterate(work)]

    with run.lock(), Progress() as progress:
        directory, settings, resumed = open_run(run.root, None, [], None, resume=True)
        work = Run(directory, settings, progress, Interruption(), resumed)
        return asyncio.run(collect())


def test_an_edit_of_a_finished_iteration_works_in_a_run_of_its_own(finished: RunDirectory) -> None:
    in_studio(finished, "mine/1", one_signal)
    fork = RunDirectory.open(finished.root.with_name("run@mine_1"))
    assert len(contexts_in(finished)) == 6
    assert len(contexts_in(fork)) == 1
    evolution = read_json(fork.iteration(0) / "evolution.json", Evolution)
    tasks = load_tasks(fork)
    assert len(tasks) == len(first_tasks()) + len(evolution.admitted)
    assert len(evolution.admitted) < len(read_json(finished.iteration(0) / "evolution.json", Evolution).admitted)
    (summary,) = summaries(fork)
    assert (summary.iteration, summary.tasks, summary.admitted) == (0, len(first_tasks()), len(evolution.admitted))
    assert (fork.policy_path / "none" / "weights").samefile(finished.policy_path / "none" / "weights")
    assert fork.settings_path.read_bytes() == finished.settings_path.read_bytes()
    assert not list(fork.root.glob("checkpoints*"))
    trajectories = "iterations/000/trajectories.jsonl"
    assert (fork.root / trajectories).samefile(finished.root / trajectories)


def test_every_fork_of_a_thread_gets_a_copy_and_an_equal_one_makes_equal_records(
    finished: RunDirectory, made: tuple[RunDirectory, dict[str, str]]
) -> None:
    async def fork_twice(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        history = [state async for state in graph.aget_state_history(config)]
        for node in ("deduplicate", "update"):
            (state,) = [one for one in history if one.next == (node,)]
            await graph.ainvoke(None, state.config, context=context)

    in_studio(finished, thread_id(0), fork_twice)
    for suffix in ("", ".2"):
        fork = RunDirectory.open(finished.root.with_name(f"run@{thread_id(0)}{suffix}"))
        summaries(fork)
        same = {name: text for name, text in records(fork.root).items() if name != "fork.json"}
        assert same == made[1]


def test_an_edit_of_an_unfinished_iteration_leaves_it_to_be_finished_as_ever(
    unfinished: RunDirectory, made: tuple[RunDirectory, dict[str, str]]
) -> None:
    in_studio(unfinished, thread_id(0), stop_after_one_signal)
    fork = RunDirectory.open(unfinished.root.with_name(f"run@{thread_id(0)}"))
    assert len(contexts_in(fork)) == 1
    with pytest.raises(
        InputError, match=rf"is a fork of run whose graph has not ended: go on with thread {thread_id(0)}"
    ):
        run_graph(fork)
    run_graph(unfinished)
    made_records = {name: text for name, text in made[1].items() if not name.endswith("summary.json")}
    assert records(unfinished.root) == made_records


def test_another_thread_runs_an_unfinished_iteration_in_the_run(
    unfinished: RunDirectory, made: tuple[RunDirectory, dict[str, str]]
) -> None:
    async def run_and_resume(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({"iteration": 0}, config, context=context, interrupt_before=["deduplicate"])
        await graph.ainvoke(None, config, context=context)

    in_studio(unfinished, "other", run_and_resume)
    assert {path.name for path in unfinished.root.parent.iterdir()} == {"recipe", "run"}
    assert records(unfinished.root) == {name: text for name, text in made[1].items() if "summary" not in name}


def test_a_finished_iteration_is_not_run_without_a_thread(finished: RunDirectory) -> None:
    with pytest.raises(
        InputError, match=r"iterations/000 is done .* call the graph with a checkpointer and a thread_id"
    ):
        asyncio.run(
            iteration_graph().compile().ainvoke({"iteration": 0}, context=RunContext(run=str(finished.root)))  # type: ignore[call-overload]
        )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "iteration: -1 is not the number of an iteration"),
        ({"iteration": -1}, "iteration: -1 is not the number"),
        ({"iteration": "x"}, "iteration: 'x' is not the number"),
        ({"iteration": True}, "iteration: True is not the number"),
        ({"iteration": 0, "signals": 5}, None),
        ({"iteration": 99}, "iterations/099/trajectories.jsonl does not exist"),
    ],
)
def test_a_wrong_input_is_told_and_the_thread_stays_readable(
    finished: RunDirectory, given: dict[str, Any], told: str | None
) -> None:
    async def try_it(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        with pytest.raises(InputError, match=told or "signals: 5 is not a list of ids"):
            await graph.ainvoke(given, config, context=context)
        state = await graph.aget_state(config)
        assert given.items() <= state.values.items()
        assert state.next == ("extract",)

    in_studio(finished, "wrong", try_it)


async def test_ids_that_the_run_does_not_have_are_told(finished: RunDirectory) -> None:
    async def invent(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.aupdate_state(config, {"iteration": 0, "signals": ("signal-x",)}, as_node="extract")
        with pytest.raises(InputError, match="has no records of the ids in the state"):
            await graph.ainvoke(None, config, context=context)

    await asyncio.to_thread(in_studio, finished, "invented", invent)


HOLD = """
import sys
from pathlib import Path
from memory.run import RunDirectory

with RunDirectory.open(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
def test_a_run_that_another_process_holds_is_refused_with_its_holder(finished: RunDirectory) -> None:
    command = [sys.executable, "-c", HOLD, str(finished.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"

        async def fork(graph: Any, config: RunnableConfig, context: RunContext) -> None:
            with pytest.raises(InputError, match=rf"another process \(pid {process.pid}\) uses {finished.root}:"):
                await graph.ainvoke({"iteration": 0}, config, context=context)

        in_studio(finished, "mine", fork)
        process.communicate("")
    assert not finished.root.with_name("run@mine").exists()


async def test_a_server_works_on_the_run_that_it_opened_alone(
    finished: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished.root, tmp_path / "other")
    monkeypatch.setenv("COEVOLVE_RUN", str(tmp_path / "other"))
    async with open_checkpoints() as saver:
        graph: Any = iteration_graph().compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "mine"}}
        with pytest.raises(
            InputError, match=rf"for {finished.root} start another one with COEVOLVE_RUN={finished.root}"
        ):
            await graph.ainvoke({"iteration": 0}, config, context=RunContext(run=str(finished.root)))
    assert not finished.root.with_name("run@mine").exists()


def test_a_branch_of_a_finished_iteration_gets_one_copy_with_its_siblings(finished: RunDirectory) -> None:
    info = ExecutionInfo(checkpoint_id="", checkpoint_ns="", task_id="", thread_id="mine")
    runtime = Runtime(context=RunContext(run=str(finished.root)), execution_info=info)
    contexts = sorted(path.name for path in (finished.iteration(0) / "branches").iterdir())

    async def runs(**given: str) -> list[Path]:
        return await asyncio.gather(*(where(BranchState(context_id=one, **given)) for one in contexts))

    async def where(state: BranchState) -> Path:
        async with working_run(state, runtime, "explore") as run:
            return run.root

    copy = finished.root.with_name("run@mine")
    assert set(asyncio.run(runs(stage="iterations/000"))) == {copy}
    assert set(asyncio.run(runs(stage="iterations/000", run="run@mine"))) == {copy}
    wrong = [
        ({"stage": "iterations/000/.."}, "is not a branch of an iteration"),
        ({"stage": "iterations/000", "run": "../elsewhere"}, "is not a copy of"),
    ]
    for given, told in wrong:
        with pytest.raises(InputError, match=told):
            asyncio.run(runs(**given))
