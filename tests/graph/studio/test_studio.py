"""LangGraph's server on our graphs, offline: every action that Studio offers, and the run that the server holds.

Read from the top this is the tour of docs/studio.md, as Studio's page would call it.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.schema import Checkpoint
from support.made_run import make_round, make_run, records, run_graph
from support.server_process import running
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from environments.base import InputError
from environments.checkout import child_variables
from graph.checkpoints import open_checkpoints, studio_run, thread_id
from graph.report.summary import summarise
from graph.run_iteration import open_run
from graph.settings import load_recipe
from graph.studio.__main__ import app
from memory.run import RunDirectory, read_json, write_json, write_jsonl
from memory.run_files import Evolution

pytestmark = [pytest.mark.slow, pytest.mark.external]

NEWEST = 1
Served = tuple[RunDirectory, SyncLangGraphClient]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A run in a server of its own: iteration 0 was done by the command, 1 (NEWEST) has its round."""
    folder = tmp_path_factory.mktemp("studio")
    run = make_run(folder / "run")
    run_graph(run)
    write_json(run.iteration(0) / "summary.json", summarise(run, load_recipe(run.settings_path), 0))
    make_round(run, NEWEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANGSMITH_TRACING", "false")
        argv = [sys.executable, "-m", "graph.command", "studio", "--run", str(run.root), "--no-browser"]
        environment = {**os.environ, **child_variables()}
        here = working_directory(tmp_path_factory.mktemp("served"))
        with running(
            [*argv, "--port", "PORT"], folder / "log", "/ok", ends_by=signal.SIGINT, cwd=here, env=environment
        ) as server:
            yield run, get_sync_client(url=server.url)
        assert not [*here.glob("*.marker")], "something of the working directory was loaded"
        assert {path.stat().st_size for path in here.glob(".langgraph_api/*")} == {len(pickle.dumps(Touches(here)))}


class Touches:
    """Its pickle makes a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.folder / "pickle.marker",)


def working_directory(folder: Path) -> Path:
    """A stranger's folder: pickles where the server keeps its lists, and packages that it asks for in vain."""
    kept = folder / ".langgraph_api"
    kept.mkdir()
    for name in ("store", "store.vectors", ".langgraph_ops", ".langgraph_retry_counter", ".langgraph_checkpoint.1"):
        (kept / f"{name}.pckl").write_bytes(pickle.dumps(Touches(folder)))
    for name in ("colorama", "ddtrace", "h2", "better_exceptions", "grpc_reflection", "a2wsgi"):
        (folder / f"{name}.py").write_text(f"open({str(folder / name)!r} + '.marker', 'w')\n")
    return folder


def assistant_of(client: SyncLangGraphClient, graph: str) -> str:
    (assistant,) = client.assistants.search(graph_id=graph)
    return str(assistant["assistant_id"])


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


@pytest.fixture(scope="module")
def newest(served: Served) -> Served:
    """The run in whose copy the newest iteration is done."""
    _, client = served
    thread = str(client.threads.create(thread_id=thread_id(NEWEST), graph_id="iteration")["thread_id"])
    client.runs.wait(thread, "iteration", input={"iteration": -1}, raise_error=True)  # the form's default
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


def test_the_form_asks_for_the_iteration_alone_and_describes_what_it_asks_for(served: Served) -> None:
    _, client = served
    schemas = client.assistants.get_schemas(assistant_of(client, "iteration"))
    asked = schemas["input_schema"]
    context = schemas["context_schema"]
    assert asked is not None
    assert context is not None
    assert {*asked["properties"]} == {"iteration"}
    assert asked["properties"]["iteration"]["default"] == -1
    assert {*context["properties"]} == {"pause"}
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


def test_the_default_runs_the_newest_iteration_and_leaves_digests(newest: Served) -> None:
    run, client = newest
    thread = thread_id(NEWEST)
    evolution = read_json(copy_of(run, thread).iteration(NEWEST) / "evolution.json", Evolution)
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
    assert name_of(client, thread) == "run, iteration 1, made in Studio"
    waiting = {one["id"]: "" for task in state["tasks"] for one in task["interrupts"]}
    first = next(iter(waiting))
    draft, fields = next(iter(shown["records"].items()))
    client.runs.wait(thread, "iteration", command={"resume": waiting | {first: {draft: {"turns": 7}}}})
    told = [one for task in client.threads.get_state(thread)["tasks"] for one in task["interrupts"]]
    assert ["turns: Input should be a valid tuple" in one["value"]["refused"] for one in told] == [True]
    answer = {draft: {"turns": ["do it"] * len(fields["turns"])}}
    client.runs.wait(thread, "iteration", command={"resume": {told[0]["id"]: answer}}, raise_error=True)
    assert client.threads.get_state(thread)["next"] == []
    assert "'do it': " in " ".join(newest_state(client, thread)["digest"]["edits"])


def test_the_server_holds_the_runs_lock(served: Served) -> None:
    run, _ = served
    directory = open_run(run.root, None, [], None, resume=True).directory
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
    def start(options: list[str]) -> None:
        assert options == ["--no-browser"]
        raise SystemExit(99)

    monkeypatch.setattr("graph.studio.__main__.serve", start)
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
