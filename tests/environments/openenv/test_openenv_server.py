"""A server written with OpenEnv's own package, run in its own virtual environment: our client's contract with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.openenv_host import CounterHost, task
from support.own_venvs import OPENENV, of_programs
from support.server_process import running
from websockets.sync.client import connect

from environments.base import InputError, ObservationStatus, ToolCall
from environments.openenv.benchmark import OpenEnvEnvironment
from environments.registry import open_named
from environments.verification.verify import Refusal, verify

pytestmark = of_programs(OPENENV)


@contextmanager
def serving(kind: str, sessions: int, log: Path) -> Iterator[str]:
    program = Path(__file__).with_name("depot_server.py")
    with running([str(OPENENV), str(program), "PORT", str(sessions), kind], log) as server:
        yield server.url


def test_tools_with_a_state_and_one_session(tmp_path: Path) -> None:
    with serving("state", 1, tmp_path / "log") as url:
        environment = open_named("openenv", {"url": url, "starts": 3})
        assert isinstance(environment, OpenEnvEnvironment)
        with closing(environment.open(task(environment, "List."))) as episode:
            episode.start()
            label = json.loads(episode.step(ToolCall(name="list_parcels")).text)[0]
        loads = ToolCall(name="load_parcel", arguments={"label": label, "van": "south"})
        assert verify(task(environment, f"Put {label} into the van south.", loads), environment, (), ()).accepted
        opened = task(environment, "Open the depot's gate.", ToolCall(name="open_gate"))
        with closing(environment.open(opened)) as first, closing(environment.open(opened)) as second:
            for episode in (first, second):
                episode.start()
                empty = episode.step(ToolCall(name="send_van", arguments={"van": "north"}))
                assert empty.status is ObservationStatus.ERROR
            for episode in (first, second):
                episode.step(ToolCall(name="open_gate"))
                assert episode.outcome().success


def test_tools_without_a_state(tmp_path: Path) -> None:
    with serving("blind", 4, tmp_path / "log") as url:
        with pytest.raises(InputError, match="set it to reward"):
            open_named("openenv", {"url": url, "starts": 1})
        environment = open_named("openenv", {"url": url, "starts": 1, "compare": "reward"})
        assert isinstance(environment, OpenEnvEnvironment)
        opened = task(environment, "Open the depot's gate.", ToolCall(name="open_gate"))
        assert verify(opened, environment, (), ()).reason is Refusal.NO_EFFECT


def test_actions_in_place_of_tools(tmp_path: Path) -> None:
    with serving("typed", 4, tmp_path / "log") as url:
        environment = open_named("openenv", {"url": url, "starts": 1})
        assert isinstance(environment, OpenEnvEnvironment)
        right = ToolCall(name="act", arguments={"move": "right"})
        with closing(environment.open(task(environment, "Go."))) as episode:
            episode.start()
            assert episode.step(right).text == '{"at": 1}'
            assert episode.step(ToolCall(name="act", arguments={"move": "up"})).failed
            episode.step(right)
            assert not episode.outcome().success
            episode.step(right)
            assert episode.outcome().success


def test_the_host_of_other_tests_answers_as_openenv_does(tmp_path: Path) -> None:
    """Messages, keys and types of the fake are those of the package; values are not compared."""

    def shape(value: object) -> object:
        if isinstance(value, dict):
            return {key: shape(one) for key, one in sorted(value.items()) if key != "metadata"}
        return "list" if isinstance(value, list) else type(value).__name__

    def answers(url: str, tool: str) -> list[object]:
        with connect(f"ws{url.removeprefix('http')}/ws", proxy=None) as connection:
            found = []
            for message in (
                {"type": "reset", "data": {"seed": 0, "split": "train", "index": 0}},
                {"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": {}}},
            ):
                connection.send(json.dumps(message))
                found.append(json.loads(connection.recv(timeout=30)))
        for one in found:
            one["data"]["observation"] = sorted(one["data"]["observation"].keys() - {"metadata", "prompt"})
            one["data"]["reward"] = None
        return [shape(one) for one in found]

    with serving("state", 4, tmp_path / "log") as url, CounterHost() as fake:
        assert answers(fake.url, "read_count") == answers(url, "list_parcels")
        with connect(f"ws{url.removeprefix('http')}/ws", proxy=None) as connection:
            connection.send(json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": 7}}))
            refused = json.loads(connection.recv(timeout=30))
            assert (refused["type"], refused["data"]["code"]) == ("error", "VALIDATION_ERROR")
