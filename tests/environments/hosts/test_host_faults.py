"""What goes wrong between a host and its clients: an episode is masked, with its cause, and nothing is made up."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import httpx
import pytest
from support import ROOT
from support.environment_host import DEPOT, hosted, serving

from environments.base import (
    EnvironmentDefect,
    EnvironmentFault,
    InputError,
    MalformedCall,
    ObservationStatus,
    TaskSpec,
    ToolCall,
    recorded,
)
from environments.example import depot
from environments.hosts import messages, pool, server
from environments.hosts.messages import TOKEN, Act, FailureKind, HostRefusal, Opening
from environments.settings import EnvironmentSettings

pytestmark = pytest.mark.slow

LOOK = ToolCall(name="list_parcels")
GATE = ToolCall(name="open_gate")
SECRET = "a token of the tests 0123456789"


def a_task() -> TaskSpec:
    start = depot(4).starts()[0]
    return TaskSpec(
        environment="depot",
        split="train",
        classes=start.classes,
        turns=("Open the gate.", "Look."),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=((GATE,), (LOOK,)),
    )


class Watched:
    """The depot with its steps counted, and something done before each."""

    name = "depot"

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._inside = depot(4)
        self.tools, self.starts = self._inside.tools, self._inside.starts
        self.before = before
        self.steps = 0
        self.closed = 0

    def open(self, task: TaskSpec):
        watched, episode = self, self._inside.open(task)
        step, close = episode.step, episode.close

        def stepped(action):
            watched.steps += 1
            watched.before()
            return step(action)

        def ended() -> None:
            watched.closed += 1
            close()

        episode.step, episode.close = stepped, ended
        return episode


def raises(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@contextmanager
def between(url: str, change: Callable[[bytes, int], bytes | None]) -> Iterator[str]:
    """A proxy in front of a host: ``change`` gets each reply and its number; None cuts the connection instead."""
    host, port = url.removeprefix("http://").split(":")
    listening = socket.create_server(("127.0.0.1", 0))
    replies = iter(range(10**6))

    def serve(client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection((host, int(port))) as behind:
            while request := _whole(client):
                behind.sendall(request)
                reply = change(_whole(behind), next(replies))
                if reply is None:
                    return
                client.sendall(reply)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()


def _whole(connection: socket.socket) -> bytes:
    """A whole HTTP message with a length, or nothing."""
    read = b""
    while b"\r\n\r\n" not in read:
        part = connection.recv(65536)
        if not part:
            return b""
        read += part
    head, _, body = read.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while len(body) < (int(lengths[0]) if lengths else 0):
        part = connection.recv(65536)
        body, read = body + part, read + part
    return read


def replied(plain: object) -> bytes:
    body = json.dumps(plain).encode() if not isinstance(plain, bytes) else plain
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


# One request, executed once


@pytest.mark.parametrize("cut", range(1, 7))
def test_a_request_whose_reply_is_lost_is_sent_again_and_executed_once(cut: int) -> None:
    """Whichever reply is lost: of health, opening, start, two steps, the turn's end, the outcome."""
    watched = Watched()
    with (
        serving(environment=watched) as host,
        between(host.url, lambda reply, number: None if number == cut else reply) as url,
    ):
        episode = hosted(url).open(a_task())
        episode.start()
        assert episode.step(GATE).status == "ok"
        looked = episode.step(LOOK)
        assert episode.end_turn().index == 1
        outcome = episode.outcome()
        episode.close()
    assert watched.steps == 2
    with closing(depot(4).open(a_task())) as local:
        local.start()
        local.step(GATE)
        assert local.step(LOOK) == looked
        local.end_turn()
        assert local.outcome() == outcome


def opened(host: server.HostServer, name: str = "0" * 32) -> str:
    held = host.episodes
    answer = held.open(Opening(id=name, fingerprint=held.identity.fingerprint, task=a_task()))
    assert answer.status == 200, answer.body
    return name


def refused(act: Callable[[], object]) -> FailureKind:
    with pytest.raises(HostRefusal) as refusal:
        act()
    return refusal.value.failure.kind


def test_a_repeated_act_gets_the_recorded_answer_and_any_other_number_is_refused() -> None:
    watched = Watched()
    with serving(environment=watched) as host:
        held, name = host.episodes, opened(host)
        assert opened(host) == name, "opening it again changes nothing"
        assert held.health().opened == 1
        other = Opening(id=name, fingerprint=held.identity.fingerprint, task=a_task(), recorded=True)
        assert refused(lambda: held.open(other)) is FailureKind.NUMBER
        held.act(name, Act(number=0, does="start"))
        step = Act(number=1, does="step", action=GATE)
        first = held.act(name, step)
        assert held.act(name, step) == first
        assert watched.steps == 1
        assert refused(lambda: held.act(name, Act(number=1, does="step", action=LOOK))) is FailureKind.NUMBER
        assert refused(lambda: held.act(name, Act(number=0, does="start"))) is FailureKind.NUMBER
        assert refused(lambda: held.act(name, Act(number=3, does="step", action=LOOK))) is FailureKind.NUMBER
        assert watched.steps == 1
        held.release(name)
        held.release(name)
        assert refused(lambda: held.act(name, step)) is FailureKind.EPISODE
        assert refused(lambda: held.outcome("f" * 32)) is FailureKind.EPISODE
    assert watched.closed == 1


def test_a_repeated_act_waits_for_the_first_one() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def before() -> None:
        entered.set()
        assert go_on.wait(20)

    watched = Watched(before)
    with serving(environment=watched) as host:
        held, name = host.episodes, opened(host)
        held.act(name, Act(number=0, does="start"))
        answers = []
        both = [
            threading.Thread(target=lambda: answers.append(held.act(name, Act(number=1, does="step", action=GATE))))
            for _ in range(2)
        ]
        for one in both:
            one.start()
        assert entered.wait(20)
        go_on.set()
        for one in both:
            one.join(20)
        assert len(answers) == 2
        assert answers[0] == answers[1]
        assert watched.steps == 1


def test_the_cache_of_an_environment_is_used_where_the_client_may_use_it() -> None:
    kept = Watched()

    class Recorded(Watched):
        def recorded(self) -> Watched:
            return kept

    watched = Recorded()
    with serving(environment=watched) as host:
        for environment in (hosted(host.url), recorded(hosted(host.url))):
            with closing(environment.open(a_task())) as episode:
                episode.start()
                episode.step(GATE)
    assert (watched.steps, kept.steps) == (1, 1)


# Errors of the environment


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (EnvironmentFault("the worker died"), EnvironmentFault, "http://.*: the worker died"),
        (EnvironmentDefect("borrow_book: KeyError"), EnvironmentDefect, "borrow_book: KeyError"),
        (KeyError("shelf"), EnvironmentDefect, r"KeyError: 'shelf' \(test_host_faults.py, line"),
        (RecursionError("a ring"), RecursionError, "a ring"),
        (RuntimeError("start first"), RuntimeError, "^start first$"),
        (InputError("no such task"), InputError, "^no such task$"),
    ],
)
def test_what_the_environment_raises_is_raised_here_and_no_step_is_made_up(error, kind, says) -> None:
    with serving(environment=Watched(raises(error))) as host, closing(hosted(host.url).open(a_task())) as episode:
        episode.start()
        with pytest.raises(kind, match=says) as raised:
            episode.step(GATE)
        assert type(raised.value) is kind


# Hosts that are gone


def test_episodes_of_a_host_that_is_gone_are_faults_and_others_go_on_elsewhere() -> None:
    with serving() as left:
        with serving() as gone:
            environment = hosted(gone.url, left.url)
            lost, kept = environment.open(a_task()), environment.open(a_task())
            assert [gone.episodes.health().open, left.episodes.health().open] == [1, 1], "both hosts are used"
            lost.start(), kept.start()
        for act in (lambda: lost.step(GATE), lost.outcome, lost.end_turn):
            with pytest.raises(EnvironmentFault, match=gone.url):
                act()
        lost.close()
        assert kept.step(GATE).status == "ok"
        again = environment.open(a_task())
        assert again.start().index == 0
        assert left.episodes.health().open == 2
        kept.close(), again.close()
        assert left.episodes.health().open == 0
    with pytest.raises(EnvironmentFault, match=f"no environment host can be reached: .*{left.url}"):
        environment.open(a_task())


def test_a_host_that_was_started_again_does_not_know_the_episode() -> None:
    with serving() as first:
        environment = hosted(first.url)
        episode = environment.open(a_task())
        episode.start()
        first.episodes.close()
        with pytest.raises(EnvironmentFault, match="there is no such episode: it was released after"):
            episode.step(GATE)
        episode.close()
        with closing(environment.open(a_task())) as another:
            assert another.start().index == 0


def test_a_host_that_comes_back_as_something_else_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "AVOIDED", 0.0)
    monkeypatch.setattr(pool, "FRESH", 0.0)
    with serving() as right, serving() as changed:
        environment = hosted(changed.url, right.url)
        environment.open(a_task()).close()
        changed.episodes.identity = changed.episodes.identity.model_copy(update={"source": "other"})
        for _ in range(3):
            environment.open(a_task()).close()
        assert changed.episodes.health().opened + right.episodes.health().opened == 4
        assert right.episodes.health().opened >= 3
        right.episodes.identity = right.episodes.identity.model_copy(update={"source": "other"})
        with pytest.raises(InputError, match=r"serves source .* instead of"):
            environment.open(a_task())


def test_a_step_that_does_not_return_ends_with_its_deadline_and_keeps_no_other_from_going_on() -> None:
    go_on = threading.Event()
    watched = Watched(lambda: go_on.wait(20))
    with serving(environment=watched) as host:
        environment = hosted(host.url, deadline=0.3)
        episode = environment.open(a_task())
        episode.start()
        began = time.monotonic()
        with pytest.raises(EnvironmentFault, match=r"did not answer /episodes/ID within 0.3 s"):
            episode.step(GATE)
        assert time.monotonic() - began < 10
        episode.close()
        host.episodes.release(next(iter(host.episodes._held)))
        assert watched.closed == 0, "it is still played"
        go_on.set()
        with closing(hosted(host.url).open(a_task())) as another:
            assert another.start().index == 0
        deadline = time.monotonic() + 20
        while watched.closed < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert watched.closed == 2, "the act closes the released episode at its end"


# Hosts that are full or idle


def test_an_idle_episode_is_released() -> None:
    watched = Watched()
    with serving(environment=watched, idle=0.2) as host:
        episode = hosted(host.url).open(a_task())
        episode.start()
        deadline = time.monotonic() + 20
        while host.episodes.health().open and time.monotonic() < deadline:
            time.sleep(0.02)
        assert watched.closed == 1
        with pytest.raises(EnvironmentFault, match=r"released after 0.2 s without a request"):
            episode.step(GATE)
        episode.close()


def test_a_host_that_ends_closes_what_is_open() -> None:
    watched = Watched()
    with serving(environment=watched) as host:
        hosted(host.url).open(a_task())
        assert watched.closed == 0
    assert watched.closed == 1


def test_a_full_host_says_when_to_ask_again_and_an_episode_waits_for_a_place(monkeypatch) -> None:
    monkeypatch.setattr(server, "RETRY_AFTER", b"0")
    with serving(capacity=2) as host:
        environment = hosted(host.url)
        assert (environment.at_once, environment.in_flight) == (2, 2)
        first, second = environment.open(a_task()), environment.open(a_task())
        held = host.episodes
        body = Opening(id="1" * 32, fingerprint=held.identity.fingerprint, task=a_task())
        answer = httpx.post(
            f"{host.url}/episodes", content=messages.written(body), headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "0")
        assert answer.json()["kind"] == "busy"
        monkeypatch.setattr(pool, "QUEUE", -1.0)
        with pytest.raises(EnvironmentFault, match=r"no environment host had a place .*2 episodes are open"):
            environment.open(a_task())
        monkeypatch.setattr(pool, "QUEUE", 20.0)
        threading.Timer(0.1, first.close).start()
        third = environment.open(a_task())
        assert third.start().index == 0
        second.close(), third.close()


# What hosts and clients refuse


def test_a_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(token=SECRET) as host:
        for given in (None, "another token 0123456789"):
            if given is not None:
                monkeypatch.setenv(TOKEN, given)
            with pytest.raises(InputError, match=f"{host.url}: .*token: set {TOKEN} to what the host was started with"):
                hosted(host.url).check()
        assert httpx.delete(f"{host.url}/episodes/{'0' * 32}").status_code == 401
        monkeypatch.setenv(TOKEN, SECRET)
        hosted(host.url).check()
        with closing(hosted(host.url).open(a_task())) as episode:
            assert episode.start().index == 0


@pytest.mark.parametrize(
    ("served", "says"),
    [
        ({"options": {"starts": 3}}, r'serves options {"starts": 3} instead of {"starts": 4}'),
        ({"name": "library_for_hosts:library"}, 'serves environment "library" instead of "depot"'),
    ],
)
def test_a_host_of_something_else_is_refused_before_the_run(served, says, tmp_path, monkeypatch) -> None:
    (tmp_path / "library_for_hosts.py").write_text(
        "from environments.python_class.environment import PythonEnvironment\n"
        "class Library:\n"
        "    'Books.'\n"
        "    def __init__(self): self.shelves = 0\n"
        "    def add_shelf(self) -> int:\n"
        "        'Add a shelf.'\n"
        "        self.shelves += 1\n"
        "        return self.shelves\n"
        "def library(starts=4) -> PythonEnvironment: return PythonEnvironment('library', Library, [{}])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chosen = EnvironmentSettings.model_validate({"name": DEPOT.name, "options": DEPOT.options} | served)
    with serving(chosen) as host:
        with pytest.raises(InputError) as refusal:
            hosted(host.url).check()
        assert says in str(refusal.value)
        with pytest.raises(InputError):
            hosted(host.url).at_once  # noqa: B018 - asks the hosts
        with pytest.raises(InputError):
            hosted(host.url).open(a_task())
        # Past the check too: each episode is opened with what the client plays.
        held = host.episodes
        assert refused(lambda: held.open(Opening(id="0" * 32, fingerprint="no", task=a_task()))) is FailureKind.IDENTITY


def test_other_code_has_another_identity(tmp_path, monkeypatch) -> None:
    module = tmp_path / "shop_of_two_versions.py"
    monkeypatch.syspath_prepend(tmp_path)
    identities = []
    for version in (1, 2):
        module.write_text(f"from environments.example import depot as shop\nVERSION = {version}\n")
        sys.modules.pop("shop_of_two_versions", None)
        chosen = EnvironmentSettings(name="shop_of_two_versions:shop")
        identities.append(messages.identity_of(depot(), chosen))
    assert identities[0].difference(identities[1]).startswith("source ")
    assert identities[0].fingerprint != identities[1].fingerprint


def test_a_url_that_nobody_serves_is_named(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(InputError, match=f"start {url} with `coevolve environment serve`"):
        hosted(url).check()
    with pytest.raises(EnvironmentFault, match="no environment host can be reached"):
        hosted(url).at_once  # noqa: B018 - asks the hosts


# Hostile messages


def deep(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def test_requests_that_are_not_of_the_protocol_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_REQUEST", 100_000)
    with serving() as host, httpx.Client(base_url=host.url) as client:
        name = opened(host)
        json_content = {"content-type": "application/json"}
        act = f"/episodes/{name}"
        step = b'{"number": 0, "does": "step", "action": {"name": "a", "arguments": {"b": %s}}}'
        cases = [
            (act, b"{", 400),
            (act, b'{"number": 0}', 400),
            (act, b'{"number": 0, "does": "fly"}', 400),
            (act, b'{"number": 0, "does": "start", "more": 1}', 400),
            (act, step % (b"[" * 40_000 + b"]" * 40_000), 400),
            (act, step % (b"[" * 300 + b"]" * 300), 400),
            (act, step % json.dumps("x" * 100_000).encode(), 413),
            ("/episodes", b'{"id": "../../etc/passwd"}', 400),
            ("/episodes/short", b"{}", 400),
            ("/nothing", b"{}", 400),
        ]
        for path, body, status in cases:
            answer = client.post(path, content=body, headers=json_content)
            assert answer.status_code == status, (path, body[:100], answer.text)
            assert answer.json()["detail"]
        assert client.post(act, content=b'{"number": 0, "does": "start"}').status_code == 400, "a web page's content"
        assert client.put(act, content=b"{}").status_code == 400
        assert client.get(f"{act}/state").status_code == 200, "the episode is as it was"
        names = client.post("/tools", content=b'{"names": ["open_gate"]}', headers=json_content)
        assert names.json()[0]["name"] == "open_gate"
        assert client.post("/tools", content=b'{"names": ["fly"]}', headers=json_content).status_code == 422
        assert len(client.post("/starts", content=b"{}", headers=json_content).json()) == 4


def test_arguments_that_no_record_holds_are_a_malformed_action() -> None:
    with serving() as host, closing(hosted(host.url).open(a_task())) as episode:
        episode.start()
        for levels, status in ((60, ObservationStatus.ERROR), (200, ObservationStatus.MALFORMED)):
            call = ToolCall(name="weigh_parcel", arguments={"label": deep(levels)})
            assert episode.step(call).status is status
        half = ToolCall(name="weigh_parcel", arguments={"label": "\ud800"})
        with closing(depot(4).open(a_task())) as local:
            local.start()
            assert episode.step(half) == local.step(half), "half a surrogate pair arrives as it is"
        assert episode.step(MalformedCall(text="x", reason="y")).status is ObservationStatus.MALFORMED
        assert episode.outcome().turns[0].malformed == 2


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (replied(b"[" * 9_000 + b"]" * 9_000), "not as a host"),
        (replied(b"<html>gateway</html>"), "not as a host"),
        (replied(b"\xff\xfe"), "not as a host"),
        (replied({"text": "ok"}), "its Observation cannot be read"),
        (replied({"text": "x" * 50_000, "status": "ok"}), "is longer than 20000 bytes"),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\n\r\nbad", "HTTP status 502, not as a host: bad"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n", "HTTP status 302"),
        (b"nonsense\r\n\r\n", "failed: "),
    ],
)
def test_a_reply_that_is_not_a_hosts_is_a_fault(reply: bytes, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_REPLY", 20_000)
    monkeypatch.setattr(pool, "PAUSE", 0.001)
    with serving() as host, between(host.url, lambda told, number: reply if number >= 3 else told) as url:
        episode = hosted(url).open(a_task())
        episode.start()
        with pytest.raises(EnvironmentFault, match=says):
            episode.step(GATE)
        episode.close()


def test_an_answer_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    from environments.hosts import episodes

    monkeypatch.setattr(episodes, "MAX_REPLY", 10)
    with (
        serving() as host,
        closing(hosted(host.url).open(a_task())) as episode,
        pytest.raises(EnvironmentFault, match="bytes, more than 10"),
    ):
        episode.start()


# Real processes


@pytest.mark.process
@pytest.mark.slow
def test_a_host_that_is_stopped_or_killed_in_the_middle_of_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "GREETING", 1.0)
    monkeypatch.setattr(pool, "FRESH", 0.0)
    command = [sys.executable, "-m", "graph.serve_environment", "serve", "--port", "0"]
    command += ["--environment", DEPOT.name, "--option", "starts=4", "--idle", "30"]
    environment = {**os.environ, TOKEN: SECRET}
    host = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    monkeypatch.setenv(TOKEN, SECRET)
    try:
        assert host.stdout is not None
        said = host.stdout.readline()
        url = said.split()[0]
        assert said == f"{url} serves depot, 64 episodes at a time\n"
        with serving(token=SECRET) as other:
            client = hosted(url, other.url, deadline=1.0)
            client.check()
            lost = client.open(a_task())
            lost.start()
            os.kill(host.pid, signal.SIGSTOP)
            with pytest.raises(EnvironmentFault, match=r"within 1 s"):
                lost.step(GATE)
            lost.close()
            with closing(client.open(a_task())) as episode:
                assert episode.start().index == 0
            os.kill(host.pid, signal.SIGCONT)
            alone = hosted(url, deadline=20.0)
            with closing(alone.open(a_task())) as episode:
                episode.start()
                os.kill(host.pid, signal.SIGKILL)
                host.wait(20)
                with pytest.raises(EnvironmentFault, match=f"{url}: /episodes/ID failed"):
                    episode.step(GATE)
            with pytest.raises(EnvironmentFault, match="no environment host can be reached"):
                alone.open(a_task())
    finally:
        host.kill()
        host.wait(20)
        assert host.stdout is not None
        host.stdout.close()
