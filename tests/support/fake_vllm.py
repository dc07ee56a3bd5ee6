"""vLLM servers for tests, in the test's own process: their HTTP interface, by forward passes of a tiny model.

    fakes = FakeVllm(starter, "http://a:1", "http://b:2")
    sampler = VllmServers(settings, weights, 1e-3, transport=fakes.transport)

Each address is a server with weights, a version, adapters and a pause of its own: ``fakes["http://a:1"]``. Its
attributes are its faults. Answers depend on weights, ids and seed alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from support.late import Late

torch = Late("torch")
transformers = Late("transformers")

HANG = 3600.0


class FakeServer:
    """One server. Set an attribute to make it fail."""

    def __init__(self, starter: Path, url: str, positions: int = 512) -> None:
        self.starter, self.url, self.positions = starter, url, positions
        self.requests: list[tuple[str, Any]] = []
        self.generated: list[dict[str, Any]] = []
        self.down = False
        self.hang = False
        self.redirect = False
        self.stale_head = False
        self.ignore_loads = False
        self.raw_logprobs = False
        self.fail_next: list[str] = []
        """Faults of the next messages of rollouts: abort, mixed, nan, huge, status, tokens, cut, drop."""
        self.fail_load = 0
        self.restart_in_load = False
        self.release = "0.32.0"
        self.posts = {"/collective_rpc", "/inference/v1/generate", "/v1/load_lora_adapter", "/pause"}
        self.posts.add("/update_weight_version")
        self.loads: list[str] = []
        self.start()

    def start(self) -> None:
        """Start, or start again: with the first weights, unnamed, without adapters."""
        self.model = transformers.AutoModelForCausalLM.from_pretrained(self.starter).eval()
        self.version, self.paused, self.adapters = "default", False, {}

    def load(self, path: str) -> None:
        self.loads.append(path)
        if self.restart_in_load:
            self.start()
        elif not self.ignore_loads:
            head = self.model.get_output_embeddings().weight.detach().clone()
            self.model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
            if self.stale_head:
                self.model.config.tie_word_embeddings = False
                self.model.lm_head.weight = torch.nn.Parameter(head)

    def load_adapter(self, name: str, path: str) -> None:
        from copy import deepcopy

        from peft import PeftModel

        self.adapters[name] = PeftModel.from_pretrained(deepcopy(self.model), path).eval()

    def sample(self, model: Any, ids: Sequence[int], given: dict[str, Any]) -> tuple[list[int], list[float]]:
        draws, temperature = torch.Generator().manual_seed(given["seed"]), given["temperature"]
        drawn: list[int] = []
        logprobs: list[float] = []
        feed, cache = list(ids), None
        with torch.no_grad():
            while len(drawn) < given["max_tokens"]:
                out = model(input_ids=torch.tensor([feed]), past_key_values=cache, use_cache=True)
                logits, cache = out.logits[0, -1].float(), out.past_key_values
                logps = torch.log_softmax(logits / (temperature or 1.0), -1)
                drawn.append(int(torch.multinomial(logps.exp(), 1, generator=draws) if temperature else logps.argmax()))
                logprobs.append(float((torch.log_softmax(logits, -1) if self.raw_logprobs else logps)[drawn[-1]]))
                if drawn[-1] in given["stop_token_ids"]:
                    break
                feed = drawn[-1:]
        return drawn, logprobs

    async def answer(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content) if request.content else None
        self.requests.append((f"{path}?{request.url.query.decode()}" if request.url.query else path, body))
        if self.down:
            raise httpx.ConnectError("connection refused")
        if self.redirect:
            return httpx.Response(307, headers={"location": "http://elsewhere:1/"})
        if path == "/is_paused":
            return httpx.Response(200, json={"is_paused": self.paused})
        if self.hang and path != "/health":
            await asyncio.sleep(HANG)
        if request.method == "GET":
            return self.get(path)
        return await self.post(path, body)

    def get(self, path: str) -> httpx.Response:
        if path == "/health":
            return httpx.Response(200)
        if path == "/version":
            return httpx.Response(200, json={"version": self.release})
        if path == "/weight_info":
            return httpx.Response(200, json={"weight_version": self.version})
        if path == "/v1/models":
            own = {"id": "policy", "parent": None, "max_model_len": self.positions}
            adapters = [{"id": name, "parent": "policy", "max_model_len": None} for name in self.adapters]
            return httpx.Response(200, json={"data": [own, *adapters]})
        return httpx.Response(405 if path in self.posts else 404, json={"detail": "no"})

    async def post(self, path: str, body: Any) -> httpx.Response:  # noqa: PLR0911 - one per route
        if path == "/pause":
            self.paused = True
        elif path == "/resume":
            self.paused = False
        elif path == "/collective_rpc":
            if self.fail_load:
                self.fail_load -= 1
                return httpx.Response(500, json={"error": "EngineCore encountered an issue"})
            assert self.paused, "weights are loaded while messages are sampled"
            self.load(body["kwargs"]["path"])
        elif path == "/reset_prefix_cache":
            return httpx.Response(200, json={"success": True})
        elif path == "/update_weight_version":
            self.version = body["new_version"]
        elif path == "/v1/load_lora_adapter":
            if body["lora_name"] in self.adapters:
                return httpx.Response(400, json={"error": "already loaded"})
            self.load_adapter(body["lora_name"], body["lora_path"])
        elif path == "/v1/unload_lora_adapter":
            if self.adapters.pop(body["lora_name"], None) is None:
                return httpx.Response(404, json={"error": "not found"})
        elif path == "/inference/v1/generate":
            return await self.generate(body)
        else:
            return httpx.Response(404, json={"detail": "Not Found"})
        return httpx.Response(200, json={})

    async def generate(self, body: Any) -> httpx.Response:
        while self.paused:  # a request waits until the server goes on, as vLLM's do
            await asyncio.sleep(0.01)
        checks = body["request_id"].startswith("check-")
        if not checks:
            self.generated.append(body)
        model = self.model if body["model"] == "policy" else self.adapters.get(body["model"])
        if model is None:
            return httpx.Response(404, json={"error": f"The model {body['model']} does not exist."})
        ids, given = body["token_ids"], body["sampling_params"]
        if len(ids) + 1 > self.positions:
            return httpx.Response(400, json={"error": "the prompt is too long"})
        fault = self.fail_next.pop(0) if self.fail_next and not checks else ""
        if fault == "drop":
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        if fault == "status":
            return httpx.Response(500, json={"error": "EngineCore encountered an issue"})
        if fault == "huge":
            return httpx.Response(200, content=b" " * 2**23)
        drawn, logprobs = self.sample(model, ids, given)
        spans = [{"version": self.version, "start": 0, "end": len(drawn)}]
        reason = "stop" if drawn[-1] in given["stop_token_ids"] else "length"
        if fault == "abort":
            drawn, logprobs, reason = drawn[:1], logprobs[:1], "abort"
        elif fault == "mixed":
            spans = [{"version": "older", "start": 0, "end": 1}, spans[0] | {"start": 1}]
        elif fault == "nan":
            logprobs = [float("nan"), *logprobs[1:]]
        elif fault == "tokens":
            drawn = [10**6, *drawn[1:]]
        elif fault == "cut":
            drawn, logprobs = [5], [-1.0]
            spans[0]["end"] = 1
        content = [{"token_id": one, "logprob": logprob} for one, logprob in zip(drawn, logprobs, strict=True)]
        choice = {"token_ids": drawn, "finish_reason": reason, "weight_versions": spans}
        choice |= {"logprobs": {"content": content}}
        reply = {"choices": [choice], "usage": {"prompt_tokens": len(ids), "completion_tokens": len(drawn)}}
        return httpx.Response(200, content=json.dumps(reply).encode(), headers={"content-type": "application/json"})


class FakeVllm:
    """Servers at ``urls`` that were started with the model in the folder ``starter``."""

    def __init__(self, starter: Path, *urls: str) -> None:
        self.servers = {url: FakeServer(starter, url) for url in urls}
        self.transport = httpx.MockTransport(self._answer)

    def __getitem__(self, url: str) -> FakeServer:
        return self.servers[url]

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        server = self.servers.get(f"{request.url.scheme}://{request.url.netloc.decode()}")
        if server is None:
            raise httpx.ConnectError("connection refused")
        return await server.answer(request)
