"""Samples from vLLM servers that hold copies of the policy's weights.

Each message is one request with all ids of its episode, a seed of its own, and the episode's stop ids; prefix caching
makes the repeated ids cheap. A group's episodes go to one server. Driver calls stay in the caller's thread, one after
the other; requests run in the event loop of a thread beside it.

**Weights.** ``load_weights`` gives every server the policy's weights under a name that no other version ever had:
through a folder, as an adapter, or from GPU to GPU. A message counts only if every one of its tokens names that version
(an adapter's is the name of the model that is asked). After each load the canary compares what the server says of fixed
prompts with the trainer's forward pass: it catches what a version cannot, such as an output layer that was not renewed.

**Faults.** A server that cannot be reached, does not answer in time or answers nonsense leaves the pool until the next
load; its messages are sampled again by others, from the same ids and seeds. One with other weights (restarted, or
loaded by somebody else) is loaded again, once. With no server left, or a canary beyond its tolerance, EngineFailure
ends the round with the servers and their last causes. All of this is our choice. Import this module late: it needs
torch.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import httpx

from environments.base import InputError
from training.rollout.sampling import EngineFailure, EngineFigures, EpisodeDriver, Sampled, Sampler
from training.rollout.settings import SamplingSettings
from training.rollout.vllm_pool import EnginePool, ServerState
from training.rollout.vllm_requests import Conversation
from training.rollout.vllm_weights import PolicyWeights

__all__ = ["VllmServers"]

Result = TypeVar("Result")


class _Loaded(NamedTuple):
    """The weights that one process loaded."""

    want: str
    servers: tuple[ServerState, ...]


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm requests", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin ``work`` and return its result to come."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of ``work``; an interrupt in the caller's thread cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class VllmServers(Sampler):
    """Samples from the servers that ``settings`` name, with the weights of ``weights``.

    Args:
        settings: with engine vllm_server.
        weights: what the servers are loaded with.
        tolerance: of the canary, in nats.
        transport: in place of the network, for tests.
        first: of several processes that train together, this one loads the servers.
        by_first: calls a function in that process alone, and returns its result in all.
    """

    def __init__(
        self,
        settings: SamplingSettings,
        weights: PolicyWeights,
        tolerance: float,
        transport: httpx.AsyncBaseTransport | None = None,
        first: bool = True,
        by_first: Callable[[Callable[[], Any]], Any] = lambda act: act(),
    ) -> None:
        self._first = first
        self._by_first = by_first
        self._weights = weights
        self._session = secrets.token_hex(4)
        self._loads = 0
        self._closed = False
        self._counts = EngineFigures()
        self._counting = threading.Lock()
        self._since: float | None = None
        self._pool = EnginePool(settings, weights, tolerance, self._add, first=first, transport=transport)
        self._loop = _Loop()

    def run(self, drivers: Sequence[EpisodeDriver], *, temperature: float, concurrency: int) -> None:
        """Drive every episode to its end (see Sampler). Raises EngineFailure when no server is left."""
        if temperature < 0:
            raise InputError(f"sampling temperature is {temperature:g}: make it 0 (greedy) or more")
        if self._pool.want is None:
            raise EngineFailure("the vLLM servers were not loaded with the policy's weights: call load_weights first")
        began = self._waited()
        waiting = iter(drivers)
        ended: queue.SimpleQueue[tuple[Conversation, Future[Sampled]]] = queue.SimpleQueue()
        open_now: dict[int, Future[Sampled]] = {}

        def ask(conversation: Conversation) -> None:
            future = self._loop.start(self._pool.message(conversation.request(temperature)))
            open_now[id(conversation)] = future
            future.add_done_callback(lambda done: ended.put((conversation, done)))

        try:
            while True:
                while len(open_now) < concurrency and (driver := next(waiting, None)) is not None:
                    conversation = Conversation.open(driver)
                    if conversation is not None:
                        ask(conversation)
                if not open_now:
                    return
                conversation, future = ended.get()
                del open_now[id(conversation)]
                if conversation.take(future.result()):
                    ask(conversation)
        finally:
            for future in open_now.values():
                future.cancel()
            self._pool.forget_groups()
            self._add(sampling=time.perf_counter() - began)
            self._since = time.perf_counter()

    def load_weights(self, version: int) -> None:
        """Give the policy's weights to every server under a new name, and check each with the canary.

        Raises EngineFailure where none can be loaded, and where one answers unlike the trainer's forward pass.
        """
        began = self._waited()
        self._weights.prepare()
        loaded: _Loaded = self._by_first(lambda: self._publish(version))
        if not self._first:
            self._pool.adopt(loaded.want, loaded.servers)
        self._add(load=time.perf_counter() - began)
        self._since = time.perf_counter()

    def _publish(self, version: int) -> _Loaded:
        """Write the weights and load every server with them."""
        self._loads += 1
        want = f"{self._session}-{self._loads}-step-{version}"
        path = str(self._weights.write(want))
        self._loop.wait(self._pool.load(want, path))
        self._add(canary=max(self._pool.canary_seconds, default=0.0))  # servers are compared at the same time
        self._weights.discard(self._pool.held)
        return _Loaded(want, self._pool.states())

    def figures(self) -> EngineFigures:
        """Return what the servers did so far."""
        return self._counts

    def close(self) -> None:
        """Unload the last adapter, and close the connections and their thread."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.wait(self._pool.close())
        finally:
            self._loop.close()

    def _waited(self) -> float:
        """Count the time in which the servers waited for the trainer; return the time now."""
        now = time.perf_counter()
        if self._since is not None:
            self._add(idle=now - self._since)
        self._since = None
        return now

    def _add(self, **counts: float) -> None:
        with self._counting:
            self._counts = self._counts.plus(EngineFigures.model_validate(counts))
