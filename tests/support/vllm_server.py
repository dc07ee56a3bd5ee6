"""One real vLLM server of the starter for the tests that need one."""

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
from collections.abc import Iterator
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


@contextmanager
def serving(
    policy: Path, context: int, logs: Path, *, lora_rank: int | None = None, port: int = 0, dtype: str = "float32"
) -> Iterator[RunningServer]:
    """A server of the policy, as ``python -m graph.serve`` starts it, until the block ends."""
    if not PYTHON.exists():
        pytest.skip("vLLM is not installed: make vllm")
    logs.mkdir(parents=True, exist_ok=True)
    sections: dict[str, Any] = {"policy": {"path": str(policy), "dtype": dtype}, "training": {"max_tokens": context}}
    if lora_rank is not None:
        sections["policy"]["lora"] = {"rank": lora_rank}
    recipe, log = logs / "recipe.yaml", logs / "server.log"
    recipe.write_text(json.dumps(sections))
    with socket.socket() as free:
        # A server that was killed a moment ago leaves connections that wait at its address.
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
