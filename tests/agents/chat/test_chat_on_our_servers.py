"""A chat role on a real vLLM server as this project starts it, so that roles and rollouts can share servers.

It runs with ``make test-vllm``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bfcl_tasks import two_turns
from support.chat_models import random_model, save, template, tokenizer
from support.server_process import RunningServer
from support.vllm_server import serving

from agents.chat.acting import ChatValidator
from agents.chat.models import open_model
from agents.settings import RoleSettings
from agents.spending import Ledger, read_requests
from environments.base import Environment, StartState

pytestmark = [pytest.mark.vllm, pytest.mark.external, pytest.mark.process, pytest.mark.slow]

CONTEXT = 8192
LIKED = {'"': 8.0, "}": 6.0, ",": 5.0, "f": 5.0, "{": 5.0, ":": 5.0}
"""Nats by which the model likes characters of JSON, wherever it is: a grammar makes the shortest reply of them."""


def blunt_model(folder: Path) -> Path:
    """A Qwen3 with its real template that reads nothing: every state is the same, and every reply by ``LIKED``."""
    import torch

    known = tokenizer(template("qwen3"))
    model = random_model("qwen3", known, head_dim=32, tie_word_embeddings=False)
    state = model.state_dict()
    with torch.no_grad():
        for name, weights in state.items():
            if name.endswith(("o_proj.weight", "down_proj.weight", "embed_tokens.weight", "lm_head.weight")):
                weights.zero_()
        state["model.embed_tokens.weight"][:, 0] = 1.0
        for character, nats in LIKED.items():
            state["lm_head.weight"][known.convert_tokens_to_ids(character), 0] = nats / model.config.hidden_size**0.5
    return save(folder, model, known)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = blunt_model(tmp_path_factory.mktemp("model") / "chat")
    with serving(folder, CONTEXT, tmp_path_factory.mktemp("logs")) as one:
        yield one


async def test_the_validator_is_answered_in_its_schemas(
    server: RunningServer,
    ledger: Ledger,
    environment: Environment,
    car_start: StartState,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Its agent ends both turns without a call, and its judge says false: each in one request, without a repair."""
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    settings = RoleSettings(
        kind="chat",
        model="policy",
        base_url=f"{server.url}/v1",
        temperature=0.0,
        max_tokens=256,
    )
    model = open_model(settings, "validator", ledger, 16)
    draft = two_turns(car_start)
    draft = draft.model_copy(update={"tools": ("fillFuelTank", "lockDoors")})
    run = await ChatValidator(model, actions=5).validate(draft, environment, 0)
    assert (run.accepted, run.completed, run.success, run.actions) == (False, False, False, 0)
    requests = read_requests(tmp_path / "spending.jsonl")
    assert [(one.outcome, one.faults, one.measured.calls) for one in requests] == [("answered", (), 1)] * 3
    assert {one.model for one in requests} == {"policy"}
    assert all(0 < one.measured.completion_tokens < 256 for one in requests)
