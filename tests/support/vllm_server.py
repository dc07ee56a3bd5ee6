"""One real vLLM server of the starter for the tests that need one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import ROOT
from support.server_process import RunningServer, running

STARTER = ROOT / "recipes" / "starter"
PYTHON = ROOT / ".venvs" / "vllm" / "bin" / "python"
CONTEXT = 512


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
    recipe = logs / "recipe.yaml"
    recipe.write_text(json.dumps(sections))
    argv = [sys.executable, "-m", "graph.serve", str(recipe), "--port", "PORT"]
    with running(argv, logs / "server.log", port=port, seconds=600.0, cwd=ROOT) as server:
        yield server


def serving_starter(logs: Path, port: int = 0) -> AbstractContextManager[RunningServer]:
    """The starter in float32, with adapters of rank 8 by name."""
    return serving(STARTER, CONTEXT, logs, lora_rank=8, port=port)


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests."""
    with serving_starter(tmp_path_factory.mktemp("vllm")) as server:
        yield server
