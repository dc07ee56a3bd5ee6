"""Forks and edits of a run: its finished records stay, and a copy that is a run of its own takes what comes of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import ExecutionInfo, Runtime
from langgraph.types import Command
from support.made_run import first_tasks, make_run, records, run_graph

from environments.base import InputError
from graph.checkpoints import open_checkpoints, run_checkpoints, thread_id
from graph.iteration import iteration_graph
from graph.records import Evolution, ExtractionRecord, Fork
from graph.report.summary import Summary, summarise
from graph.run.interruption import Interruption
from graph.run.loop import iterate
from graph.run.progress import Progress
from graph.run.stages import Run
from graph.run_iteration import open_run
from graph.state import BranchState, RunContext, edited
from graph.studio.forks import with_services, working_run
from graph.studio.served import asking
from memory.failures import DeduplicationResult
from memory.records import Draft, DraftVerification, FailureContext
from memory.run import RunDirectory, read_json, read_jsonl, write_json
from memory.tasks import load_tasks

pytestmark = pytest.mark.slow

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
            graph = asking(iteration_graph(with_services).compile(checkpointer=saver))
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
            iteration_graph(with_services)
            .compile()
            .ainvoke({"iteration": 0}, context=RunContext(run=str(finished.root)))  # type: ignore[call-overload]
        )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"iteration": -2}, "iteration: -2 is not the number of an iteration: give one from 0"),
        ({"iteration": "x"}, "iteration: 'x' is not the number"),
        ({"iteration": {}}, "iteration: {} is not the number"),
        ({"iteration": True}, "iteration: True is not the number"),
        ({"iteration": 99}, "iteration: 99 of .* has no trajectories: give one from 0 to 0, or -1 for the newest"),
    ],
)
def test_a_wrong_input_is_told_and_the_thread_stays_readable(
    finished: RunDirectory, given: dict[str, Any], told: str
) -> None:
    async def try_it(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        with pytest.raises(InputError, match=told):
            await graph.ainvoke(given, config, context=context)
        state = await graph.aget_state(config)
        assert given.items() <= state.values.items()
        assert state.next == ("extract",)

    in_studio(finished, "wrong", try_it)


@pytest.mark.parametrize("given", [{"iteration": 0, "signals": 5}, {"foo": 1}])
def test_an_input_that_is_not_asked_for_is_refused_before_anything_is_stored(
    finished: RunDirectory, given: dict[str, Any]
) -> None:
    async def try_it(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        with pytest.raises(InputError, match=rf"input: '{[*given][-1]}' is not asked for: give iteration alone"):
            await graph.ainvoke(given, config, context=context)
        assert (await graph.aget_state(config)).values == {}

    in_studio(finished, "wrong", try_it)


@pytest.mark.parametrize(
    ("context", "told"),
    [({"pause": "extract"}, "pause: 'extract' is not a step"), ({"run": 5}, "run: 5 is not the path")],
)
def test_a_wrong_context_is_told(finished: RunDirectory, context: dict[str, Any], told: str) -> None:
    async def try_it(graph: Any, config: RunnableConfig, given: RunContext) -> None:
        with pytest.raises(InputError, match=told):
            await graph.ainvoke({"iteration": 0}, config, context=RunContext(**{"run": given.run, **context}))

    in_studio(finished, "wrong", try_it)


def test_without_a_number_the_newest_iteration_is_taken(unfinished: RunDirectory) -> None:
    async def leave_out(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({}, config, context=context, interrupt_before=["reflect"])
        assert (await graph.aget_state(config)).values["iteration"] == 0
        (unfinished.iteration(0) / "round.json").unlink()
        with pytest.raises(InputError, match="has no finished round of training"):
            await graph.ainvoke({"iteration": -1}, config, context=context)

    in_studio(unfinished, "newest", leave_out)


async def the_checkpoint_before(graph: Any, config: RunnableConfig, node: str) -> Any:
    history = [state async for state in graph.aget_state_history(config)]
    return next(state for state in history if node in state.next)


def drafts_in(run: RunDirectory) -> list[Draft]:
    return read_jsonl(run.iteration(0) / "drafts.jsonl", Draft)


def new_in(run: RunDirectory) -> list[str]:
    compared = read_jsonl(run.iteration(0) / "judgements.jsonl", DeduplicationResult)
    return sorted(one.context_id for one in compared if one.status == "new")


def result_of(run: RunDirectory, draft: Draft) -> DraftVerification:
    verifications = read_jsonl(run.iteration(0) / "verdicts.jsonl", DraftVerification)
    return next(one for one in verifications if one.draft_id == draft.id)


def test_an_edited_draft_is_verified_again_in_a_copy_and_its_result_changes(finished: RunDirectory) -> None:
    draft = next(one for one in drafts_in(finished) if result_of(finished, one).accepted)
    edits = {draft.id: {"reference": [[{"name": "no_such_tool"}], *([[]] * (len(draft.turns) - 1))]}}

    async def edit(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({}, config, context=context)
        before = await the_checkpoint_before(graph, config, "dispatch")
        changed = await graph.aupdate_state(before.config, {"edits": edits})
        await graph.ainvoke(None, changed, context=context)
        state = (await graph.aget_state(config)).values
        assert len(state["branches"]) == len(state["finished"]) == 1
        assert " accepted, refused: 1 " in state["branches"][0]

    in_studio(finished, "mine", edit)
    fork = RunDirectory.open(finished.root.with_name("run@mine.2"))
    assert json.loads((fork.root / "fork.json").read_text())["edits"] == edits
    assert not result_of(fork, draft).accepted
    unchanged = [one for one in drafts_in(finished) if one.id != draft.id]
    assert [one for one in drafts_in(fork) if one.id != draft.id] == unchanged
    accepted = len(read_json(finished.iteration(0) / "evolution.json", Evolution).admitted)
    assert len(read_json(fork.iteration(0) / "evolution.json", Evolution).admitted) == accepted - 1


def test_an_edited_context_is_explored_anew_in_a_copy(finished: RunDirectory) -> None:
    context_of = contexts_in(finished)[0]

    async def edit(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({}, config, context=context, interrupt_before=["dispatch"])
        await graph.aupdate_state(config, {"edits": {context_of.id: {"explore": ["pwd"], "how": "edited"}}})
        await graph.ainvoke(None, config, context=context)

    in_studio(finished, "mine", edit)
    fork = RunDirectory.open(finished.root.with_name("run@mine.2"))
    (edited,) = [one for one in contexts_in(fork) if one.id == context_of.id]
    assert (edited.explore, edited.how) == (("pwd",), "edited")
    assert read_json(fork.iteration(0).branch(edited.id).context, FailureContext) == edited
    assert len(contexts_in(fork)) == len(contexts_in(finished))


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        (5, "edits: 5 is not a mapping of ids"),
        ({"draft-x": {"turns": ["a"]}}, "edits: 'draft-x' is not a context or draft of iteration 000"),
        ({"DRAFT": {"id": "y"}}, r"edits: draft-\w+.id cannot be edited: change turns, reference"),
        ({"DRAFT": {"turns": 7}}, r"edits: draft-\w+: turns: Input should be a valid tuple"),
        ({"DRAFT": {"turns": ["a" * 100_001]}}, "bytes are more than the 100000 that edits may have"),
        ({"DRAFT": {"reference": [[{"name": "ls"}]] * 9}}, r"edits: draft-\w+: .*turns but 9 reference turns"),
    ],
)
def test_hostile_edits_are_refused_and_leave_no_copy(finished: RunDirectory, edits: Any, told: str) -> None:
    draft = drafts_in(finished)[0].id
    given = {draft if name == "DRAFT" else name: fields for name, fields in edits.items()} if edits != 5 else 5

    async def edit(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        values = {
            "iteration": 0,
            "signals": read_json(finished.iteration(0) / "extraction.json", ExtractionRecord).chosen,
            "contexts": [one.id for one in contexts_in(finished)],
            "new": new_in(finished),
            "edits": given,
        }
        await graph.aupdate_state(config, values, as_node="deduplicate")
        with pytest.raises(InputError, match=told):
            await graph.ainvoke(None, config, context=context)
        assert (await graph.aget_state(config)).next == ("dispatch",)

    in_studio(finished, "hostile", edit)
    assert {path.name for path in finished.root.parent.iterdir()} == {"run"}


def test_a_failed_branch_is_run_again_and_its_siblings_stay(
    unfinished: RunDirectory, made: tuple[RunDirectory, dict[str, str]]
) -> None:
    async def fail_and_retry(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({}, config, context=context, interrupt_before=["dispatch"])
        first = (await graph.aget_state(config)).values["new"][0]
        path = unfinished.iteration(0).branch(first).context
        whole = path.read_text()
        path.write_text("{")
        # Sent by name, the branch fails: its file is damaged.
        await graph.ainvoke(None, config, context=context, interrupt_before=["update"])
        state = (await graph.aget_state(config)).values
        assert state["failed"] == [first]
        assert any("failed in explore, InputError" in line for line in state["branches"])
        path.write_text(whole)
        await graph.aupdate_state(config, {"again": [first]}, as_node="deduplicate")
        await graph.ainvoke(None, config, context=context)
        assert first in (await graph.aget_state(config)).values["finished"]

    in_studio(unfinished, "retry", fail_and_retry)
    assert {path.name for path in unfinished.root.parent.iterdir()} == {"recipe", "run"}
    assert records(unfinished.root) == {name: text for name, text in made[1].items() if "summary" not in name}


def test_a_pause_shows_what_can_be_edited_and_goes_on_without_it(
    unfinished: RunDirectory, made: tuple[RunDirectory, dict[str, str]]
) -> None:
    async def pause(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({}, config, context=context.model_copy(update={"pause": "verify"}))
        state = await graph.aget_state(config)
        shown = [task.interrupts[0].value for task in state.tasks]
        assert len(shown) == len(new_in(unfinished))
        assert all(one["paused before"] == "verify" and one["records"] and one["weakness"] for one in shown)
        assert {*next(iter(shown[0]["records"].values()))} == {"turns", "reference"}
        await graph.ainvoke(None, config, context=context)

    in_studio(unfinished, "pause", pause)
    assert records(unfinished.root) == {name: text for name, text in made[1].items() if "summary" not in name}


async def waiting(graph: Any, config: RunnableConfig) -> dict[str, dict[str, Any]]:
    """What waits in a thread, by the id that an answer names."""
    return {one.id: one.value for task in (await graph.aget_state(config)).tasks for one in task.interrupts}


def accepted_in(run: RunDirectory) -> int:
    return len(read_json(run.iteration(0) / "evolution.json", Evolution).admitted)


@pytest.mark.parametrize("kept", [True, False], ids=["the pause is kept", "without the pause"])
def test_the_answer_to_a_pause_edits_drafts_in_a_copy_and_shows_their_results(
    unfinished: RunDirectory, made: tuple[RunDirectory, dict[str, str]], kept: bool
) -> None:
    """Two branches are edited, one of them in the second call; the others go on with nothing."""
    seen: dict[str, Any] = {}

    async def answer(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        paused = context.model_copy(update={"pause": "verify"})
        await graph.ainvoke({}, config, context=paused)
        shown = await waiting(graph, config)
        (first, second), others = list(shown)[:2], list(shown)[2:]
        assert others
        edits = {
            one: {next(iter(shown[one]["records"])): {"turns": ["please do the thing"]}} for one in (first, second)
        }
        answers: dict[str, Any] = {one: {} for one in others} | {others[0]: shown[others[0]]["records"]}  # as it was
        await graph.ainvoke(Command(resume={**answers, first: edits[first]}), config, context=paused)
        assert [*await waiting(graph, config)] == [second]
        assert not list(unfinished.root.parent.glob("run@*"))
        await graph.ainvoke(Command(resume={second: edits[second]}), config, context=paused if kept else context)
        state = await graph.aget_state(config)
        assert (state.next, await waiting(graph, config)) == ((), {})
        seen.update(state.values, given={**edits[first], **edits[second]})

    in_studio(unfinished, "mine", answer)
    (fork,) = (RunDirectory.open(path) for path in unfinished.root.parent.glob("run@*"))
    assert read_json(fork.fork_path, Fork).edits == seen["given"] == seen["edits"]
    edited = [one for one in drafts_in(fork) if one.id in seen["given"]]
    assert [one.turns for one in edited] == [("please do the thing",)] * 2
    results = [result_of(fork, one) for one in edited]
    accepted = sum(one.accepted for one in results)
    assert accepted < 2, "its arguments are in no turn"
    counts, *lines = seen["digest"]["edits"]
    assert counts == f"{accepted} of 2 drafts accepted"
    for one, line in zip(results, lines, strict=True):
        assert line.startswith(f"'please do the thing': {f'refused, {one.reason}' if one.reason else 'accepted'}")
    assert sorted(seen["finished"]) == sorted(new_in(fork))
    assert len(seen["branches"]) == len(new_in(fork))
    originals = [result_of(made[0], one) for one in edited]
    assert accepted_in(fork) == accepted_in(made[0]) - sum(one.accepted for one in originals) + accepted
    run_graph(unfinished)
    made_records = {name: text for name, text in made[1].items() if not name.endswith("summary.json")}
    assert records(unfinished.root) == made_records


def test_the_answer_to_a_pause_edits_a_context_in_a_copy_of_a_finished_run(finished: RunDirectory) -> None:
    context_of = contexts_in(finished)[0]

    async def answer(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        paused = context.model_copy(update={"pause": "abstract"})
        await graph.ainvoke({}, config, context=paused)
        shown = await waiting(graph, config)
        answers = {name: {} for name in shown} | {
            name: {context_of.id: {"explore": ["pwd"]}}
            for name, one in shown.items()
            if context_of.id in one["records"]
        }
        await graph.ainvoke(Command(resume=answers), config, context=paused)
        assert (await graph.aget_state(config)).next == ()

    in_studio(finished, "mine", answer)
    fork = RunDirectory.open(finished.root.with_name("run@mine.2"))
    (edited,) = [one for one in contexts_in(fork) if one.id == context_of.id]
    assert read_json(fork.iteration(0).branch(edited.id).context, FailureContext).explore == ("pwd",)
    assert accepted_in(fork) > 0


def test_a_draft_of_an_edited_context_is_edited_in_a_copy_of_its_copy(finished: RunDirectory) -> None:
    context_of, edits = contexts_in(finished)[0], {}

    async def answer(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        paused = context.model_copy(update={"pause": "verify"})
        await graph.ainvoke({}, config, context=context, interrupt_before=["dispatch"])
        await graph.aupdate_state(config, {"edits": {context_of.id: {"explore": ["pwd"]}}})
        await graph.ainvoke(None, config, context=paused)
        shown = await waiting(graph, config)
        weakness = RunDirectory.open(finished.root.with_name("run@mine.2")).iteration(0).branch(context_of.id)
        draft = read_jsonl(weakness.drafts, Draft)[0]
        (name,) = (name for name, one in shown.items() if draft.id in one["records"])
        edits.update({context_of.id: {"explore": ["pwd"]}, draft.id: {"turns": ["do it"] * len(draft.turns)}})
        answers = dict.fromkeys(shown, "") | {name: {draft.id: edits[draft.id]}}
        await graph.ainvoke(Command(resume=answers), config, context=paused)
        assert (await graph.aget_state(config)).next == ()

    in_studio(finished, "mine", answer)
    fork = RunDirectory.open(finished.root.with_name("run@mine.3"))
    assert read_json(fork.fork_path, Fork).edits == edits
    (edited,) = (one for one in contexts_in(fork) if one.id == context_of.id)
    assert edited.explore == ("pwd",)
    assert [one.turns[0] for one in drafts_in(fork) if one.id in edits] == ["do it"]


WRONG_ANSWERS = [
    ("please do the thing", "edits: 'please do the thing' is not a mapping of ids to changed fields"),
    (True, "edits: True is not a mapping of ids"),
    (["DRAFT"], "is not a mapping of ids"),
    ({"DRAFT": "please"}, "is not a mapping of ids"),
    ({"draft-x": {"turns": ["a"]}}, "edits: 'draft-x' is not a record that waits here: name draft-"),
    ({"DRAFT": {"id": "y"}}, r"edits: draft-\w+.id cannot be edited: change turns, reference"),
    ({"DRAFT": {"turns": 7}}, r"edits: draft-\w+: turns: Input should be a valid tuple"),
    ({"DRAFT": {"turns": ["a" * 100_001]}}, "bytes are more than the 100000 that edits may have"),
]


def test_an_answer_in_another_form_is_refused_by_name_and_the_branch_waits_for_the_next(
    unfinished: RunDirectory, made: tuple[RunDirectory, dict[str, str]]
) -> None:
    async def answer_wrongly(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        paused = context.model_copy(update={"pause": "verify"})
        await graph.ainvoke({}, config, context=paused)
        shown = await waiting(graph, config)
        first, *others = shown
        draft = next(iter(shown[first]["records"]))
        answers: dict[str, Any] = {one: {} for one in others}
        for number, (answer, told) in enumerate(WRONG_ANSWERS):
            answers |= {first: json.loads(json.dumps(answer).replace("DRAFT", draft))}
            # The pause may be given up meanwhile: an answer is looked at all the same.
            await graph.ainvoke(Command(resume=answers), config, context=paused if number % 2 else context)
            ((first, refused),) = (await waiting(graph, config)).items()
            assert re.search(told, refused["refused"])
            assert draft in refused["records"]
            answers = {}
        assert not list(unfinished.root.parent.glob("run@*"))
        await graph.ainvoke(Command(resume={first: {}}), config, context=paused)
        assert (await graph.aget_state(config)).next == ()

    in_studio(unfinished, "wrong", answer_wrongly)
    assert records(unfinished.root) == {name: text for name, text in made[1].items() if "summary" not in name}


def test_edits_of_a_context_and_of_its_draft_are_refused_together(finished: RunDirectory) -> None:
    draft = drafts_in(finished)[0]

    async def edit(graph: Any, config: RunnableConfig, context: RunContext) -> None:
        await graph.ainvoke({}, config, context=context, interrupt_before=["dispatch"])
        both = {draft.id: {"turns": ["a"]}, draft.context_id: {"how": "edited"}}
        await graph.aupdate_state(config, {"edits": both})
        with pytest.raises(
            InputError, match=f"edits: {draft.id} is a draft of {draft.context_id}, which is edited, too"
        ):
            await graph.ainvoke(None, config, context=context)

    in_studio(finished, "both", edit)


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        ({"a": {"x": 1}}, {"b": {"y": 2}}, {"b": {"y": 2}}),
        ({"a": {"x": 1}}, {}, {}),
        ({}, [], {}),
        ({"a": {"x": 1}}, [], {"a": {"x": 1}}),
        ({"a": {"x": 1}}, [{"a": {"y": 2}, "b": {"z": 3}}], {"a": {"x": 1, "y": 2}, "b": {"z": 3}}),
        ({"a": 1}, [{"a": {"x": 2}}], {"a": {"x": 2}}),
        (5, [{"a": {}}], [{"a": {}}]),
        ({"a": {}}, 5, 5),
        ({"a": {}}, [5], [5]),
        ({"a": {}}, None, None),
    ],
)
def test_edits_of_branches_join_and_those_of_people_replace(old: object, new: object, after: object) -> None:
    assert edited(old, new) == after


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
        graph: Any = iteration_graph(with_services).compile(checkpointer=saver)
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
