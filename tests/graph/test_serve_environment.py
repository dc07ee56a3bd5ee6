"""`coevolve environment serve`: OpenEnv's own clients against it, and hostile ones.

What needs OpenEnv is left out where ``make openenv`` has not been run.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.commands import run_here
from support.own_venvs import OPENENV, needs
from support.served_shop import served, write_shop
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

needs_openenv = needs(OPENENV)
pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.external]
TOKEN = "a-token-of-many-letters"


def answered(client: ClientConnection, text: str) -> str | bytes:
    client.send(text)
    return client.recv(timeout=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shop(tmp_path_factory.mktemp("shop"))


@contextmanager
def session(url: str, token: str | None = None) -> Iterator[ClientConnection]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with connect(f"ws{url.removeprefix('http')}/ws", additional_headers=headers, proxy=None, open_timeout=20) as one:
        yield one


def ask(connection: ClientConnection, kind: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    connection.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))
    answer: dict[str, Any] = json.loads(connection.recv(timeout=30))
    return answer


def call(connection: ClientConnection, name: str, **arguments: Any) -> dict[str, Any]:
    return ask(connection, "step", {"type": "call_tool", "tool_name": name, "arguments": arguments})


PLAY = """
import json, sys
from openenv import GenericEnvClient
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.mcp_client import MCPToolClient

url, tasks = sys.argv[1], [json.loads(line) for line in open(sys.argv[2])]
rewards = []
with MCPToolClient(base_url=url).sync() as client:
    for index, task in enumerate(tasks):
        for does in (True, False):
            result = client.reset(split="train", index=index)
            assert result.observation.user == task["turns"][0], result
            assert "finish_turn" in [tool.name for tool in client.list_tools()]
            for turn, calls in enumerate(task["reference"]):
                for one in calls if does else ():
                    client.step(CallToolAction(tool_name=one["name"], arguments=one["arguments"]))
                result = client.step(CallToolAction(tool_name="finish_turn"))
                if turn + 1 < len(task["turns"]):
                    assert result.observation.result["user"] == task["turns"][turn + 1], result
            assert result.done
            rewards.append(result.reward)
with GenericEnvClient(base_url=url).sync() as client:
    result = client.reset(index=1)
    print(result.observation["user"], client.state()["world"])
print(rewards)
"""


@needs_openenv
def test_openenvs_own_clients_play_the_tasks(folder: Path) -> None:
    with served(folder) as url:
        argv = [str(OPENENV), "-c", PLAY, url, "tasks.jsonl"]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ['Put 1 euro into the till. {"euros": 3}', "[1.0, 0.0, 1.0, 0.0]"]
        listed = httpx.post(f"{url}/shop/task_range", json={"split": "train"}).json()["tasks"]
        assert [(one["id"], one["index"], one["turns"]) for one in listed] == [("task-0", 0, 1), ("task-1", 1, 2)]
        assert "reference" not in json.dumps(listed)


@needs_openenv
def test_faults_and_mistakes_of_a_client_have_no_reward(folder: Path) -> None:
    with served(folder) as url, session(url) as client:
        assert ask(client, "step", {"type": "call_tool", "tool_name": "count_euros"})["type"] == "error", "no reset yet"
        for wrong in ({"index": 7}, {"index": -1}, {"index": "x"}, {"split": "test"}):
            assert "no such task" in ask(client, "reset", wrong)["data"]["message"]
        ask(client, "reset", {"index": 0})
        refused = call(client, "add_euros", euros="many")["data"]
        assert refused["observation"]["error"]["error_type"] == "execution_error"
        assert (refused["reward"], refused["done"]) == (None, False)
        assert call(client, "no_such_tool")["data"]["observation"]["error"]
        broken = call(client, "break_down")
        assert broken["type"] == "error"
        assert "a defect" in broken["data"]["message"]
        assert call(client, "finish_turn")["type"] == "error", "the attempt is over and has no reward"
        ask(client, "reset", {"index": 0})
        call(client, "add_euros", euros=4)
        assert call(client, "finish_turn")["data"] | {"observation": None} == {
            "observation": None,
            "reward": 1.0,
            "done": True,
        }


@needs_openenv
def test_hostile_messages_end_no_session_but_their_own(folder: Path) -> None:
    with served(folder, "--sessions", "3") as url, session(url) as honest:
        ask(honest, "reset", {"index": 0})
        for text in (
            "",
            "[]",
            "{",
            '"x"',
            "[" * 100_000,
            '{"type": 7}',
            '{"type": "reset", "data": []}',
            "x" * 900_000,
        ):
            with session(url) as client:
                client.send(text)
                with suppress(ConnectionClosed):
                    client.recv(timeout=20)
        # The server may close while the message is still being sent.
        with session(url) as client, pytest.raises(ConnectionClosed):
            answered(client, "x" * 2_000_000)
        deep: Any = 1
        for _ in range(500):
            deep = [deep]
        assert call(honest, "add_euros", euros=deep)["data"]["observation"]["error"]
        call(honest, "add_euros", euros=4)
        assert call(honest, "finish_turn")["data"]["reward"] == 1.0


@needs_openenv
def test_a_hung_act_and_one_session_too_many_hold_nobody_up(folder: Path) -> None:
    with served(folder, "--sessions", "2", "--idle", "3") as url, session(url) as hung, session(url) as other:
        ask(hung, "reset", {"index": 0})
        hung.send(json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": "wait_long"}}))
        began = time.monotonic()
        ask(other, "reset", {"index": 0})
        call(other, "add_euros", euros=4)
        assert call(other, "finish_turn")["data"]["reward"] == 1.0
        assert time.monotonic() - began < 10
        with session(url) as third:
            assert json.loads(third.recv(timeout=20))["data"]["code"] == "CAPACITY_REACHED"
        with pytest.raises(ConnectionClosed):
            other.recv(timeout=20)  # it was silent for three seconds
        with session(url) as fourth:
            assert ask(fourth, "reset", {"index": 0})["type"] == "observation", "the room of the silent one is free"


@needs_openenv
def test_clients_without_the_token_take_nothing_and_keep_nobody_out(folder: Path) -> None:
    with served(folder, COEVOLVE_SERVE_TOKEN=TOKEN) as url, ExitStack() as stack:
        host, port = url.removeprefix("http://").split(":")
        half = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(300)]
        for place, one in enumerate(half):
            with suppress(OSError):  # it was ended already
                one.sendall(b"GET /ws HTTP/1.1\r\nHost: x\r\nX-Half: " if place % 2 else b"")
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            assert httpx.get(f"{url}/health", headers=headers, timeout=20).status_code == 401
            with pytest.raises(InvalidStatus, match="403"), session(url, "wrong"):
                pass
        with session(url, TOKEN) as client:
            assert ask(client, "reset", {"index": 0})["type"] == "observation"
        began, ended = time.monotonic(), 0
        for one in half:
            one.settimeout(max(0.1, 20 + began - time.monotonic()))
            try:
                ended += not one.recv(1)
            except ConnectionError:
                ended += 1
        assert ended == 300, "each ends within the time of a request"


@needs_openenv
def test_a_server_of_this_machine_answers_programs_alone(folder: Path) -> None:
    with served(folder) as url:
        answers = {
            "page": httpx.get(f"{url}/health", headers={"Origin": "http://evil"}).status_code,
            "renamed": httpx.get(f"{url}/health", headers={"Host": "evil:80"}).status_code,
            "docs": httpx.get(f"{url}/docs").status_code,
            "act over HTTP": httpx.post(f"{url}/step", json={"action": {}}).status_code,
            "long": httpx.post(f"{url}/shop/tasks", content=b"x" * 70_000).status_code,
            "endless": httpx.post(f"{url}/shop/tasks", content=iter([b"{", b"}"])).status_code,
            "program": httpx.get(f"{url}/health").status_code,
        }
        assert answers == {
            "page": 403,
            "renamed": 403,
            "docs": 404,
            "act over HTTP": 404,
            "long": 413,
            "endless": 413,
            "program": 200,
        }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either NAME or --run"),
        (["my_shop:shop", "--run", "x"], "either NAME or --run"),
        (["my_shop:shop", "--tasks", "tasks.jsonl", "--record"], "--record goes with --run"),
        (["my_shop:shop"], "name a file of tasks with --tasks"),
        (["my_shop:shop", "--tasks", "empty.jsonl"], "holds no task"),
        (["my_shop:shop", "--tasks", "other.jsonl"], "task 1: "),
        (["my_shop:shop", "--tasks", "tasks.jsonl", "--host", "0.0.0.0"], "COEVOLVE_SERVE_TOKEN"),
    ],
)
@needs_openenv
def test_a_mistake_is_one_sentence(folder: Path, arguments: list[str], words: str) -> None:
    (folder / "empty.jsonl").write_text("")
    (folder / "other.jsonl").write_text((folder / "tasks.jsonl").read_text().replace('"shop"', '"bank"'))
    done = run_here("graph.check_environment", "serve", *arguments, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_token_that_can_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COEVOLVE_SERVE_TOKEN", "short one")
    done = run_here("graph.check_environment", "serve", "environments.example:depot")
    assert done.returncode == 2
    assert "16 characters" in done.stderr
    assert "short one" not in done.stderr
