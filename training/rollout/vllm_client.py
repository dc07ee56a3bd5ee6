"""One vLLM server: the requests of its HTTP interface, each with a timeout and a bound on what it may answer.

Nothing here decides what a failure means: a server that does not answer as it should raises ServerFault, a refusal
Refused, an answer that is not one to the request BadAnswer. The requests are those of vLLM 0.30 and later, with
``--enable-scale-out`` and VLLM_SERVER_DEV_MODE=1. Import this module late: it needs httpx.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError

from memory.jsonl import complaint
from training.rollout.vllm_requests import EngineAnswer, MessageRequest, read_answer, reply_bytes

__all__ = ["Refused", "ServedModel", "ServerFault", "ServerTimeout", "VllmServer"]

Read = TypeVar("Read", bound=BaseModel)

CONTROL_SECONDS = 10.0
"""Timeout of requests that a living server answers at once (ours)."""

CONTROL_BYTES = 2**20
"""Most bytes of an answer that holds no message (ours)."""

SHOWN = 300
"""Characters of a server's own words that an error holds."""


class ServerFault(RuntimeError):
    """The server did not answer, or not as it should."""


class ServerTimeout(ServerFault):
    """The server did not answer in time."""


class Refused(ServerFault):
    """The server answered that it cannot do what was asked; ``status`` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServedModel(BaseModel):
    """One model that a server offers; ``parent`` is set for an adapter."""

    id: Annotated[str, Field(max_length=1000)]
    parent: str | None = None
    max_model_len: int | None = None


class _Models(BaseModel):
    data: Annotated[list[ServedModel], Field(max_length=10_000)]


class _Weights(BaseModel):
    weight_version: Annotated[str, Field(max_length=500)]


class _Reset(BaseModel):
    success: bool


class _Paused(BaseModel):
    is_paused: bool


class _Version(BaseModel):
    version: Annotated[str, Field(max_length=100)]


class VllmServer:
    """The client of the server at ``url``. Use it, and close it, in one event loop.

    Args:
        url: without a path of the interface.
        request_timeout: seconds of one message.
        load_timeout: seconds of loading weights.
        connections: most requests at a time.
        transport: in place of the network, for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        request_timeout: float,
        load_timeout: float,
        connections: int = 8,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.request_timeout = request_timeout
        self.load_timeout = load_timeout
        self._client = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            timeout=None,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            headers={"Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def generate(self, request: MessageRequest, model: str, attempt: int) -> EngineAnswer:
        """Sample one message with ``model``, the served one or an adapter's name."""
        body = {
            "model": model,
            "request_id": f"{request.key}-{attempt}",
            "token_ids": request.token_ids,
            "sampling_params": request.sampling_params(),
        }
        most = reply_bytes(request.max_tokens)
        return read_answer(await self._ask("POST", "/inference/v1/generate", body, self.request_timeout, most))

    async def healthy(self) -> bool:
        """Return whether the server says that its engine runs."""
        try:
            await self._ask("GET", "/health")
        except ServerFault:
            return False
        return True

    async def models(self) -> list[ServedModel]:
        """Return the model that is served, and its adapters."""
        return (await self._read("GET", "/v1/models", _Models)).data

    async def release(self) -> str:
        """Return the server's version of vLLM."""
        return (await self._read("GET", "/version", _Version)).version

    async def weight_version(self) -> str:
        """Return the name of the loaded weights; ``default`` since the server's start."""
        return (await self._read("GET", "/weight_info", _Weights)).weight_version

    async def is_paused(self) -> bool:
        """Return whether the engine waits for /resume."""
        return (await self._read("GET", "/is_paused", _Paused)).is_paused

    async def has(self, path: str) -> bool:
        """Return whether the server has a POST route at ``path``, without calling it."""
        try:
            await self._ask("GET", path)
        except Refused as refusal:
            return refusal.status != httpx.codes.NOT_FOUND
        return True

    async def pause(self) -> None:
        """Wait for the messages that are sampled, and begin no further one."""
        await self._ask("POST", "/pause?mode=wait", timeout=self.request_timeout)

    async def resume(self) -> None:
        """Sample again."""
        await self._ask("POST", "/resume")

    async def load_policy(self, path: str) -> None:
        """Let every worker read the weights in the folder ``path``."""
        body = {"method": "load_policy", "kwargs": {"path": path}, "timeout": self.load_timeout}
        await self._ask("POST", "/collective_rpc", body, self.load_timeout)

    async def name_weights(self, version: str) -> None:
        """Forget what was computed with other weights, and name those that are loaded."""
        if not (await self._read("POST", "/reset_prefix_cache", _Reset)).success:
            raise ServerFault("the prefix cache could not be reset")
        await self._ask("POST", "/update_weight_version", {"new_version": version})

    async def load_adapter(self, name: str, path: str) -> None:
        """Let the server read the adapter in the folder ``path`` as the model ``name``."""
        body = {"lora_name": name, "lora_path": path}
        await self._ask("POST", "/v1/load_lora_adapter", body, self.load_timeout)

    async def unload_adapter(self, name: str) -> None:
        """Drop an adapter; one that the server does not have is dropped already."""
        try:
            await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        except Refused as refusal:
            if refusal.status != httpx.codes.NOT_FOUND:
                raise

    async def _read(self, method: str, path: str, model: type[Read]) -> Read:
        body = await self._ask(method, path)
        try:
            return model.model_validate_json(body)
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
            raise ServerTimeout(f"{path} was not answered within {timeout:g} seconds") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerFault(f"{path}: {_first_line(error)}") from None
        if response.is_redirect:
            aim = response.headers.get("location", "nowhere")[:SHOWN]
            raise ServerFault(f"{path} is redirected to {aim}: name the server's own address")
        if response.is_error:
            said = " ".join(bytes(received[: 4 * SHOWN]).decode(errors="replace").split())[:SHOWN]
            text = f"{path} was answered with status {response.status_code}: {said}"
            if response.is_client_error:
                raise Refused(text, response.status_code)
            raise ServerFault(text)
        return bytes(received)


def _first_line(error: Exception) -> str:
    said = (str(error).strip().splitlines() or [""])[0][:SHOWN]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
