"""Samples from vLLM servers that hold copies of the policy's weights.

Each message is one request with all ids of its episode, a seed of its own, and the episode's stop ids. Episodes go to
the servers in turn. Driver calls stay in the caller's thread; requests run in an event loop on a thread beside it.

**Weights.** ``load_weights`` gives every server the policy's weights under a name that no other version ever had. A
message counts only if every one of its tokens names that version (an adapter's is the name of the model that is asked).
After each load one token is compared with the trainer's forward pass: that catches what a version cannot, such as an
output layer that was not renewed.

**Faults.** A message that fails is sampled again, from the same ids and seed, a few times. A server that does not
recover ends the round by EngineFailure; the round goes on with ``--resume``. All of this is our choice. Import this
module late: it needs torch.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import httpx

from environments.base import InputError
from environments.command import say
from memory.jsonl import derive_seed
from training.rollout.sampling import EngineFailure, EngineFigures, EpisodeDriver, Sampled, Sampler, TokenPrompt
from training.rollout.settings import SamplingSettings
from training.rollout.vllm_client import MessageRequest, ServerFault, VllmServer
from training.rollout.vllm_weights import PROMPT_TEMPERATURE, PolicyWeights, fixed_prompt

Result = TypeVar("Result")

ATTEMPTS = 4
"""Times that a message is asked for (ours)."""

PAUSE = 0.2
"""Seconds before a failed message is sampled again, doubled each time (ours)."""


class _Loaded(NamedTuple):
    """What a server is asked for: its ``model``, and the ``version`` that every token has to name."""

    model: str
    version: str


@dataclass(slots=True)
class _Conversation:
    """One episode: its driver, its server, and all ids that it has so far."""

    driver: EpisodeDriver
    server: int
    ids: list[int]
    max_new_tokens: int = 0
    messages: int = 0

    def observe(self) -> bool:
        """Append the driver's next prompt; return False when the episode is over."""
        prompt: TokenPrompt | None = self.driver.observe()
        if prompt is None:
            return False
        if not prompt.ids or prompt.max_new_tokens < 1:
            raise ValueError("a prompt needs at least one id and room for one sampled token")
        self.ids += prompt.ids
        self.max_new_tokens = prompt.max_new_tokens
        return True

    def request(self, temperature: float) -> MessageRequest:
        """Return the request for the next message."""
        return MessageRequest(
            token_ids=list(self.ids),
            max_tokens=self.max_new_tokens,
            temperature=temperature,
            seed=derive_seed(self.driver.seed, "message", self.messages),
            stop_ids=tuple(sorted(self.driver.stop_ids)),
            key=f"{self.driver.seed:x}-{self.messages}",
        )

    def take(self, message: Sampled) -> bool:
        """Hand the message to the driver; return False when it ended the episode."""
        self.ids += message.ids
        self.messages += 1
        self.driver.act(message)
        return self.observe()


class VllmServers(Sampler):
    """Samples from the servers that ``settings`` name, with the weights of ``weights``.

    ``tolerance``: nats by which a server's log-probability may differ from the trainer's. ``transport``: in place of
    the network, for tests. ``by_first``: of several processes that train together, calls a function in the first one
    alone, and returns its result in all.
    """

    def __init__(
        self,
        settings: SamplingSettings,
        weights: PolicyWeights,
        tolerance: float,
        transport: httpx.AsyncBaseTransport | None = None,
        by_first: Callable[[Callable[[], Any]], Any] = lambda act: act(),
    ) -> None:
        self._by_first = by_first
        self._weights = weights
        self._tolerance = tolerance
        self._session = secrets.token_hex(4)
        self._loads = 0
        self._adapter: str | None = None
        self._loaded: Sequence[_Loaded] = ()
        self._figures = EngineFigures()
        self._resampled = 0
        self._gap = 0.0
        self._servers = [
            VllmServer(url, settings.request_timeout, settings.concurrency, transport) for url in settings.addresses
        ]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm requests", daemon=True)
        self._thread.start()

    def run(self, drivers: Sequence[EpisodeDriver], *, temperature: float, concurrency: int) -> None:
        """Drive every episode to its end (see Sampler). Raises EngineFailure for a server that fails."""
        if temperature < 0:
            raise InputError(f"sampling temperature is {temperature:g}: make it 0 (greedy) or more")
        if not self._loaded:
            raise EngineFailure("the vLLM servers were not loaded with the policy's weights: call load_weights first")
        began, messages, tokens = time.perf_counter(), 0, 0
        waiting = enumerate(drivers)
        ended: queue.SimpleQueue[tuple[_Conversation, Future[Sampled]]] = queue.SimpleQueue()
        open_now: dict[int, Future[Sampled]] = {}

        def ask(conversation: _Conversation) -> None:
            future = self._start(self._message(conversation.server, conversation.request(temperature)))
            open_now[id(conversation)] = future
            future.add_done_callback(lambda done: ended.put((conversation, done)))

        try:
            while True:
                while len(open_now) < concurrency and (coming := next(waiting, None)) is not None:
                    conversation = _Conversation(coming[1], coming[0] % len(self._servers), [])
                    if conversation.observe():
                        ask(conversation)
                if not open_now:
                    return
                conversation, future = ended.get()
                del open_now[id(conversation)]
                message = future.result()
                messages, tokens = messages + 1, tokens + len(message.ids)
                if conversation.take(message):
                    ask(conversation)
        finally:
            for future in open_now.values():
                future.cancel()
            took = time.perf_counter() - began
            self._figures = self._figures.plus(EngineFigures(messages=messages, tokens=tokens, sampling=took))

    def load_weights(self, version: int) -> None:
        """Give the policy's weights to every server under a new name, and compare each with the trainer.

        Raises EngineFailure where one cannot be loaded, or answers unlike the trainer's forward pass.
        """
        began = time.perf_counter()
        self._weights.prepare()
        self._loaded = self._by_first(lambda: self._publish(version))
        self._figures = self._figures.plus(EngineFigures(load=time.perf_counter() - began))

    def _publish(self, version: int) -> Sequence[_Loaded]:
        self._loads += 1
        want = f"{self._session}-{self._loads}-step-{version}"
        path = str(self._weights.write(want))
        loaded = self._wait(self._load_all(want, path))
        self._adapter = want if self._weights.adapter else None
        self._weights.discard({want})
        return loaded

    def figures(self) -> EngineFigures:
        return self._figures.plus(EngineFigures(resampled=self._resampled, gap=self._gap))

    def close(self) -> None:
        """Unload the last adapter, and close the connections and their thread."""
        if self._loop.is_closed():
            return
        try:
            self._wait(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of ``work``; an interrupt in the caller's thread cancels it."""
        future = self._start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _message(self, place: int, request: MessageRequest) -> Sampled:
        """Sample one message, again where that may help."""
        server, loaded = self._servers[place], self._loaded[place]
        attempt = 0
        while True:
            try:
                return await server.generate(request, loaded.model, self._weights.vocabulary, loaded.version)
            except ServerFault as fault:
                attempt += 1
                if fault.lasts or attempt == ATTEMPTS:
                    raise EngineFailure(_failed(server, fault)) from None
            self._resampled += 1
            await asyncio.sleep(PAUSE * 2 ** (attempt - 1))

    async def _load_all(self, want: str, path: str) -> Sequence[_Loaded]:
        return await asyncio.gather(*(self._load(server, want, path) for server in self._servers))

    async def _load(self, server: VllmServer, want: str, path: str) -> _Loaded:
        """Load a server with the weights in ``path``, and compare its answer with the trainer's."""
        try:
            if self._weights.adapter:
                await server.load_adapter(want, path)
                if self._adapter is not None:
                    await server.unload_adapter(self._adapter)
                loaded = _Loaded(want, await server.weight_version())
            else:
                await server.load_folder(path, want)
                loaded = _Loaded((await server.own_model()).id, want)
            vocabulary = self._weights.vocabulary
            request = MessageRequest(fixed_prompt(vocabulary), 1, PROMPT_TEMPERATURE, 0, (), f"check-{want}")
            message = await server.generate(request, loaded.model, vocabulary, loaded.version)
        except ServerFault as fault:
            raise EngineFailure(_failed(server, fault)) from None
        gap = abs(message.logprobs[0] - self._weights.expected[message.ids[0]])
        if not gap <= self._tolerance:
            raise EngineFailure(
                f"the vLLM server {server.url} was loaded with {want} and answers as other weights would: its "
                f"log-probabilities differ from the trainer's by {gap:.3g} nats, allowed are {self._tolerance:g}; see "
                "how it loads weights (--worker-extension-cls, --logprobs-mode processed_logprobs, --dtype), and start "
                "it again where another run has loaded it"
            )
        self._gap = max(self._gap, gap)
        return loaded

    async def _close(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        for server in self._servers:
            if self._adapter is not None:
                try:
                    await server.unload_adapter(self._adapter)
                except ServerFault as fault:
                    say(f"warning: the vLLM server {server.url} keeps the adapter {self._adapter}: {fault}")
            await server.close()


def _failed(server: VllmServer, fault: ServerFault) -> str:
    return f"the vLLM server {server.url} failed: {fault}; see its log, start it again or remove it, and --resume"
