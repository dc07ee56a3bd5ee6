"""The benchmarks of environment hosts at a small size, and of the peer's service against a stand-in of it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import agentevolver, environment_hosts, host_scale
from environments.base import InputError, ToolCall
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.official import load_category

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.long]
CALL = re.compile(r"<tool_call>\s*\n?({.*?})\s*\n?</tool_call>", re.DOTALL)


def test_episodes_on_hosts_are_measured() -> None:
    fast, slow = environment_hosts.measure(1, limit=4, hosts=2)
    assert (fast.name, slow.name) == ("environment-hosts: 2 hosts", "environment-hosts: 2 hosts, steps of 50 ms")
    assert fast.ours > 0.23
    assert slow.other < 1 / (2 * environment_hosts.WAIT), "an episode here waits for its two steps"
    assert re.search(r"hosts [\d.]+, in this process [\d.]+; 7\.0 requests per episode", slow.note)


def test_the_graph_is_measured_with_hosts_and_without() -> None:
    scheduler, hosted = host_scale.measure(1, tasks=30, contexts=6, hosts=2, processes=1)
    assert scheduler.name == "host-scale: 6 contexts"
    assert scheduler.ours > 0
    assert hosted.name == "host-scale: 2 hosts"
    assert "episodes per host 3 to 3" in hosted.note


class Service(BaseHTTPRequestHandler):
    """Answers as the peer's service does; an episode is one of ours. It misreports the task that ``wrong`` names."""

    tasks = {f"multi_turn_base_{one.index}": one.spec for one in load_category("base")[:2]}
    wrong = next(iter(tasks))
    playing: dict = {}
    released: list[str] = []

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps({"success": True, "data": self.answer(self.path.strip("/"), message)}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, what: str, message: dict) -> object:
        if what == "get_env_profile":
            return {"train": [*self.tasks], "val": []}[message["params"]["split"]]
        name = message["instance_id"]
        if what == "create":
            episode = BFCLEnvironment(max_steps=100).open(self.tasks[message["task_id"]])
            self.playing[name] = message["task_id"], episode
            return {"state": [{"role": "user", "content": episode.start().text}], "info": {}}
        task, episode = self.playing[name]
        if what == "step":
            calls = [json.loads(text) for text in CALL.findall(message["messages"]["content"])]
            for call in calls:
                episode.step(ToolCall(**call))
            over = not calls and episode.end_turn() is None
            return {"state": [], "reward": 0.0, "is_terminated": over}
        if what == "evaluate":
            return float(episode.outcome().success and task != self.wrong)
        self.released.append(name)
        return None

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_the_peers_service_plays_the_same_references(monkeypatch: pytest.MonkeyPatch) -> None:
    with service() as url:
        monkeypatch.setenv(agentevolver.SERVICE, url)
        over_http, here = agentevolver.measure(1, limit=2)
    assert (over_http.name, here.name) == ("agentevolver: a host over HTTP", "agentevolver: this process")
    assert over_http.note.startswith("the service evaluates 1 of 2 episodes as wrong, ours none; its median episode")
    assert len(Service.released) == 2


def test_without_the_peers_service_the_sentence_says_what_it_needs(monkeypatch, unused_tcp_port: int) -> None:
    monkeypatch.delenv(agentevolver.SERVICE, raising=False)
    with pytest.raises(InputError, match=r"install its env_service in an environment of its own .*bfcl\.sh and set"):
        agentevolver.measure(1)
    monkeypatch.setenv(agentevolver.SERVICE, f"http://127.0.0.1:{unused_tcp_port}")
    with pytest.raises(InputError, match="does not answer"):
        agentevolver.measure(1)
