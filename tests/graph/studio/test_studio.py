"""LangGraph's server on our graphs, offline: every action that Studio offers, and the run that the server holds.

Read from the top this is the tour of docs/studio.md, as Studio's page would call it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.schema import Checkpoint
from support import ROOT
from support.made_run import make_run, records, run_graph, settings_for
from support.studio_server import serving
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from environments.base import InputError
from graph.checkpoints import open_checkpoints, studio_run, thread_id
from graph.recipe import load_recipe
from graph.records import Evolution
from graph.report.summary import Summary, summarise
from graph.run_iteration import open_run
from graph.studio.__main__ import app
from memory.records import Draft, DraftVerification, FailureContext
from memory.run import RunDirectory, read_json, read_jsonl, write_json, write_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.external]

NEWEST = 2
Served = tuple[RunDirectory, SyncLangGraphClient]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A run in a server of its own: iteration 0 was done by the command, 1 and 2 (NEWEST) have their rounds."""
    folder = tmp_path_factory.mktemp("studio")
    run = make_run(folder / "run")
    run_graph(run)
    write_json(run.iteration(0) / "summary.json", summarise(run, load_recipe(run.settings_path), 0))
    rows = (run.iteration(0) / "trajectories.jsonl").read_text().splitlines(keepends=True)
    for number, most in ((1, 12), (NEWEST, None)):  # 12: the rollouts of one task
        copied = "".join(rows[:most]).replace('"iteration": 0', f'"iteration": {number}')
        run.iteration(number).root.mkdir()
        (run.iteration(number) / "trajectories.jsonl").write_text(copied)
        record = (run.iteration(0) / "round.json").read_text().replace('"iteration": 0', f'"iteration": {number}')
        (run.iteration(number) / "round.json").write_text(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANGSMITH_TRACING", "false")
        # langgraph-api 0.16.7 copies its checkpointer when checkpoints are strict, and recurses without end.
        patch.delenv("LANGGRAPH_STRICT_MSGPACK", raising=False)
        with serving(run) as client:
            yield run, client


def assistant_of(client: SyncLangGraphClient, graph: str) -> str:
    (assistant,) = client.assistants.search(graph_id=graph)
    return str(assistant["assistant_id"])


def waiting(client: SyncLangGraphClient, thread: str) -> dict[str, Any]:
    """What the branches of a thread wait with, by the id of each interrupt."""
    tasks = client.threads.get_state(thread)["tasks"]
    return {str(one["id"]): one["value"] for task in tasks for one in task["interrupts"]}


def newest_state(client: SyncLangGraphClient, thread: str) -> dict[str, Any]:
    values = client.threads.get_state(thread)["values"]
    assert isinstance(values, dict)
    return values


def name_of(client: SyncLangGraphClient, thread: str) -> str:
    return str((client.threads.get(thread)["metadata"] or {})["name"])


def begun(client: SyncLangGraphClient, **options: Any) -> str:
    """A thread of its own on which an iteration's graph was started."""
    thread = str(client.threads.create(graph_id="iteration")["thread_id"])
    client.runs.wait(thread, "iteration", input={"iteration": -1}, raise_error=True, **options)
    return thread


def before(client: SyncLangGraphClient, thread: str, node: str) -> Checkpoint:
    """The newest checkpoint of a thread whose next node is ``node``."""
    return next(one["checkpoint"] for one in client.threads.get_history(thread, limit=50) if node in one["next"])


def copy_of(run: RunDirectory, thread: str, number: int = 1) -> RunDirectory:
    return RunDirectory.open(run.root.with_name(f"run@{thread}{'' if number == 1 else f'.{number}'}"))


def drafts_in(run: RunDirectory) -> list[Draft]:
    return read_jsonl(run.iteration(NEWEST) / "drafts.jsonl", Draft)


def verifications_in(run: RunDirectory) -> dict[str, DraftVerification]:
    return {one.draft_id: one for one in read_jsonl(run.iteration(NEWEST) / "verdicts.jsonl", DraftVerification)}


@pytest.fixture(scope="module")
def streamed(served: Served) -> list[str]:
    """What the first call of the newest iteration streams: it works in the run itself, as the command would."""
    _, client = served
    thread = str(client.threads.create(thread_id=thread_id(NEWEST), graph_id="iteration")["thread_id"])
    given: dict[str, Any] = {"iteration": -1}  # the form's default
    events = list(client.runs.stream(thread, "iteration", input=given, stream_mode="updates", stream_subgraphs=True))
    assert [event.data for event in events if event.event == "error"] == []
    return [json.dumps(event.data) for event in events if event.event.startswith("updates")]


@pytest.fixture(scope="module")
def newest(served: Served, streamed: list[str]) -> Served:
    """The run whose newest iteration is done, so that a further call of its graph works in a copy."""
    return served


def test_threads_of_the_command_line_are_listed_by_name_with_states_and_history(served: Served) -> None:
    run, client = served
    listed = client.threads.search(metadata={"graph_id": "iteration"})
    assert thread_id(0) in {str(thread["thread_id"]) for thread in listed}
    (thread,) = (one for one in listed if one["thread_id"] == thread_id(0))
    assert thread["metadata"] is not None
    assert thread["metadata"]["name"] == "run, iteration 0"
    evolution = read_json(run.iteration(0) / "evolution.json", Evolution)
    values = newest_state(client, thread_id(0))
    assert sorted(values["finished"]) == sorted(values["new"])
    assert len(values["new"]) == evolution.new
    history = client.threads.get_history(thread_id(0))
    assert history[0]["next"] == []
    assert {"extract"} <= {node for one in history for node in one["next"]}


def test_another_page_starts_nothing_and_studios_page_is_answered(served: Served) -> None:
    """What is refused, header by header, is in test_access.py: here the server's own middleware is around it."""
    run, client = served
    untouched, address = records(run.root), client.http.client.base_url
    studio, evil = {"Origin": "https://smith.langchain.com"}, {"Origin": "https://evil.example"}
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true"}
    call = {"assistant_id": "iteration", "input": {"iteration": 0}}
    plain = {"Content-Type": "text/plain"}  # for which a browser does not ask before
    with httpx.Client(base_url=address) as browser:
        for headers in (evil, {"Host": f"evil.example:{address.port}"}, {"Sec-Fetch-Site": "cross-site"}):
            for path in ("/threads/search", f"/threads/{thread_id(0)}/runs/wait", "/mcp/", "/"):
                refused = browser.post(path, content=json.dumps(call), headers=headers | plain)
                assert (refused.status_code, refused.text[: len(next(iter(headers)))]) == (403, next(iter(headers)))
            for path in ("/ok", "/info", "/docs", "/openapi.json"):
                assert browser.get(path, headers=headers).status_code == 403
        refused = browser.options("/threads", headers=evil | asks)
        assert (refused.status_code, [*refused.headers]) == (403, ["date", "server", "content-length", "content-type"])
        allowed = browser.options("/threads", headers=studio | asks)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == studio["Origin"]
        assert allowed.headers["access-control-allow-private-network"] == "true"
        listed = browser.post("/threads/search", json={}, headers=studio | {"Sec-Fetch-Site": "cross-site"})
        assert {one["thread_id"] for one in listed.json()} == {one["thread_id"] for one in client.threads.search()}
        assert listed.headers["access-control-allow-origin"] == studio["Origin"]
    socket = f"ws://{address.host}:{address.port}/threads/{thread_id(0)}/stream/events"
    with pytest.raises(InvalidStatus, match="HTTP 403"), connect(socket, origin=Origin(evil["Origin"])):
        pass
    with connect(socket, origin=Origin(studio["Origin"])):
        pass
    assert records(run.root) == untouched


def test_the_loop_does_the_next_iteration_as_the_command_would(served: Served) -> None:
    """Its round is there already: what starts a process is compared with the command in test_whole_loop.py."""
    run, client = served
    thread = str(client.threads.create(graph_id="loop")["thread_id"])
    events = list(client.runs.stream(thread, "loop", input={"iterations": 1}, stream_mode="custom"))
    told = [event.data["text"] for event in events if event.event == "custom"]
    assert [event.data for event in events if event.event == "error"] == []
    assert any(line.startswith("iteration 1: graph: done in") for line in told)
    values = newest_state(client, thread)
    assert [*values["digest"]] == ["tasks", "train", "evaluate", "evolve"]
    assert values["digest"]["tasks"][1] == "next is iteration 1"
    assert read_json(run.iteration(1) / "summary.json", Summary).iteration == 1
    assert newest_state(client, thread_id(1))["digest"]["extract"][0].startswith("run, iteration 1: 12 rollouts")
    names = {one["thread_id"]: one["metadata"] for one in client.threads.search(metadata={"graph_id": "iteration"})}
    assert (names[thread_id(1)] or {})["name"] == "run, iteration 1"
    assert name_of(client, thread) == "run, loop"


def test_start_states_are_explored_without_a_guide_in_a_copy(served: Served) -> None:
    run, client = served
    untouched = records(run.root)
    thread = str(client.threads.create(graph_id="seed")["thread_id"])
    client.runs.wait(thread, "seed", input={"start_states": 2}, raise_error=True)
    values = newest_state(client, thread)
    assert len(values["branches"]) == len(values["finished"]) == 2
    assert name_of(client, thread) == "run, unguided exploration"
    assert re.fullmatch(r"\d of \d+ drafts? would be tasks of D_0", values["digest"]["join"][0])
    assert records(run.root) == untouched
    copy = copy_of(run, thread)
    assert {path.name for path in copy.root.iterdir() if path.name != "run.lock"} <= {
        "settings.yaml",
        "settings.recorded.yaml",
        "fork.json",
        "seed",
        "run.lock.json",
    }
    paused = str(client.threads.create(graph_id="seed")["thread_id"])
    client.runs.wait(paused, "seed", input={"start_states": 3}, context={"pause": "verify"}, raise_error=True)
    drafts = next(one["records"] for one in waiting(client, paused).values() if one["records"])
    edits = {next(iter(drafts)): {"turns": ["do it"]}}
    (asked,) = (at for at, one in waiting(client, paused).items() if one["records"] == drafts)
    client.runs.wait(paused, "seed", command={"resume": {asked: edits}}, raise_error=True)
    refused = [one["refused"] for one in waiting(client, paused).values() if "refused" in one]
    assert refused == ['edits: unguided exploration takes none: answer with "" to go on']
    client.runs.wait(paused, "seed", command={"resume": dict.fromkeys(waiting(client, paused), "")}, raise_error=True)
    assert len(newest_state(client, paused)["finished"]) == 3
    with pytest.raises(Exception, match="start_states: 0 is not a number of start states: give one from 1 to"):
        client.runs.wait(thread, "seed", input={"start_states": 0}, raise_error=True)


def test_the_form_asks_for_the_iteration_alone_and_describes_what_it_asks_for(served: Served) -> None:
    _, client = served
    schemas = client.assistants.get_schemas(assistant_of(client, "iteration"))
    asked = schemas["input_schema"]
    context = schemas["context_schema"]
    assert asked is not None
    assert context is not None
    assert {*asked["properties"]} == {"iteration"}
    assert asked["properties"]["iteration"]["default"] == -1
    assert {*context["properties"]} == {"run", "pause"}
    assert all(one["description"] for form in (asked, context) for one in form["properties"].values())


def test_the_drawing_shows_the_inside_of_a_branch_and_no_loose_node(served: Served) -> None:
    _, client = served
    drawn = client.assistants.get_graph(assistant_of(client, "iteration"), xray=True)
    edges = {(str(edge["source"]), str(edge["target"])) for edge in drawn["edges"]}
    nodes = {str(node["id"]): node for node in drawn["nodes"]}
    assert {"branch:explore", "branch:abstract", "branch:verify"} <= set(nodes)
    assert {name for name in nodes if name not in {end for edge in edges for end in edge}} == set()
    assert {("branch:verify", "branch_failed"), ("branch_failed", "update")} <= edges
    described = {name: node["metadata"]["description"] for name, node in nodes.items() if "__" not in name}
    assert all(".json" not in text and text.endswith(".") for text in described.values())


def test_the_default_runs_the_newest_iteration_and_streams_and_leaves_digests(
    newest: Served, streamed: list[str]
) -> None:
    run, client = newest
    told, thread = streamed, thread_id(NEWEST)
    assert any("run, iteration 2: 60 rollouts of 5 tasks, " in line for line in told)
    evolution = read_json(run.iteration(NEWEST) / "evolution.json", Evolution)
    ended = [line for line in told if line.startswith('{"verify": {"branches": ')]
    assert len(ended) == evolution.new
    assert all(" drafts accepted" in line for line in ended)
    values = newest_state(client, thread)
    assert values["iteration"] == NEWEST
    assert [*values["digest"]] == ["extract", "reflect", "deduplicate", "update"]
    assert values["digest"]["deduplicate"][0] == f"{evolution.new} new, {evolution.known} known"
    assert values["digest"]["update"][0].startswith(f"{len(evolution.admitted)} of {evolution.drafts} drafts admitted")
    assert len(values["branches"]) == evolution.new
    assert all(len(line) <= 160 for lines in (*values["digest"].values(), values["branches"]) for line in lines)


def test_a_branch_is_named_by_its_weakness_and_its_state_says_what_it_did(newest: Served) -> None:
    _, client = newest
    thread = begun(client, context={"pause": "verify"})
    state = client.threads.get_state(thread, subgraphs=True)
    inside = [task["state"]["values"] for task in state["tasks"] if task["state"]]
    assert inside
    for values in inside:
        assert re.match(r"(boundary|forgetting|rare)[^:]* on '.+': ", values["weakness"])
        assert [*values["digest"]] == ["explore", "abstract"]
    shown = state["tasks"][0]["interrupts"][0]["value"]
    assert shown["paused before"] == "verify"
    assert {"turns", "reference"} == {*next(iter(shown["records"].values()))}
    assert name_of(client, thread) == "run, iteration 2, made in Studio"
    client.runs.wait(thread, "iteration", raise_error=True)  # without the pause: it goes on
    assert client.threads.get_state(thread)["next"] == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"iteration": -2}, "iteration: -2 is not the number of an iteration: give one from 0"),
        ({"iteration": "x"}, "iteration: 'x' is not the number"),
        ({"iteration": {}}, "iteration: {} is not the number"),
        ({"iteration": 99}, "has no trajectories: give one from 0 to 2, or -1 for the newest"),
        ({"iteration": 0, "foo": 1}, "input: 'foo' is not asked for: give iteration alone"),
    ],
)
def test_a_wrong_input_is_one_sentence_and_leaves_the_thread_readable(
    served: Served, given: dict[str, Any], told: str
) -> None:
    _, client = served
    thread = str(client.threads.create(graph_id="iteration")["thread_id"])
    with pytest.raises(Exception, match=re.escape(told)) as raised:
        client.runs.wait(thread, "iteration", input=given, raise_error=True)
    assert "\n" not in str(raised.value).strip()
    assert client.threads.get_state(thread)["next"] in (["extract"], [])
    client.runs.wait(thread, "iteration", input={"iteration": 0}, interrupt_before=["reflect"], raise_error=True)


def test_a_run_that_the_server_did_not_open_is_refused(served: Served) -> None:
    run, client = served
    other = RunDirectory.create(run.root.with_name("other"), settings_for(run.root.parent / "of another"))
    thread = str(client.threads.create(graph_id="iteration")["thread_id"])
    with pytest.raises(Exception, match="start another one with COEVOLVE_RUN"):
        client.runs.wait(thread, "iteration", input={}, context={"run": str(other.root)}, raise_error=True)
    with pytest.raises(Exception, match="pause: 'update' is not a step of a branch"):
        client.runs.wait(thread, "iteration", input={}, context={"pause": "update"}, raise_error=True)
    assert not list(other.root.glob("iterations"))


def test_an_interrupted_iteration_is_edited_and_resumed_in_a_copy(newest: Served) -> None:
    run, client = newest
    untouched = records(run.root)
    thread = begun(client, interrupt_before=["reflect"])
    values = newest_state(client, thread)
    client.threads.update_state(thread, {"signals": values["signals"][:1]})
    client.runs.wait(thread, "iteration", raise_error=True)
    fork = copy_of(run, thread)  # the iteration is done: its first call made the copy
    evolution = read_json(fork.iteration(NEWEST) / "evolution.json", Evolution)
    assert evolution.new + evolution.known == 1
    assert records(run.root) == untouched


def test_any_node_is_replayed(newest: Served) -> None:
    run, client = newest
    untouched = records(run.root)
    thread = begun(client)
    for number, node in enumerate(("update", "branch", "reflect"), 2):
        client.runs.wait(thread, "iteration", checkpoint=before(client, thread, node), raise_error=True)
        replayed = records(copy_of(run, thread, number).iteration(NEWEST).root)
        assert replayed == records(copy_of(run, thread).iteration(NEWEST).root)
    assert records(run.root) == untouched


def test_a_failed_branch_is_retried_beside_its_siblings(newest: Served) -> None:
    run, client = newest
    thread = begun(client, interrupt_before=["dispatch"])
    first, *others = newest_state(client, thread)["new"]
    path = copy_of(run, thread).iteration(NEWEST).branch(first).context
    whole = path.read_text()
    path.write_text("{")
    client.runs.wait(thread, "iteration", raise_error=True)
    values = newest_state(client, thread)
    assert values["failed"] == [first]
    assert "failed in explore, InputError" in " ".join(values["branches"])
    path.write_text(whole)
    changed = client.threads.update_state(
        thread, {"again": [first]}, as_node="deduplicate", checkpoint=before(client, thread, "dispatch")
    )
    client.runs.wait(thread, "iteration", checkpoint=changed["checkpoint"], raise_error=True)
    values = newest_state(client, thread)
    assert (values["failed"], values["finished"]) == ([], [first])
    retried = copy_of(run, thread, 2)
    assert read_json(retried.iteration(NEWEST) / "evolution.json", Evolution).failures == {}
    joined = {one.context_id for one in verifications_in(retried).values()}
    assert joined & set(others), "the siblings' drafts are joined, too"


def test_an_edited_draft_changes_its_result(newest: Served) -> None:
    run, client = newest
    untouched = records(run.root)
    verifications = verifications_in(run)
    draft = next(one for one in drafts_in(run) if verifications[one.id].accepted)
    thread = begun(client)
    edits = {draft.id: {"reference": [[{"name": "no_such_tool"}], *([[]] * (len(draft.turns) - 1))]}}
    changed = client.threads.update_state(
        thread, {"edits": edits}, as_node="deduplicate", checkpoint=before(client, thread, "dispatch")
    )
    client.runs.wait(thread, "iteration", checkpoint=changed["checkpoint"], raise_error=True)
    verification = verifications_in(copy_of(run, thread, 2))[draft.id]
    assert (verification.accepted, verification.reason) == (False, "unknown_tool")
    assert "refused: 1 unknown_tool" in " ".join(newest_state(client, thread)["branches"])
    assert records(run.root) == untouched


def test_the_answer_to_a_pause_edits_drafts_whose_results_the_state_shows(newest: Served) -> None:
    run, client = newest
    untouched = records(run.root)
    thread = begun(client, context={"pause": "verify"})

    def waits() -> dict[str, Any]:
        tasks = client.threads.get_state(thread, subgraphs=True)["tasks"]
        return {one["id"]: one["value"] for task in tasks for one in task["interrupts"]}

    shown = waits()
    client.runs.wait(thread, "iteration", command={"resume": dict.fromkeys(shown, "please do the thing")})
    told = "edits: 'please do the thing' is not a mapping of ids to changed fields, as {ID: {FIELD: VALUE}}"
    assert [one["refused"] for one in waits().values()] == [told] * len(shown)
    edits = [
        {name: {"turns": ["do it"] * len(one["turns"])} for name, one in v["records"].items()} for v in shown.values()
    ]
    answers = dict(zip(waits(), edits, strict=True))
    client.runs.wait(thread, "iteration", command={"resume": answers}, context={"pause": "verify"}, raise_error=True)
    copy = copy_of(run, thread, 2)
    assert {turn for one in drafts_in(copy) for turn in one.turns} == {"do it"}
    accepted = sum(one.accepted for one in verifications_in(copy).values())
    assert accepted < sum(one.accepted for one in verifications_in(run).values())
    told, first, *_ = newest_state(client, thread)["digest"]["edits"]
    assert told == f"{accepted} of {len(drafts_in(copy))} drafts accepted"
    assert first.startswith("'do it': ")
    assert records(run.root) == untouched


def test_an_edited_context_is_explored_anew(newest: Served) -> None:
    run, client = newest
    thread = begun(client)
    context = newest_state(client, thread)["new"][0]
    changed = client.threads.update_state(
        thread,
        {"edits": {context: {"explore": ["pwd"]}}},
        as_node="deduplicate",
        checkpoint=before(client, thread, "dispatch"),
    )
    client.runs.wait(thread, "iteration", checkpoint=changed["checkpoint"], raise_error=True)
    explored = read_json(copy_of(run, thread, 2).iteration(NEWEST).branch(context).context, FailureContext)
    assert explored.explore == ("pwd",)


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        (7, "edits: 7 is not a mapping of ids to changed fields"),
        ({"draft-none": {"turns": ["a"]}}, "'draft-none' is not a context or draft of iteration 002"),
        ({"DRAFT": {"id": "../../x"}}, ".id cannot be edited: change turns, reference"),
        ({"DRAFT": {"turns": "x"}}, "turns: Input should be a valid tuple"),
    ],
)
def test_a_hostile_edit_is_one_sentence_and_leaves_the_thread_readable(newest: Served, edits: Any, told: str) -> None:
    run, client = newest
    draft = drafts_in(run)[0].id
    given = {draft if name == "DRAFT" else name: fields for name, fields in edits.items()} if edits != 7 else 7
    values = newest_state(client, thread_id(NEWEST))
    thread = str(client.threads.create(graph_id="iteration")["thread_id"])
    ids = {name: values[name] for name in ("iteration", "signals", "contexts", "new")}
    client.threads.update_state(thread, {**ids, "edits": given}, as_node="deduplicate")
    with pytest.raises(Exception, match=re.escape(told)):
        client.runs.wait(thread, "iteration", raise_error=True)
    assert client.threads.get_state(thread)["next"] == ["dispatch"]
    assert not list(run.root.parent.glob(f"run@{thread}*"))


def test_the_server_holds_the_runs_lock(served: Served) -> None:
    run, _ = served
    directory, _, _ = open_run(run.root, None, [], None, resume=True)
    with pytest.raises(InputError, match="another process"), directory.lock():
        pytest.fail("two processes hold the run's lock")


def test_studio_opens_the_named_run_or_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COEVOLVE_RUN", raising=False)
    with pytest.raises(InputError, match=r"no run below runs/"):
        studio_run()
    for age, name in enumerate(("fork", "newer", "older")):
        path = tmp_path / "runs" / name / "settings.yaml"
        path.parent.mkdir(parents=True)
        path.write_text("")
        os.utime(path, (time.time() - age, time.time() - age))
    (tmp_path / "runs" / "fork" / "fork.json").touch()
    assert studio_run() == Path("runs/newer")
    monkeypatch.setenv("COEVOLVE_RUN", "elsewhere")
    assert studio_run() == Path("elsewhere")


def test_without_a_run_that_can_be_opened_no_server_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(path: str, argv: list[str], variables: dict[str, str]) -> None:
        assert variables["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
        raise SystemExit(99)

    monkeypatch.setattr(os, "execve", start)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COEVOLVE_RUN", "")
    runner = CliRunner()
    ended = runner.invoke(app, ["--no-browser"])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: no run below runs/: make one with")
    assert ended.stderr.count("\n") == 1
    run = make_run(tmp_path / "runs" / "mine")
    assert runner.invoke(app, ["--no-browser"]).exit_code == 99
    assert os.environ["COEVOLVE_RUN"] == str(run.root)
    with run.lock():
        assert "already uses" in runner.invoke(app, ["--run", "runs/mine"]).stderr


async def test_a_server_with_several_event_loops_takes_the_lock_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    monkeypatch.setenv("COEVOLVE_RUN", str(run.root))
    async with open_checkpoints():
        async with open_checkpoints():
            pass
        with pytest.raises(InputError), run.lock():
            pytest.fail("the lock was given up while the server still has its checkpoints")
    with run.lock():
        write_jsonl(run.root / "free.jsonl", [])
