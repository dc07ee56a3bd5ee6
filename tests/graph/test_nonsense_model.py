"""An iteration whose chat roles are played by a random model behind ``transformers serve``: it talks nonsense."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chat_models import save_model
from support.made_run import first_tasks, make_run, run_graph

from agents.spending import read_requests
from graph.recipe import load_recipe
from graph.records import Failure
from graph.report.summary import summarise
from memory.run import read_jsonl
from memory.tasks import load_tasks

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.usefixtures("preloaded")]

START_SECONDS = 90.0


@pytest.fixture(scope="module")
def endpoint(preloaded: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The base URL of the server, and the model's name there."""
    folder = tmp_path_factory.mktemp("nonsense")
    model = save_model(folder / "model", "qwen2_5")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # What the program transformers runs, so that it begins in a fork of the preloaded process.
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()"]
    command += ["serve", str(model), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log, env=environment) as server,
    ):
        try:
            if not _answers(f"http://127.0.0.1:{port}/health", server):
                pytest.skip(f"transformers serve does not start here: {(folder / 'log').read_text()[-500:]}")
            yield f"http://127.0.0.1:{port}/v1", str(model)
        finally:
            server.kill()


def _answers(url: str, server: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


@pytest.mark.parametrize("roles", [("reflector", "explorer", "abstractor"), ("explorer",)])
def test_nonsense_is_refused_with_reasons_and_the_iteration_ends_and_says_what_it_cost(
    endpoint: tuple[str, str], roles: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, model = endpoint
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    chat = f"{{kind: chat, model: '{model}', base_url: '{url}', max_tokens: 24, timeout: 60}}"
    options = [f"roles.{role}={chat}" for role in roles]
    run = make_run(tmp_path / "run", *options, "signals.contexts_per_iteration=2", "memory.deduplicate=false")
    run_graph(run)
    summary = summarise(run, load_recipe(run.settings_path), 0)
    assert (summary.admitted, summary.refused) == (0, {})
    assert summary.failed == {"RoleRefused": 2}
    assert len(load_tasks(run)) == len(first_tasks())
    name = "reflection_failures.jsonl" if "reflector" in roles else "branch_failures.jsonl"
    failures = read_jsonl(run.iteration(0) / name, Failure)
    assert all("cannot be used, after one repair" in failure.detail for failure in failures)
    requests = read_requests(run.spending_path)
    assert {one.subject for one in requests} == {failure.id for failure in failures}
    assert {(one.role, one.outcome, one.measured.calls) for one in requests} == {(roles[0], "refused", 2)}
    assert all(len(one.faults) == 2 for one in requests)
    (stage,) = summary.cost.stages.values()
    assert (stage.requests, stage.refused, summary.cost.model_calls) == (2, 2, 4)
    assert summary.cost.prompt_tokens > 1000
    assert summary.cost.completion_tokens > 0
    assert summary.cost.per_admitted is None
