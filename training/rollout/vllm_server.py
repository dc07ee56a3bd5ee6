"""Samples from vLLM servers that hold copies of the policy's weights.

Each message is one request with all ids of its episode, a seed of its own, and the episode's stop ids. Episodes go to
the servers in turn. Driver calls stay in the caller's thread; requests run in an event loop on a thread beside it.

**Weights.** ``load_weights`` gives every server the policy's weights under a name that no other version ever had. A
message counts only if every one of its tokens names that version (an adapter's is the name of the model that is asked).
After each load one token is compared with the trainer's forward pass: that catches what a version cannot, such as an
output layer that was not renewed.

**Faults.** A message that fails is sampled again, from the same ids and seed, a few times. A server that does not
recover ends the round by EngineFailure. All of this is our choice. Import this module late: it needs torch.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import httpx

from environments.base import InputError
from environments.command import say, writing
from memory.files import whole_folder
from memory.jsonl import derive_seed
from training.rollout.policy import Policy
from training.rollout.sampling import EngineFailure, EngineFigures, EpisodeDriver, Sampled, Sampler, TokenPrompt
from training.rollout.vllm_client import MessageRequest, ServerFault, VllmServer
from training.settings import SamplingSettings

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")

ATTEMPTS = 4
"""Times that a message is asked for (ours)."""

PAUSE = 0.2
"""Seconds before a failed message is sampled again, doubled each time (ours)."""

PROMPT_LENGTH = 16
"""Ids of the prompt by which a server is compared with the trainer (ours)."""

PROMPT_TEMPERATURE = 0.7
"""Temperature of the token that it answers (ours).

Not 0: likely ids hardly move with the weights. Not 1: an engine may report log-probabilities before the temperature.
"""


def fixed_prompt(vocabulary: int) -> list[int]:
    """Return the ids of the prompt by which a server is compared with the trainer."""
    return [(7919 * place + 31) % vocabulary for place in range(PROMPT_LENGTH)]


@dataclass(eq=False)
class PolicyWeights:
    """The weights of ``policy`` as they are now, while it is trained.

    Args:
        folder: where versions are written, one folder each; nothing else is in it.
        adapter: the policy's layers hold a LoRA adapter, which alone is written.
        autocast: matrix products are computed in bfloat16, as the trainer does.
        stored: a folder that holds these weights already and is never removed; nothing is written then.
        gather: with weights that are divided among the processes of a round (FSDP2): returns the whole tensors
            of a model by name in the first process, and nothing in the others.
    """

    policy: Policy
    folder: Path
    adapter: bool
    autocast: bool = False
    stored: Path | None = None
    gather: Callable[[torch.nn.Module], dict[str, torch.Tensor]] | None = None
    expected: list[float] = field(default_factory=list, init=False)
    """Of each id after ``fixed_prompt``, its log-probability in nats by the weights that ``prepare`` found."""
    _whole: dict[str, torch.Tensor] | None = field(default=None, init=False)

    @property
    def vocabulary(self) -> int:
        """Return the number of ids that the policy knows."""
        return int(self.policy.model.config.get_text_config().vocab_size)

    def prepare(self) -> None:
        """Compute ``expected`` and gather the weights: with divided ones it takes all processes of a round."""
        import torch

        model = self.policy.model
        ids = torch.tensor([fixed_prompt(self.vocabulary)], device=model.device)
        was_training = model.training
        model.train(False)
        try:
            with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=self.autocast):
                logits = model(input_ids=ids).logits[0, -1].float()
        finally:
            model.train(was_training)
        self.expected = torch.log_softmax(logits / PROMPT_TEMPERATURE, dim=-1).tolist()
        if self.gather is not None:
            self._whole = self.gather(model)

    def write(self, name: str) -> Path:
        """Write the weights as the folder ``name`` and return its absolute path. Raises StorageError."""
        if self.stored is not None:
            return self.stored.resolve()
        folder = (self.folder / name).resolve()
        with writing(folder), whole_folder(folder) as unfinished:
            if self.adapter:
                self._write_adapter(unfinished)
            else:
                self.policy.model.save_pretrained(unfinished, state_dict=self._whole)
        self._whole = None
        return folder

    def _write_adapter(self, folder: Path) -> None:
        # peft puts its layers into the policy's model in place: the model has its configuration, and the state of its
        # layers under the names that the wrapped model's have behind base_model.model.
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        model = self.policy.model
        config = model.peft_config["default"]
        state = get_peft_model_state_dict(model, self._whole, adapter_name="default")
        save_file(
            {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in state.items()},
            folder / "adapter_model.safetensors",
            metadata={"format": "pt"},
        )
        trained, config.inference_mode = config.inference_mode, True
        config.save_pretrained(folder)
        config.inference_mode = trained

    def discard(self, kept: Collection[str]) -> None:
        """Remove every version but ``kept``, also those that a killed trainer left behind."""
        if self.stored is not None or not self.folder.is_dir():
            return
        for other in self.folder.iterdir():
            if other.name not in kept and other.is_dir() and not other.is_symlink():
                shutil.rmtree(other, ignore_errors=True)


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
    the network, for tests. ``by_first``: see ``training.grpo.ranks``.
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

        async def load_all() -> Sequence[_Loaded]:
            return await asyncio.gather(*(self._load(server, want, path) for server in self._servers))

        loaded = self._wait(load_all())
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
