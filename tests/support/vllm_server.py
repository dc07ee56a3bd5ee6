"""One real vLLM server of the starter for the tests that need one, and the requests of its HTTP interface."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from environments.checkout import ROOT

STARTER = ROOT / "recipes" / "starter"
PYTHON = ROOT / ".venvs" / "vllm" / "bin" / "python"
CONTEXT = 512
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class RunningServer:
    """A started server: its ``url`` and its process, which leads the group of all of its processes."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def answers(self) -> bool:
        """Return whether ``/health`` answers 200 within two seconds."""
        try:
            with _OPENER.open(f"{self.url}/health", timeout=2.0) as reply:
                return bool(reply.status == 200)
        except (OSError, ValueError):
            return False


class Status(Exception):
    """An answer with a status of failure."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said[:500]}")
        self.status = status


def ask(server: RunningServer, path: str, body: Any = None, timeout: float = 120.0) -> Any:
    """POST a body, or GET without one; what was answered, parsed. ``{}`` posts nothing."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, content, {"Content-Type": "application/json"})
    try:
        with _OPENER.open(request, timeout=timeout) as reply:
            said = reply.read().decode()
    except urllib.error.HTTPError as error:
        raise Status(error.code, error.read().decode(errors="replace")) from None
    try:
        return json.loads(said)
    except ValueError:
        return said


def generate(
    server: RunningServer,
    ids: Sequence[int],
    *,
    model: str = "policy",
    temperature: float = 0.9,
    seed: int = 1,
    most: int = 16,
    stops: Sequence[int] = (),
    timeout: float = 120.0,
) -> dict[str, Any]:
    """One message: its ``ids``, their ``logprobs``, why it ended, and spans of weights as (version, start, end)."""
    parameters = {
        "max_tokens": most,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": seed,
        "logprobs": 0,
        "stop_token_ids": list(stops),
        "ignore_eos": True,
        "output_kind": 2,
        "detokenize": False,
    }
    body = {"model": model, "token_ids": list(ids), "sampling_params": parameters}
    choice = ask(server, "/inference/v1/generate", body, timeout)["choices"][0]
    return {
        "ids": choice["token_ids"],
        "logprobs": [one["logprob"] for one in (choice["logprobs"] or {"content": ()})["content"]],
        "reason": choice["finish_reason"],
        "versions": [(one["version"], one["start"], one["end"]) for one in choice["weight_versions"] or ()],
    }


def installed_vllm() -> str:
    """The interpreter of vLLM's environment; whoever asks is skipped where there is none."""
    if not PYTHON.exists():
        pytest.skip("vLLM is not installed: make vllm")
    return str(PYTHON)


@contextmanager
def serving(
    policy: Path, context: int, logs: Path, *, lora_rank: int | None = None, port: int = 0
) -> Iterator[RunningServer]:
    """A server of the policy in float32, as ``python -m graph.serve`` starts it, until the block ends."""
    installed_vllm()
    logs.mkdir(parents=True, exist_ok=True)
    sections: dict[str, Any] = {"policy": {"path": str(policy)}, "training": {"max_tokens": context}}
    if lora_rank is not None:
        sections["policy"]["lora"] = {"rank": lora_rank}
    recipe, log = logs / "recipe.yaml", logs / "server.log"
    recipe.write_text(json.dumps(sections))
    with socket.socket() as free:
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "graph.serve", str(recipe), "--port", str(port)]
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, process_group=0)
    server = RunningServer(f"http://127.0.0.1:{port}", process)
    try:
        end = time.monotonic() + 600.0
        while not server.answers():
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.5)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def serving_starter(logs: Path, port: int = 0) -> AbstractContextManager[RunningServer]:
    """The starter in float32, with adapters of rank 8 by name."""
    return serving(STARTER, CONTEXT, logs, lora_rank=8, port=port)


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests."""
    with serving_starter(tmp_path_factory.mktemp("vllm")) as server:
        yield server
