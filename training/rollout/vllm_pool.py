"""The vLLM servers of one sampler: which of them are there, what they hold, and what a fault of one means.

Everything here runs in one event loop. A server is in the pool while it has the wanted weights and answers; a message
is sampled by one that is. See ``training.rollout.vllm_server`` for the rules.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from environments.terminal import say
from training.rollout.sampling import EngineFailure, Sampled
from training.rollout.settings import SamplingSettings
from training.rollout.vllm_client import Refused, ServerFault, ServerTimeout, VllmServer
from training.rollout.vllm_requests import (
    Aborted,
    BadAnswer,
    MessageRequest,
    Scores,
    WrongWeights,
    canaries,
    check,
    largest_difference,
)
from training.rollout.vllm_weights import PolicyWeights

__all__ = ["EnginePool", "ServerState"]

FAULTS_IN_A_ROW = 3
"""Failed requests after which a server that says it is healthy leaves the pool (ours)."""

BAD_ANSWERS = 2
"""Answers that cannot be, after which a server leaves the pool (ours)."""

RELOADS = 1
"""Times that a server with other weights is loaded again before the next step (ours)."""

SINCE_START = "default"
"""The version of the weights that a server was started with."""

PAUSE = 0.2
"""Seconds before a failed message is sampled again, doubled each time (ours)."""


ServerState = tuple[str | None, str | None, str, str | None]
"""Of a server: why it is out, the version that it holds, its model, and the version of the weights below an adapter."""


@dataclass(eq=False)
class _Member:
    """A server in the pool, or out of it for the reason ``out``."""

    server: VllmServer
    slots: asyncio.Semaphore
    out: str | None = None
    holds: str | None = None
    loads: int = 0
    base: str = ""
    base_version: str | None = None
    faults: int = 0
    bad: int = 0
    reloads: int = 0
    compared: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    in_flight: set[asyncio.Task[Any]] = field(default_factory=set)

    def leave(self, cause: object) -> None:
        """Take the server out of the pool; what it is asked at the moment is given up."""
        self.compared = False
        if self.out is None:
            self.out = str(cause)
            _warn(f"the vLLM server {self.server.url} is not asked again in this step: {cause}")
        for task in self.in_flight:
            task.cancel()


class EnginePool:
    """The servers that ``settings`` name.

    Args:
        settings: with engine vllm_server.
        weights: what the servers are loaded with.
        tolerance: of the canary, in nats.
        count: adds to the engine's figures.
        first: this process loads servers; another one does where it is False.
        transport: in place of the network, for tests.
    """

    def __init__(
        self,
        settings: SamplingSettings,
        weights: PolicyWeights,
        tolerance: float,
        count: Callable[..., None],
        *,
        first: bool,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        addresses = settings.addresses
        self.way = settings.way(weights.adapter)
        self.want: str | None = None
        self.attempts = 4 * len(addresses) + 4
        self.canary_seconds: list[float] = []
        self._first = first
        self._weights = weights
        self._tolerance = tolerance
        self._add = count
        self._path = ""
        self._scored: dict[tuple[float, tuple[int, ...]], Scores] = {}
        self._groups: dict[str, _Member] = {}
        self._members = [
            _Member(
                VllmServer(
                    url,
                    request_timeout=settings.request_timeout,
                    load_timeout=settings.load_timeout,
                    # Requests that steer the server have to get through while all slots wait.
                    connections=settings.concurrency + 4,
                    transport=transport,
                ),
                asyncio.Semaphore(settings.concurrency),
            )
            for url in addresses
        ]

    @property
    def held(self) -> set[str]:
        """Return the versions that servers hold, or may be reading."""
        # A server that failed may still be reading the folder of the wanted version.
        versions = {self.want, *(member.holds for member in self._members)}
        return {version for version in versions if version is not None}

    def states(self) -> tuple[ServerState, ...]:
        """Return what another process has to know of the servers that this one loaded."""
        return tuple((one.out, one.holds, one.base, one.base_version) for one in self._members)

    def adopt(self, want: str, states: Sequence[ServerState]) -> None:
        """Take over what another process loaded."""
        self.want = want
        self.forget_groups()
        for member, state in zip(self._members, states, strict=True):
            member.out, member.holds, member.base, member.base_version = state
            member.faults = member.bad = 0

    def forget_groups(self) -> None:
        """Let groups choose their servers anew."""
        self._groups.clear()

    async def close(self) -> None:
        """Give up what is asked, unload the last adapter, and close the connections."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        for member in self._members:
            if self._first and self.way == "lora" and member.out is None and member.holds is not None:
                try:
                    await member.server.unload_adapter(member.holds)
                except ServerFault as fault:
                    _warn(f"the vLLM server {member.server.url} keeps the adapter {member.holds}: {fault}")
            await member.server.close()

    async def message(self, request: MessageRequest) -> Sampled:
        """Sample one message, by another server where one fails."""
        cause = ""
        for attempt in range(self.attempts):
            if attempt:
                self._add(resampled=1)
                await asyncio.sleep(PAUSE * 2 ** min(attempt - 1, 4))
            member = self._server_of(request.group, cause)
            async with member.slots:
                if member.out is not None:
                    continue
                loads = member.loads  # not ``holds``: the name is the same after a server was loaded again
                try:
                    message = await self._asked(member, request, attempt)
                except WrongWeights as fault:
                    cause = f"{member.server.url}: {fault}"
                    await self._load_again(member, loads, fault)
                except Aborted as fault:
                    cause = f"{member.server.url}: {fault}"
                except BadAnswer as fault:
                    cause = f"{member.server.url}: {fault}"
                    member.bad += 1
                    if member.bad >= BAD_ANSWERS:
                        member.leave(fault)
                except ServerFault as fault:
                    cause = f"{member.server.url}: {fault}"
                    await self._trouble(member, loads, fault)
                else:
                    member.faults = 0
                    self._add(messages=1, tokens=len(message.ids))
                    return message
        raise EngineFailure(f"a message could not be sampled in {self.attempts} attempts, the last one at {cause}")

    def _server_of(self, group: str, cause: str) -> _Member:
        """Return the server of a group: the one it had while that is there, else the one with the fewest groups."""
        member = self._groups.get(group)
        if member is not None and member.out is None:
            return member
        there = [one for one in self._members if one.out is None]
        if not there:
            raise EngineFailure(self._none_left(cause))
        held = list(self._groups.values())
        self._groups[group] = least = min(there, key=held.count)
        return least

    def _none_left(self, cause: str = "") -> str:
        """Return the sentence that names every server with why it is out."""
        causes = "; ".join(f"{one.server.url}: {one.out}" for one in self._members) or cause
        return f"no vLLM server is left to sample from ({causes}): see their logs, start them again and --resume"

    async def _asked(self, member: _Member, request: MessageRequest, attempt: int) -> Sampled:
        """Ask the server, and check what it answers."""
        model, version = self._model(member), self._version(member)
        task = asyncio.ensure_future(member.server.generate(request, model, attempt))
        member.in_flight.add(task)
        try:
            answer = await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if member.out is None or (current is not None and current.cancelling()):
                raise
            raise ServerFault(member.out) from None
        finally:
            member.in_flight.discard(task)
        return check(answer, request, self._weights.vocabulary, version)

    def _model(self, member: _Member) -> str:
        """Return the model to ask for: an adapter's name, or the served model's."""
        return self.want or "" if self.way == "lora" else member.base

    def _version(self, member: _Member) -> str | None:
        """Return the version that every token has to name. Below an adapter that is the one of the base's weights."""
        return member.base_version if self.way == "lora" else self.want

    async def _trouble(self, member: _Member, loads: int, fault: ServerFault) -> None:
        """Decide what a failed request means for the server."""
        if isinstance(fault, Refused):
            if fault.status == httpx.codes.NOT_FOUND and self.way == "lora":
                await self._load_again(member, loads, fault)  # it was restarted, and has no adapter
                return
            raise EngineFailure(f"the vLLM server {member.server.url} refuses a message: {fault}")
        if isinstance(fault, ServerTimeout):
            member.leave(f"{fault}{await self._why_silent(member.server)}")
            return
        member.faults += 1
        if member.faults >= FAULTS_IN_A_ROW or not await member.server.healthy():
            member.leave(fault)

    @staticmethod
    async def _why_silent(server: VllmServer) -> str:
        """Return what explains that a server does not answer, as the end of a sentence."""
        try:
            return ", it is paused, and not by this run" if await server.is_paused() else ", it is not paused"
        except ServerFault:
            return ", nor does it answer anything else"

    async def _load_again(self, member: _Member, loads: int, fault: Exception) -> None:
        """Load a server that has other weights than the wanted ones, unless another message has done so."""
        async with member.lock:
            if member.out is not None or member.loads != loads:
                return
            if not self._first:
                member.leave(f"another process of the trainer has to load it: {fault}")
                return
            member.holds, member.compared = None, False
            if member.reloads >= RELOADS:
                member.leave(f"its weights changed again, as if another run loaded them: {fault}")
                return
            member.reloads += 1
            self._add(reloads=1)
            _warn(f"the vLLM server {member.server.url} is loaded again: {fault}")
            try:
                await self._load(member)
            except ServerFault as again:
                member.leave(f"it could not be loaded again: {again}")

    async def load(self, want: str, path: str) -> None:
        """Load every server, those too that were out, with the version ``want``, which is in the folder ``path``.

        Raises EngineFailure where none can be loaded, and where one answers unlike the trainer's forward pass.
        """
        self.want, self._path = want, path
        self._scored.clear()
        self.canary_seconds.clear()
        self._groups.clear()
        await asyncio.gather(*map(self._admit, self._members))
        if all(member.out is not None for member in self._members):
            raise EngineFailure(self._none_left())

    async def _admit(self, member: _Member) -> None:
        """Load the server and take it into the pool, or leave it out with the cause."""
        was_out, member.out = member.out is not None, None
        member.faults = member.bad = member.reloads = 0
        member.in_flight.clear()
        try:
            if was_out and not await member.server.healthy():
                raise ServerFault("it is still not healthy")
            await self._load(member)
        except ServerFault as fault:
            member.leave(f"it could not be loaded with the policy's weights: {fault}")

    async def _load(self, member: _Member) -> None:
        """Load the server with the wanted weights, confirm their name, and compare it with the trainer.

        A server that fails in the middle stays paused: it may hold parts of two versions. Raises ServerFault, and
        EngineFailure from the canary.
        """
        server, want = member.server, self.want
        assert want is not None
        former, member.holds = member.holds, None
        if not member.base:
            member.base = await _served(server)
        if self.way == "lora":
            await self._restore_base(server)
            await server.load_adapter(want, self._path)
            names = [model.id for model in await server.models()]
            if want not in names:
                raise ServerFault(f"the adapter {want} was loaded and is not among its models")
            member.base_version = await server.weight_version()
        else:
            await server.pause()
            await self._read(server, self._path)
            await server.name_weights(want)
            await server.resume()
            if (said := await server.weight_version()) != want:
                raise ServerFault(f"it was loaded with {want} and says that it holds {said}")
        member.holds = want
        # Messages that were asked for before this do not say anything about the weights that are loaded now.
        member.loads += 1
        await self._compare(member)
        if self.way == "lora" and former is not None:
            await server.unload_adapter(former)

    async def _restore_base(self, server: VllmServer) -> None:
        """Load the weights below the adapter where another run, or an evaluation, has put others in their place."""
        assert self.want is not None
        name = f"{self.want.partition('-')[0]}-base"
        if await server.weight_version() in (SINCE_START, name):
            return
        await server.pause()
        await self._read(server, str(self._weights.base))
        await server.name_weights(name)
        await server.resume()

    @staticmethod
    async def _read(server: VllmServer, path: str) -> None:
        """Let a paused server read a folder. Raises ServerFault where it is not the one that was paused any more."""
        await server.load_policy(path)
        # Whatever answers at this address was started meanwhile, with its first weights: it must not get the name.
        if not await server.is_paused():
            raise ServerFault("it was started again, or resumed by somebody else, while it was loaded")

    async def _compare(self, member: _Member) -> None:
        """Run the canary. Raises EngineFailure where the server answers unlike the trainer's forward pass."""
        began = time.perf_counter()
        vocabulary, worst = self._weights.vocabulary, 0.0
        for request in canaries(vocabulary, str(member.holds), first=not member.compared):
            try:
                answer = await member.server.generate(request, self._model(member), member.reloads)
                message = check(answer, request, vocabulary, self._version(member))
            except BadAnswer as fault:
                raise ServerFault(f"the canary's answer cannot be used: {fault}") from None
            scores = await self._score(request.token_ids, message.ids, request.temperature)
            worst = max(worst, largest_difference(message, scores, request.temperature))
        self.canary_seconds.append(time.perf_counter() - began)
        self._add(gap=worst)
        if worst > self._tolerance:
            raise EngineFailure(
                f"the vLLM server {member.server.url} was loaded with {member.holds} and answers as other weights "
                f"would: its log-probabilities differ from the trainer's by up to {worst:.3g} nats, allowed "
                f"are {self._tolerance:g}; see how it loads weights (--worker-extension-cls, --logprobs-mode "
                "processed_logprobs, --dtype)"
            )
        member.compared = True

    async def _score(self, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> Scores:
        """Return the trainer's scores; servers with equal weights give equal answers, which are scored once."""
        key = (temperature, tuple(ids))
        if key not in self._scored:
            score: Callable[..., Scores] = self._weights.score
            self._scored[key] = await asyncio.to_thread(score, prompt, ids, temperature)
        return self._scored[key]


def _warn(text: str) -> None:
    say(f"warning: {text}")


async def _served(server: VllmServer) -> str:
    """Return the name of the model that the server was started with. Raises ServerFault where there is none."""
    own = [model.id for model in await server.models() if model.parent is None]
    if not own:
        raise ServerFault("it serves no model")
    return own[0]
