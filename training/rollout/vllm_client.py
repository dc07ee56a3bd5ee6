"""One vLLM server: the requests of its HTTP interface, each with a deadline and a bound on what it may answer.

A message goes out as all ids of its episode, and comes back as ids, log-probabilities and the weights that sampled each
id; it is held against the request before anybody sees it. Whatever a server does wrong raises ServerFault with one
cause. The requests are those of vLLM 0.30 and later, with ``--enable-scale-out`` and VLLM_SERVER_DEV_MODE=1. Import
this module late: it needs httpx.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import httpx
from pydantic import AliasPath, BaseModel, Field, JsonValue, TypeAdapter, ValidationError

from memory.jsonl import complaint
from training.rollout.sampling import Sampled

Read = TypeVar("Read")

CONTROL_SECONDS = 10.0
"""Timeout of requests that a living server answers at once (ours)."""

LOAD_SECONDS = 600.0
"""Timeout of a server that loads weights (ours)."""

CONTROL_BYTES = 2**20
"""Most bytes of an answer that holds no message (ours)."""

SHOWN = 300
"""Characters of a server's own words that an error holds."""

ROUNDING = 1e-3
"""Nats by which a log-probability may be above 0: float rounding of an engine in bfloat16 (ours)."""

FINAL_ONLY = 2
"""vLLM's output kind of an answer that is sent once, when it is whole."""


class ServerFault(RuntimeError):
    """The server did not answer, or not as it should.

    ``status`` is that of HTTP, where it answered that it cannot do what was asked. ``lasts``: the same request would
    fail again.
    """

    def __init__(self, message: str, *, status: int | None = None, lasts: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.lasts = lasts


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """One message to sample: equal requests to equal weights give equal messages, wherever they are sent.

    ``key`` names the message in the engine's log.
    """

    token_ids: list[int]
    max_tokens: int
    temperature: float
    seed: int
    stop_ids: tuple[int, ...]
    key: str

    def sampling_params(self) -> dict[str, Any]:
        """Return vLLM's parameters, every one of them that changes an answer."""
        # Unstated ones are taken from the model's generation_config.json. ignore_eos: the driver's stop ids end a
        # message, and nothing else does.
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": self.seed,
            "logprobs": 0,
            "stop_token_ids": list(self.stop_ids),
            "ignore_eos": True,
            "output_kind": FINAL_ONLY,
            "detokenize": False,
        }


class _Span(BaseModel):
    """Output tokens from ``start`` to before ``end`` were sampled with the weights ``version``."""

    version: Annotated[str, Field(max_length=500)]
    start: int
    end: int


class _TokenLogprob(BaseModel):
    token_id: int | None = None
    logprob: Annotated[float, Field(allow_inf_nan=True)]


def _at(*path: str) -> AliasPath:
    return AliasPath("choices", 0, *path)


class _Reply(BaseModel):
    """What is read of an answer with one message."""

    token_ids: list[int] = Field(max_length=2**21, validation_alias=_at("token_ids"))
    finish_reason: str = Field(max_length=100, validation_alias=_at("finish_reason"))
    logprobs: list[_TokenLogprob] = Field([], max_length=2**21, validation_alias=_at("logprobs", "content"))
    weight_versions: list[_Span] | None = Field(None, max_length=2**16, validation_alias=_at("weight_versions"))
    prompt_tokens: int | None = Field(None, validation_alias=AliasPath("usage", "prompt_tokens"))


def read_message(body: bytes, request: MessageRequest, vocabulary: int, version: str) -> Sampled:
    """Return what ``/inference/v1/generate`` answered as a sampled message.

    Args:
        vocabulary: number of ids that the policy knows.
        version: the weights that every token has to come from.

    Raises ServerFault for what cannot be read, a message that the engine gave up or cut, other weights, and values that
    cannot be.
    """
    try:
        reply = _Reply.model_validate_json(body)
    except ValidationError as error:
        raise ServerFault(f"the answer cannot be read, {complaint(error)[:SHOWN]}") from None
    ids, content, asked = reply.token_ids, reply.logprobs, len(request.token_ids)
    if reply.finish_reason not in ("stop", "length"):
        raise ServerFault(f"the message ended with {reply.finish_reason!r} after {len(ids)} tokens")
    _check_versions(reply.weight_versions or (), len(ids), version)
    if reply.prompt_tokens not in (None, asked):
        raise ServerFault(f"{asked} tokens were sent and {reply.prompt_tokens} read")
    if not 0 < len(ids) <= request.max_tokens:
        raise ServerFault(f"the message has {len(ids)} tokens, {request.max_tokens} at most were asked for")
    if len(content) != len(ids):
        raise ServerFault(f"the message has {len(ids)} tokens and {len(content)} log-probabilities")
    for place, (one, drawn) in enumerate(zip(content, ids, strict=True)):
        if not 0 <= drawn < vocabulary:
            raise ServerFault(f"the token {drawn} is not among the policy's {vocabulary}")
        if one.token_id not in (None, drawn):
            raise ServerFault("the answer's log-probabilities are of other tokens than it holds")
        if not math.isfinite(one.logprob) or one.logprob > ROUNDING:
            raise ServerFault(f"the log-probability of token {place} is {one.logprob}")
    stops = [place for place, one in enumerate(ids) if one in request.stop_ids]
    if stops and stops[0] < len(ids) - 1:
        raise ServerFault(f"the message goes on after its stop id at token {stops[0]}")
    if not stops and len(ids) < request.max_tokens:
        raise ServerFault(
            f"the message has {len(ids)} tokens of {request.max_tokens} and no stop id: the server's --max-model-len "
            "is too small, or it stops at other ids"
        )
    return Sampled(ids, [min(one.logprob, 0.0) for one in content], asked)


def _check_versions(spans: Sequence[_Span], tokens: int, version: str) -> None:
    """Raise ServerFault where one of ``tokens`` is not known to come from ``version``."""
    others = [span.version for span in spans if span.version != version]
    if others:
        raise ServerFault(
            f"weights {others[0]!r} sampled a message and {version!r} was wanted: it was started again, or somebody "
            "else loads it",
            lasts=True,
        )
    place = 0
    for span in spans:
        if span.start != place or span.end < span.start:
            break
        place = span.end
    if place != tokens:
        raise ServerFault(f"the answer says which weights sampled {place} of its {tokens} tokens", lasts=True)


class ServedModel(BaseModel):
    """One model that a server offers; ``parent`` is set for an adapter."""

    id: Annotated[str, Field(max_length=1000)]
    parent: str | None = None
    max_model_len: int | None = None


_OBJECT = TypeAdapter(dict[str, JsonValue])
_MODELS = TypeAdapter(Annotated[list[ServedModel], Field(max_length=10_000)])
_TEXT = TypeAdapter(Annotated[str, Field(max_length=500)])
_TRUTH = TypeAdapter(bool)


class VllmServer:
    """The client of the server at ``url``. Use it, and close it, in one event loop.

    Args:
        url: without a path of the interface.
        request_timeout: seconds of one message.
        concurrency: most messages in flight.
        transport: in place of the network, for tests.
    """

    def __init__(
        self,
        url: str,
        request_timeout: float = CONTROL_SECONDS,
        concurrency: int = 1,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._request_timeout = request_timeout
        self._slots = asyncio.Semaphore(concurrency)
        self._client = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            timeout=None,
            # Requests that steer the server have to get through while messages take all slots.
            limits=httpx.Limits(max_connections=concurrency + 4, max_keepalive_connections=concurrency + 4),
            headers={"Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def generate(self, request: MessageRequest, model: str, vocabulary: int, version: str) -> Sampled:
        """Sample one message with ``model``, the served one or an adapter's name (see ``read_message``)."""
        body = {
            "model": model,
            "request_id": request.key,
            "token_ids": request.token_ids,
            "sampling_params": request.sampling_params(),
        }
        most = 2**18 + 2048 * request.max_tokens  # several times what the tokens take
        async with self._slots:
            answer = await self._ask("POST", "/inference/v1/generate", body, self._request_timeout, most)
        return read_message(answer, request, vocabulary, version)

    async def healthy(self) -> bool:
        """Return whether the server says that its engine runs."""
        try:
            await self._ask("GET", "/health")
        except ServerFault:
            return False
        return True

    async def own_model(self) -> ServedModel:
        """Return the model that the server was started with."""
        models = await self._read("GET", "/v1/models", "data", _MODELS)
        own = next((model for model in models if model.parent is None), None)
        if own is None:
            raise ServerFault("it serves no model: start it with the policy's")
        return own

    async def release(self) -> str:
        """Return the server's version of vLLM."""
        return await self._read("GET", "/version", "version", _TEXT)

    async def weight_version(self) -> str:
        """Return the name of the loaded weights; ``default`` since the server's start."""
        return await self._read("GET", "/weight_info", "weight_version", _TEXT)

    async def has(self, path: str) -> bool:
        """Return whether the server has a POST route at ``path``, without calling it."""
        try:
            await self._ask("GET", path)
        except ServerFault as fault:
            if fault.status is None:
                raise
            return fault.status != httpx.codes.NOT_FOUND
        return True

    async def load_folder(self, path: str, version: str) -> None:
        """Replace all weights by those of the folder ``path`` between two messages, and name them ``version``.

        A server that fails in the middle stays paused: it may hold parts of two versions.
        """
        await self._ask("POST", "/pause?mode=wait", timeout=self._request_timeout)
        body = {"method": "load_policy", "kwargs": {"path": path}, "timeout": LOAD_SECONDS}
        await self._ask("POST", "/collective_rpc", body, LOAD_SECONDS)
        # Whatever answers at this address was started meanwhile, with its first weights: it must not get the name.
        if not await self._read("GET", "/is_paused", "is_paused", _TRUTH):
            raise ServerFault("it was started again, or resumed by somebody else, while it was loaded")
        if not await self._read("POST", "/reset_prefix_cache", "success", _TRUTH):
            raise ServerFault("the prefix cache could not be reset")
        await self._ask("POST", "/update_weight_version", {"new_version": version})
        await self._ask("POST", "/resume")

    async def load_adapter(self, name: str, path: str) -> None:
        """Let the server read the adapter in the folder ``path`` as the model ``name``."""
        await self._ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}, LOAD_SECONDS)

    async def unload_adapter(self, name: str) -> None:
        """Drop an adapter; one that the server does not have is dropped already."""
        try:
            await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        except ServerFault as fault:
            if fault.status != httpx.codes.NOT_FOUND:
                raise

    async def _read(self, method: str, path: str, key: str, kind: TypeAdapter[Read]) -> Read:
        body = await self._ask(method, path)
        try:
            return kind.validate_python(_OBJECT.validate_json(body).get(key))
        except ValidationError as error:
            raise ServerFault(f"{path} answered what cannot be read, {complaint(error)[:SHOWN]}") from None

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout: float = CONTROL_SECONDS,
        most: int = CONTROL_BYTES,
    ) -> bytes:
        """Return the body of an answer with a status of success, of ``most`` bytes."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        try:
            # One deadline for all of it: httpx's own would begin again with every piece of an answer.
            async with (
                asyncio.timeout(timeout),
                self._client.stream(method, self.url + path, content=content, headers=headers) as response,
            ):
                received = bytearray()
                async for piece in response.aiter_bytes():
                    received += piece
                    if len(received) > most:
                        raise ServerFault(f"{path} answered with more than {most} bytes")
        except TimeoutError:
            raise ServerFault(
                f"{path} was not answered within {timeout:g} seconds: it hangs, or is paused", lasts=True
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = (str(error).strip().splitlines() or [""])[0][:SHOWN]
            raise ServerFault(f"{path}: {type(error).__name__}: {said}") from None
        if response.is_redirect:
            aim = response.headers.get("location", "nowhere")[:SHOWN]
            raise ServerFault(f"{path} is redirected to {aim}: name the server's own address", lasts=True)
        if response.is_error:
            said = " ".join(bytes(received[: 4 * SHOWN]).decode(errors="replace").split())[:SHOWN]
            text = f"{path} was answered with status {response.status_code}: {said}"
            status = response.status_code if response.is_client_error else None
            raise ServerFault(text, status=status, lasts=status is not None)
        return bytes(received)
