"""LangGraph's server on our graph, offline: what Studio sees, and the run that it holds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient
from support import ROOT
from support.made_run import make_run, records, run_graph, settings_for
from typer.testing import CliRunner

from environments.base import InputError
from graph.checkpoints import open_checkpoints, studio_run
from graph.records import Evolution
from graph.run.stages import thread_id
from graph.run_iteration import open_run
from graph.studio import app
from memory.run import RunDirectory, read_json, write_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.external]

START_SECONDS = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunDirectory, SyncLangGraphClient]]:
    """A run whose first iteration is done and whose second has trajectories, in a server of its own."""
    folder = tmp_path_factory.mktemp("studio")
    run = make_run(folder / "run")
    run_graph(run)
    copy = (run.iteration(0) / "trajectories.jsonl").read_text().replace('"iteration": 0', '"iteration": 1')
    run.iteration(1).root.mkdir()
    (run.iteration(1) / "trajectories.jsonl").write_text(copy)
    port = free_port()
    command = [str(Path(sys.executable).with_name("langgraph")), "dev", "--no-browser", "--no-reload"]
    command += ["--port", str(port), "--config", str(ROOT / "langgraph.json")]
    environment = {**os.environ, "COEVOLVE_RUN": str(run.root), "LANGSMITH_TRACING": "false"}
    # langgraph-api 0.16.7 copies its checkpointer when checkpoints are strict, and recurses without end.
    environment.pop("LANGGRAPH_STRICT_MSGPACK", None)
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process, folder / "server.log")
        yield run, get_sync_client(url=url)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{url}/ok", timeout=2).read()
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"no server after {START_SECONDS} s: {log.read_text()}")


def test_the_server_shows_the_graph_with_the_inside_of_its_branch(
    served: tuple[RunDirectory, SyncLangGraphClient],
) -> None:
    _, client = served
    (assistant,) = client.assistants.search()
    assert assistant["graph_id"] == "iteration"
    drawn = client.assistants.get_graph(assistant["assistant_id"], xray=True)
    nodes = {str(node["id"]) for node in drawn["nodes"]}
    assert {
        "extract",
        "reflect",
        "deduplicate",
        "branch:explore",
        "branch:abstract",
        "branch:verify",
        "update",
    } <= nodes
    context = client.assistants.get_schemas(assistant["assistant_id"])["context_schema"]
    assert context is not None
    assert set(context["properties"]) == {"run"}
    assert context["additionalProperties"] is False


def test_the_server_shows_what_the_command_line_did(served: tuple[RunDirectory, SyncLangGraphClient]) -> None:
    run, client = served
    client.threads.create(thread_id=thread_id(0), graph_id="iteration", if_exists="do_nothing")
    state = client.threads.get_state(thread_id(0))
    evolution = read_json(run.iteration(0) / "evolution.json", Evolution)
    assert state["next"] == []
    values = state["values"]
    assert isinstance(values, dict)
    assert len(values["new"]) == evolution.new
    assert sorted(values["finished"]) == sorted(values["new"])


def test_the_server_runs_an_iteration(served: tuple[RunDirectory, SyncLangGraphClient]) -> None:
    run, client = served
    client.threads.create(thread_id=thread_id(1), graph_id="iteration")
    client.runs.wait(thread_id(1), "iteration", input={"iteration": 1}, raise_error=True)
    evolution = read_json(run.iteration(1) / "evolution.json", Evolution)
    assert evolution.iteration == 1
    assert evolution.failures == {}
    assert evolution.admitted


def test_an_edit_of_a_finished_iteration_leaves_its_records(served: tuple[RunDirectory, SyncLangGraphClient]) -> None:
    run, client = served
    before = records(run.root / "iterations" / "000")
    thread = client.threads.create(graph_id="iteration")["thread_id"]
    client.runs.wait(thread, "iteration", input={"iteration": 0}, interrupt_before=["reflect"], raise_error=True)
    values = client.threads.get_state(thread)["values"]
    assert isinstance(values, dict)
    client.threads.update_state(thread, {"signals": values["signals"][:1]})
    client.runs.wait(thread, "iteration", raise_error=True)
    assert records(run.root / "iterations" / "000") == before
    copy = RunDirectory.open(run.root.with_name(f"run@{thread}"))
    assert read_json(copy.iteration(0) / "evolution.json", Evolution).new <= 1


def test_a_run_that_the_server_did_not_open_and_a_wrong_input_are_refused(
    served: tuple[RunDirectory, SyncLangGraphClient],
) -> None:
    run, client = served
    other = RunDirectory.create(run.root.with_name("other"), settings_for(run.root.parent / "of another"))
    thread = client.threads.create(graph_id="iteration")["thread_id"]
    for given, context, told in (
        ({"iteration": 0}, {"run": str(other.root)}, "start another one with COEVOLVE_RUN"),
        ({"iteration": "x"}, None, "'x' is not the number of an iteration"),
    ):
        with pytest.raises(Exception, match=told):
            client.runs.wait(thread, "iteration", input=given, context=context, raise_error=True)
        assert client.threads.get_state(thread)["next"] == ["extract"]
    assert not list(other.root.glob("iterations"))


def test_the_server_holds_the_runs_lock(served: tuple[RunDirectory, SyncLangGraphClient]) -> None:
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
    def start(path: str, argv: list[str]) -> None:
        raise SystemExit(99)

    monkeypatch.setattr(os, "execv", start)
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
