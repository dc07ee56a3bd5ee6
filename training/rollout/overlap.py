"""Calls of many episodes in flight at a time, for an environment whose episodes are played on other machines.

A sampler drives episodes from one thread: it hands a message to each episode whose message has ended, and then asks
each for its answer. Here what the environment does between the two runs on a thread, and an episode is opened as soon
as a place is free, before the sampler asks for its prompt. Messages, answers and their order within an episode do not
depend on any of that, nor does what the sampler computes (ours).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from environments.base import Environment, in_flight

__all__ = ["CallsInFlight", "overlapping"]

Result = TypeVar("Result")


@contextmanager
def overlapping(environment: Environment, places: int) -> Iterator[CallsInFlight | None]:
    """Yield what runs the environment's calls, None for an environment of this process; end with all calls done."""
    threads = min(in_flight(environment), places)
    if threads <= 1:
        yield None
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="rollout") as pool:
        overlap = CallsInFlight(pool, places)
        try:
            yield overlap
        finally:
            overlap.stop()
    overlap.check()


class CallsInFlight:
    """Runs calls of episodes on the threads of ``pool``, with at most ``places`` episodes open at a time."""

    def __init__(self, pool: ThreadPoolExecutor, places: int) -> None:
        self._pool = pool
        self._free = places
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()
        self._closing: list[Future[None]] = []

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Run ``call`` on a thread."""
        return self._pool.submit(call)

    def open_in_order(self, openings: Sequence[Callable[[], Result]]) -> list[Future[Result]]:
        """Open episodes, each when a place is free for it: in the order in which a sampler opens them."""
        futures: list[Future[Result]] = [Future() for _ in openings]
        with self._lock:
            self._waiting.extend(zip(futures, openings, strict=True))
        self._advance()
        return futures

    def close(self, call: Callable[[], None]) -> None:
        """Run ``call``, which closes an episode, and give its place to the next one."""

        def closed() -> None:
            try:
                call()
            finally:
                with self._lock:
                    self._free += 1
                self._advance()

        self._closing.append(self._pool.submit(closed))

    def stop(self) -> None:
        """Open no further episode."""
        with self._lock:
            for future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()

    def check(self) -> None:
        """Raise what closing an episode raised."""
        for one in self._closing:
            one.result()

    def _advance(self) -> None:
        with self._lock:
            while self._free and self._waiting:
                self._free -= 1
                future, opening = self._waiting.popleft()
                future.set_running_or_notify_cancel()
                self._pool.submit(_resolve, future, opening)


def _resolve(future: Future[Result], call: Callable[[], Result]) -> None:
    """Give ``future`` what ``call`` returns or raises."""
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
        future.set_exception(error)
