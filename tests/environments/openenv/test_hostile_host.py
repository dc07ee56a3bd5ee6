"""An OpenEnv server is a stranger's: whatever it answers is a fault of its own, which ends no run."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from support.openenv_host import ANSWERS, TOOLS, CounterHost, errs, failed, floods, observation, tells
from support.openenv_host import task as asking

from environments.base import EnvironmentFault, Episode, InputError, ObservationStatus, TaskSpec, ToolCall
from environments.openenv import host as host_module
from environments.openenv.benchmark import BENCHMARK, OpenEnvEnvironment
from environments.registry import open_named

ADD = ToolCall(name="add_number", arguments={"number": 2})


@contextmanager
def opened(fake: CounterHost, **options: Any) -> Iterator[OpenEnvEnvironment]:
    environment = open_named("openenv", {"url": fake.url, "starts": 2, **options})
    assert isinstance(environment, OpenEnvEnvironment)
    yield environment


def task(environment: OpenEnvEnvironment, *calls: ToolCall) -> TaskSpec:
    return asking(environment, "Add 2.", *calls)


@contextmanager
def playing(environment: OpenEnvEnvironment, *calls: ToolCall) -> Iterator[Episode]:
    with closing(environment.open(task(environment, *calls))) as episode:
        episode.start()
        yield episode


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "STEP_SECONDS", 1.0)
    monkeypatch.setattr(host_module, "CONNECT_SECONDS", 1.0)


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_hostile_answer_is_a_fault_of_one_attempt(kind: str) -> None:
    with CounterHost(ANSWERS[kind], after=1) as fake, opened(fake) as environment:
        with closing(environment.open(task(environment, ADD))) as episode:
            episode.start()
            assert episode.step(ADD).status is ObservationStatus.OK, "the first answer is honest"
            began = time.monotonic()
            with pytest.raises(EnvironmentFault) as fault:
                episode.step(ADD)
            assert time.monotonic() - began < 5
        assert "\n" not in str(fault.value)
        assert "\x1b" not in str(fault.value)
        assert len(str(fault.value)) < 500
        fake.evil = None
        with closing(environment.open(task(environment, ADD))) as episode:
            episode.start()
            episode.step(ADD)
            assert episode.outcome().success, "the next attempt has a session of its own"


def test_answers_that_nobody_asked_for_are_a_fault() -> None:
    with CounterHost(floods) as fake, opened(fake) as environment, playing(environment) as episode:

        def step() -> None:
            time.sleep(0.2)
            episode.step(ADD)

        with pytest.raises(EnvironmentFault, match=r"without being asked|not state"):
            [step() for _ in range(2)]


def test_an_action_that_the_server_does_not_accept_is_the_agents_error() -> None:
    evil = errs("VALIDATION_ERROR")
    with CounterHost(evil) as fake, opened(fake) as environment, playing(environment) as episode:
        assert episode.step(ADD).status is ObservationStatus.ERROR


@pytest.mark.parametrize("kind", ["execution_error", "invalid_args", "tool_not_found"])
def test_an_error_that_a_tool_reports_is_the_agents(kind: str) -> None:
    with CounterHost(failed(kind)) as fake, opened(fake) as environment, playing(environment) as episode:
        assert episode.step(ADD).status is ObservationStatus.ERROR


NESTED: dict[str, Any] = {"type": "object", "properties": {}}
for _ in range(60):
    NESTED = {"type": "object", "properties": {"inner": NESTED}}


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([], "lists no tool"),
        ("all", "tools"),
        ([{"name": "x"}], "input_schema"),
        ([{**TOOLS[0], "name": "rm -rf /\n"}], "name"),
        ([{**TOOLS[0], "name": f"tool_{n}"} for n in range(300)], "256"),
        ([{**TOOLS[0], "input_schema": NESTED}], "levels"),
        ([{**TOOLS[0], "input_schema": {"$ref": "http://elsewhere/schema"}}], "outside itself"),
        ([{**TOOLS[0], "input_schema": {"type": "array"}}], "no object"),
        (
            [5, {"name": "x", "input_schema": "y"}],
            "tool 1 of its list is left out, .*; x is left out, its schema is no object",
        ),
    ],
)
def test_tools_that_cannot_be_used_are_refused_in_one_sentence(tools: Any, words: str) -> None:
    with CounterHost() as fake:
        fake.tools = tools
        with pytest.raises(InputError, match=words) as refusal, opened(fake):
            pass
        assert "\n" not in str(refusal.value)


def test_one_tool_that_cannot_be_used_is_left_out_alone() -> None:
    with CounterHost() as fake:
        fake.tools = [*fake.tools, 5, {**TOOLS[0], "name": "odd", "input_schema": {"type": "array"}}]
        with opened(fake) as environment, playing(environment) as episode:
            assert episode.step(ADD).status is not ObservationStatus.ERROR
            assert "left out   odd: its arguments are no object" in BENCHMARK.notes(environment)


@pytest.mark.parametrize(
    "reply", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"\x00" * 100, b"HTTP/1.1 101 Switching\r\n" * 5000]
)
def test_a_server_of_another_kind_is_refused_in_one_sentence(reply: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(InputError, match=r"environment\.options: the server .* cannot be reached"):
            open_named("openenv", {"url": url})


def test_a_server_without_a_state_that_can_be_compared_needs_the_users_word() -> None:
    with CounterHost(shows_state=False) as fake:
        with pytest.raises(InputError, match="set it to reward"), opened(fake):
            pass
        with opened(fake, compare="reward") as environment, playing(environment) as episode:
            assert episode.state() == '{"done": false, "reward": 0}'
    with CounterHost() as fake:
        fake.clock = True
        with pytest.raises(InputError, match="differs between two resets"), opened(fake):
            pass


def test_a_stranger_is_asked_for_nothing_that_the_user_did_not_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COEVOLVE_KEYS", raising=False)
    with pytest.raises(InputError, match="which you did not bind"):
        open_named("openenv", {"url": "http://192.0.2.1:8000"})
    monkeypatch.setenv("COEVOLVE_KEYS", "http://127.0.0.1:9=THE_TOKEN")
    monkeypatch.setenv("THE_TOKEN", "has spaces in it")
    with pytest.raises(InputError, match="THE_TOKEN holds no token") as refusal:
        open_named("openenv", {"url": "http://127.0.0.1:9"})
    assert "has spaces" not in str(refusal.value)


@pytest.mark.parametrize("room", [1, 2])
def test_a_server_with_room_for_few_sessions_plays_many_attempts(room: int) -> None:
    with CounterHost(room=room) as fake, opened(fake) as environment:
        episodes = [environment.open(task(environment, ADD, ADD)) for _ in range(5)]
        for episode in episodes:
            episode.start()
        for _ in range(2):
            for episode in episodes:
                episode.step(ADD)
        assert [episode.outcome().success for episode in episodes] == [True] * 5
        for episode in episodes:
            episode.close()
    assert fake.calls > 5 * 2 + 2, "sessions were taken away, and actions repeated"


def test_a_server_that_repeats_itself_differently_is_at_fault() -> None:
    with CounterHost(room=1) as fake, opened(fake) as environment, playing(environment) as first:
        first.step(ADD)
        with playing(environment) as other:
            other.step(ADD)
            other.step(ADD)
            fake.evil = tells(observation({"tool_name": "add_number", "result": "something else"}))
            with pytest.raises(EnvironmentFault, match="differently"):
                first.step(ADD)


def test_a_process_that_plays_nothing_leaves_the_server_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "IDLE_SECONDS", 0.3)
    with CounterHost(room=1) as fake, opened(fake) as first, playing(first) as episode:
        episode.step(ADD)
        episode.close()
        began = time.monotonic()
        with opened(fake) as second, playing(second) as other:
            other.step(ADD)
        assert time.monotonic() - began < 5


def test_many_threads_share_the_sessions() -> None:
    with CounterHost(room=2) as fake, opened(fake) as environment:
        solved: list[bool] = []

        def play() -> None:
            for _ in range(5):
                with closing(environment.open(task(environment, ADD))) as episode:
                    episode.start()
                    episode.step(ADD)
                    solved.append(episode.outcome().success)

        threads = [threading.Thread(target=play) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert solved == [True] * 30


def test_a_state_that_the_server_refuses_to_show_is_a_fault() -> None:
    with CounterHost() as fake, opened(fake) as environment, playing(environment) as episode:
        fake.answers["state"] = {"type": "error", "data": {"message": "no", "code": "VALIDATION_ERROR"}}
        with pytest.raises(EnvironmentFault, match="does not show its state"):
            episode.step(ADD)
