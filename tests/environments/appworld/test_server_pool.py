"""Servers are used by one episode at a time, and nobody waits for one for ever."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.scripted_server import said, scripted

from environments.appworld import servers as server_pool
from environments.appworld.servers import ServerPool
from environments.base import EnvironmentFault, InputError

pytestmark = pytest.mark.slow

HOLDER = """
import sys
from environments.appworld.servers import ServerPool
lease = ServerPool(sys.argv[1:]).acquire(10, 10)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def urls() -> Iterator[tuple[str, str]]:
    with scripted() as one, scripted() as other:
        yield one, other


def test_every_server_is_used_once_and_again_when_it_was_released(urls: tuple[str, str]) -> None:
    pool = ServerPool(urls)
    assert len(pool) == 2
    leases = [pool.acquire(5, 5), pool.acquire(5, 5)]
    assert {lease.server.url for lease in leases} == {*urls}
    leases[0].release()
    leases[0].release()
    again = pool.acquire(5, 5)
    assert again.server.url == leases[0].server.url
    for lease in (again, leases[1]):
        lease.release()


def test_who_holds_all_of_them_does_not_wait_for_itself(urls: tuple[str, str]) -> None:
    pool = ServerPool(urls)
    leases = [pool.acquire(5, 5) for _ in urls]
    began = time.monotonic()
    with pytest.raises(
        InputError, match=r"environment\.options\.servers names 2, and more AppWorld episodes than that"
    ):
        pool.acquire(60, 60)
    with pytest.raises(InputError):  # another pool of this process knows it too
        ServerPool(urls[:1]).acquire(60, 60)
    assert time.monotonic() - began < 5
    for lease in leases:
        lease.release()


def test_a_thread_waits_for_another_until_the_deadline(urls: tuple[str, str]) -> None:
    pool = ServerPool(urls[:1])
    lease = pool.acquire(5, 5)
    readable: list[str] = []

    def wait() -> None:
        with pytest.raises(EnvironmentFault) as caught:
            pool.acquire(0.2, 0.2)
        readable.append(str(caught.value))
        later = pool.acquire(20, 20)
        readable.append(later.server.url)
        later.release()

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.6)
    lease.release()
    waiting.join(30)
    assert readable == [f"no server of AppWorld was free within 0.2 s: {urls[0]} plays another episode", urls[0]]


def test_who_waits_for_an_episode_is_more_patient_than_who_waits_for_an_answer(urls: tuple[str, str]) -> None:
    pool = ServerPool(urls[:1])
    lease = pool.acquire(5, 5)
    with ThreadPoolExecutor(1) as thread:
        later = thread.submit(pool.acquire, 1.0, 30)
        time.sleep(2.0)
        lease.release()
        later.result(30).release()


@pytest.mark.process
def test_another_process_keeps_its_server_until_it_ends(urls: tuple[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, urls[0]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        pool = ServerPool(urls[:1])
        with pytest.raises(EnvironmentFault, match="plays another episode"):
            pool.acquire(0.2, 0.2)
        holder.kill()
    pool.acquire(10, 10).release()


def test_a_server_that_fails_is_left_out_while_another_answers(urls: tuple[str, str]) -> None:
    with scripted() as ended:
        pool = ServerPool([ended, urls[0]])
    for _ in range(3):
        lease = pool.acquire(5, 5)
        assert lease.server.url == urls[0]
        lease.release()
    held = pool.acquire(5, 5)
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match="plays another episode"):
        pool.acquire(0.2, 60)  # the one that is left is this thread's own
    assert time.monotonic() - began < 10
    held.release()
    with scripted({"/": said("starting", 503)}) as failing, pytest.raises(EnvironmentFault, match="503: starting"):
        ServerPool([failing]).acquire(2, 2)
    with scripted() as ending:
        pool = ServerPool([ending])
    for _ in range(2):  # also while it is left out
        with pytest.raises(EnvironmentFault, match=f"free within 0.1 s: AppWorld's server {ending}: / failed"):
            pool.acquire(0.1, 0.1)


def test_what_is_no_server_is_refused_at_once_and_one_at_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted({"/openapi.json": said({"paths": {}})}) as url, pytest.raises(InputError) as caught:
        ServerPool([url])
    assert str(caught.value).startswith(f"environment.options.servers: AppWorld's server {url}: it is not a server")
    with pytest.raises(InputError, match="start it with `appworld serve environment`, or leave it out"):
        ServerPool([url])
    monkeypatch.setattr(server_pool, "_GREETING", 0.2)
    with scripted({"/openapi.json": lambda _: time.sleep(1)}) as url:
        ServerPool([url]).acquire(5, 5).release()
