"""Studio works in copies of a run: its files stay, and a copy that is a run of its own takes what comes of a call."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from support.made_run import first_tasks, make_run, records, run_graph

from environments.base import InputError
from graph.checkpoints import run_checkpoints, thread_id
from graph.iteration import iteration_graph
from graph.report.summary import Summary, summarise
from graph.run.stages import iterate
from graph.run_iteration import open_run
from graph.state import RunContext
from graph.studio.forks import asking, with_services
from memory.failures import DeduplicationResult
from memory.records import Draft, DraftVerification, FailureContext
from memory.run import RunDirectory, read_json, read_jsonl, write_json
from memory.run_files import Evolution, Fork
from memory.tasks import load_tasks

pytestmark = pytest.mark.slow

SUMMARY = "iterations/000/summary.json"
Calls = Callable[[Any, RunnableConfig, RunContext], Awaitable[None]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, dict[str, str]]:
    """A run whose only iteration is finished, and its records."""
    run = make_run(tmp_path_factory.mktemp("forks") / "run", "iterations=1")
    (run.policy_path / "none").mkdir(parents=True)
    (run.policy_path / "none" / "weights").write_bytes(b"w" * 100)
    run_graph(run)
    settings = open_run(run.root, None, [], None, resume=True).settings
    write_json(run.iteration(0) / "summary.json", summarise(run, settings, 0))
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
            graph = asking(iteration_graph(with_services).compile(checkpointer=saver))
            await calls(graph, {"configurable": {"thread_id": thread}}, RunContext())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COEVOLVE_RUN", str(run.root))
        asyncio.run(work())


def contexts_in(run: RunDirectory) -> list[FailureContext]:
    return read_jsonl(run.iteration(0) / "contexts.jsonl", FailureContext)


def summaries(run: RunDirectory) -> list[Summary]:
    """What --resume of the run does."""

    async def collect() -> list[Summary]:
        return [summary async for summary in iterate(work)]

    with run.lock():
        work = open_run(run.root, None, [], None, resume=True)
        return asyncio.run(collect())


def copy_of(run: RunDirectory, thread: str, number: int = 1) -> RunDirectory:
    return RunDirectory.open(run.root.with_name(f"run@{thread}{'' if number == 1 else f'.{number}'}"))


def copies(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in run.root.parent.glob("*run@*"))


async def before(graph: Any, config: RunnableConfig, node: str) -> Any:
    """The newest checkpoint of the thread whose next node is ``node``."""
    history = [one async for one in graph.aget_state_history(config)]
    return next(one.config for one in history if node in one.next)


async def waiting(graph: Any, config: RunnableConfig) -> dict[str, dict[str, Any]]:
    """What waits in a thread, by the id that an answer names."""
    return {one.id: one.value for task in (await graph.aget_state(config)).tasks for one in task.interrupts}


def drafts_in(run: RunDirectory) -> list[Draft]:
    return read_jsonl(run.iteration(0) / "drafts.jsonl", Draft)


def accepted_in(run: RunDirectory) -> int:
    return len(read_json(run.iteration(0) / "evolution.json", Evolution).admitted)


def result_of(run: RunDirectory, draft: Draft) -> DraftVerification:
    verifications = read_jsonl(run.iteration(0) / "verdicts.jsonl", DraftVerification)
    return next(one for one in verifications if one.draft_id == draft.id)


def without_fork(run: RunDirectory) -> dict[str, str]:
    return {name: text for name, text in records(run.root).items() if name not in ("fork.json", f"{SUMMARY}")}


def test_a_state_that_is_edited_on_the_way_changes_a_copy_that_is_a_run_of_its_own(finished: RunDirectory) -> None:
    async def one_signal(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({"iteration": 0}, config, context=context, interrupt_before=["reflect"])
        state = await graph.aget_state(config)
        await graph.aupdate_state(config, {"signals": tuple(state.values["signals"][:1])})
        await graph.ainvoke(None, config, context=context)

    in_studio(finished, "mine/1", one_signal)
    assert copies(finished) == ["run@mine_1"]
    copy = copy_of(finished, "mine_1")
    assert (len(contexts_in(finished)), len(contexts_in(copy))) == (6, 1)
    assert len(load_tasks(copy)) == len(first_tasks()) + accepted_in(copy)
    assert accepted_in(copy) < accepted_in(finished)
    (summary,) = summaries(copy)
    assert (summary.iteration, summary.tasks, summary.admitted) == (0, len(first_tasks()), accepted_in(copy))
    assert (copy.policy_path / "none" / "weights").samefile(finished.policy_path / "none" / "weights")
    assert copy.settings_path.read_bytes() == finished.settings_path.read_bytes()
    assert not list(copy.root.glob("checkpoints*"))
    trajectories = "iterations/000/trajectories.jsonl"
    assert (copy.root / trajectories).samefile(finished.root / trajectories)


def test_a_node_that_is_run_again_works_in_a_further_copy_and_makes_equal_records(finished: RunDirectory) -> None:
    async def fork(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        # The command's own thread, then the checkpoints of its first copy.
        for node in ("reflect", "deduplicate", "dispatch", "update"):
            await graph.ainvoke(None, await before(graph, config, node), context=context)
        with pytest.raises(InputError, match="its branch is in another run or has ended: run dispatch again"):
            await graph.ainvoke(None, await before(graph, config, "branch"), context=context)

    thread = thread_id(0)
    in_studio(finished, thread, fork)
    assert copies(finished) == [f"run@{thread}{suffix}" for suffix in ("", ".2", ".3", ".4")]
    for number in range(1, 5):
        assert without_fork(copy_of(finished, thread, number)) == without_fork(finished)


def test_an_unfinished_iteration_is_left_to_the_command(
    unfinished: RunDirectory, made: tuple[RunDirectory, dict[str, str]]
) -> None:
    before_all = contents(unfinished)

    async def stop(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({}, config, context=context, interrupt_before=["update"])
        assert (await graph.aget_state(config)).values["iteration"] == 0

    in_studio(unfinished, thread_id(0), stop)
    assert contents(unfinished) == before_all
    copy = copy_of(unfinished, thread_id(0))
    with pytest.raises(
        InputError, match=rf"is a fork of run whose graph has not ended: go on with thread {copy.root.name[4:]}"
    ):
        run_graph(copy)
    run_graph(unfinished)
    assert {**records(unfinished.root), SUMMARY: made[1][SUMMARY]} == made[1]


def test_without_a_thread_no_copy_is_made(finished: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COEVOLVE_RUN", str(finished.root))
    with pytest.raises(InputError, match="call the graph with a checkpointer and a thread_id"):
        asyncio.run(iteration_graph(with_services).compile().ainvoke({"iteration": 0}, context=RunContext()))  # type: ignore[call-overload]


def test_wrong_input_is_told_in_a_sentence_and_the_thread_stays_readable(finished: RunDirectory) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"iteration": -2}, "iteration: -2 is not the number of an iteration: give one from 0"),
        ({"iteration": "x"}, "iteration: 'x' is not the number"),
        ({"iteration": {}}, "iteration: {} is not the number"),
        ({"iteration": True}, "iteration: True is not the number"),
        ({"iteration": 99}, "iteration: 99 of .* has no trajectories: start the graph with one from 0 to 0, or -1"),
    ]

    async def try_it(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        with pytest.raises(InputError, match="input: 'signals' is not asked for: give iteration alone"):
            await graph.ainvoke({"iteration": 0, "signals": 5}, config, context=context)
        assert (await graph.aget_state(config)).values == {}
        with pytest.raises(InputError, match="pause: 'extract' is not a step to stop before: give explore or verify"):
            await graph.ainvoke({}, config, context=RunContext(pause="extract"))  # type: ignore[arg-type]
        for given, told in wrong:
            with pytest.raises(InputError, match=told):
                await graph.ainvoke(given, config, context=context)
            state = await graph.aget_state(config)
            assert given.items() <= state.values.items()
            assert state.next == ("extract",)

    in_studio(finished, "wrong", try_it)
    assert copies(finished) == []


def test_a_run_without_a_round_is_told(unfinished: RunDirectory) -> None:
    async def call(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        (unfinished.iteration(0) / "round.json").unlink()
        with pytest.raises(InputError, match="has no finished round of training"):
            await graph.ainvoke({}, config, context=context)

    in_studio(unfinished, "mine", call)


def test_a_state_that_names_what_is_not_there_is_refused(finished: RunDirectory) -> None:
    (finished.root.with_name("run@made by hand")).mkdir()
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("extract", {"signals": ("signal-x",)}, "has no records of 'signal-x': take ids that it has"),
        ("extract", {"signals": 5}, "signals: 5 is not a list of ids"),
        ("reflect", {"contexts": ("context-x",)}, "has no records of 'context-x'"),
        ("deduplicate", {"new": ("../000",)}, r"has no records of '\.\./000'"),
        ("dispatch", {"new": ("context-x",)}, "has no records of 'context-x'"),
        ("extract", {"run": "../run"}, "run: '../run' is not a copy of"),
        ("extract", {"run": "run@../other"}, "is not a copy of"),
        ("extract", {"run": "run@made by hand"}, "is not a copy of"),
        ("extract", {"run": 7}, "run: 7 is not a copy of"),
        ("extract", {"iteration": 3}, "iteration: 3 of .* has no trajectories"),
    ]

    async def invent(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        for number, (node, values, told) in enumerate(wrong):
            thread: RunnableConfig = {"configurable": {"thread_id": f"invented {number}"}}
            goto = {"dispatch": "update"}.get(node)
            await graph.aupdate_state(thread, {"iteration": 0} | values, as_node="branch" if goto else node)
            with pytest.raises(InputError, match=told):
                await graph.ainvoke(None, thread, context=context)

    in_studio(finished, "invented", invent)
    assert copies(finished) == ["run@made by hand"]


def test_a_branch_that_failed_is_run_again_from_dispatch_beside_its_siblings(finished: RunDirectory) -> None:
    async def fail(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({}, config, context=context, interrupt_before=["dispatch"])
        first, *others = (await graph.aget_state(config)).values["new"]
        path = copy_of(finished, "mine").iteration(0).branch(first).context
        whole = path.read_text()
        path.write_text("{")
        await graph.ainvoke(None, config, context=context)
        values = (await graph.aget_state(config)).values
        assert (values["failed"], sorted(values["finished"])) == ([first], sorted(others))
        path.write_text(whole)
        await graph.ainvoke(None, await before(graph, config, "dispatch"), context=context)
        values = (await graph.aget_state(config)).values
        assert (values["failed"], values["finished"]) == ([], [first])

    in_studio(finished, "mine", fail)
    assert without_fork(copy_of(finished, "mine", 2)) == without_fork(finished)


WRONG_EDITS: list[tuple[Any, str]] = [
    ("please do the thing", "edits: 'please do the thing' is not a mapping of ids to changed fields"),
    ({"draft-x": {"turns": ["a"]}}, "edits: 'draft-x' is not a "),
    ({"DRAFT": {"id": "y"}}, r"edits: draft-\w+.id cannot be edited: change turns, reference"),
    ({"DRAFT": {"turns": 7}}, r"edits: draft-\w+: turns: Input should be a valid tuple"),
    ({"DRAFT": {"reference": [[{"name": "ls"}]] * 9}}, r"edits: draft-\w+: .*turns but 9 reference turns"),
]


@pytest.mark.parametrize("kept", [True, False], ids=["the pause is kept", "without the pause"])
def test_the_answer_to_a_pause_edits_drafts_and_their_results_are_shown(finished: RunDirectory, kept: bool) -> None:
    """Two branches are edited, one of them in a second call; the others go on with nothing. Wrong answers wait on."""
    seen: dict[str, Any] = {}

    async def answer(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        paused = context.model_copy(update={"pause": "verify"})
        await graph.ainvoke({}, config, context=paused)
        shown = await waiting(graph, config)
        assert all(one["paused before"] == "verify" and one["records"] and one["weakness"] for one in shown.values())
        assert {*next(iter(shown[next(iter(shown))]["records"].values()))} == {"turns", "reference"}
        (first, second), others = list(shown)[:2], list(shown)[2:]
        ids = {one: next(iter(shown[one]["records"])) for one in shown}
        edits = {one: {ids[one]: {"turns": ["please do the thing"]}} for one in (first, second)}
        answers: dict[str, Any] = {one: {} for one in others} | {others[0]: shown[others[0]]["records"]}  # as it was
        await graph.ainvoke(Command(resume={**answers, first: edits[first]}), config, context=paused)
        for number, (wrong, told) in enumerate(WRONG_EDITS):
            given = json.loads(json.dumps(wrong).replace("DRAFT", ids[second]))
            (at,) = await waiting(graph, config)
            await graph.ainvoke(Command(resume={at: given}), config, context=paused if number % 2 else context)
            ((_, refused),) = (await waiting(graph, config)).items()
            assert re.search(told, refused["refused"])
        (at,) = await waiting(graph, config)
        await graph.ainvoke(Command(resume={at: edits[second]}), config, context=paused if kept else context)
        state = await graph.aget_state(config)
        assert (state.next, await waiting(graph, config)) == ((), {})
        seen.update(state.values, given={**edits[first], **edits[second]})

    in_studio(finished, "mine", answer)
    assert copies(finished) == ["run@mine"]
    copy = copy_of(finished, "mine")
    edited = [one for one in drafts_in(copy) if one.id in seen["given"]]
    assert [one.turns for one in edited] == [("please do the thing",)] * 2
    results = [result_of(copy, one) for one in edited]
    accepted = sum(one.accepted for one in results)
    assert accepted < 2, "its arguments are in no turn"
    counts, *lines = seen["digest"]["edits"]
    assert counts == f"{accepted} of 2 drafts accepted"
    for one, line in zip(results, lines, strict=True):
        assert line.startswith(f"'please do the thing': {f'refused, {one.reason}' if one.reason else 'accepted'}")
    assert sorted(seen["finished"]) == new_in(copy)
    originals = [result_of(finished, one) for one in edited]
    assert accepted_in(copy) == accepted_in(finished) - sum(one.accepted for one in originals) + accepted
    assert read_json(copy.fork_path, Fork).edits == seen["given"]


def test_the_answer_to_a_pause_before_exploring_edits_the_context(finished: RunDirectory) -> None:
    name = drafts_in(finished)[0].context_id

    async def answer(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({}, config, context=RunContext(pause="explore"))
        shown = await waiting(graph, config)
        answers = {at: {name: {"explore": ["pwd"]}} if name in one["records"] else "" for at, one in shown.items()}
        await graph.ainvoke(Command(resume=answers), config, context=context)
        assert (await graph.aget_state(config)).next == ()

    in_studio(finished, "mine", answer)
    copy = copy_of(finished, "mine")
    assert read_json(copy.iteration(0).branch(name).context, FailureContext).explore == ("pwd",)
    assert {one.id: one.explore for one in contexts_in(copy)}[name] == ("pwd",)


def new_in(run: RunDirectory) -> list[str]:
    compared = read_jsonl(run.iteration(0) / "judgements.jsonl", DeduplicationResult)
    return sorted(one.context_id for one in compared if one.status == "new")
