"""The tiny model that takes the place of a policy in a rehearsal: its architecture, its tokens, its template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.chat_models import save_model

from environments.base import InputError
from graph.rehearsal.toy import make_stand_in
from training.plan import shape_of, shipped_config

pytestmark = pytest.mark.slow

PARAMETERS = 2_000_000
"""With the vocabularies of the tests, a thousandth of the smallest backbone."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("source") / "model", "qwen3")


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen2.5-7B-Instruct",
        "Team-ACE/ToolACE-2-Llama-3.1-8B",
    ],
)
def test_it_is_of_the_same_architecture_and_has_the_same_tokenizer_and_template(
    name: str, source: Path, tmp_path: Path
) -> None:
    from training.rollout.policy import load_policy

    config: dict[str, Any] = {**(shipped_config(name) or {}), "vocab_size": 384}
    made = tmp_path / "made"
    make_stand_in(config, str(source), made)
    small = json.loads((made / "config.json").read_text())
    assert small["model_type"] == config["model_type"]
    assert small["vocab_size"] == 384
    assert small["max_position_embeddings"] == config["max_position_embeddings"]
    assert small["tie_word_embeddings"] == config["tie_word_embeddings"]
    shape = shape_of(small)
    assert shape.parameters < PARAMETERS
    assert shape.layers == 2
    assert shape.queries == 2 * shape.keys, "queries share keys, as they do in the model"
    assert bool(shape.routed) == ("num_experts" in config)
    for file in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (made / file).read_bytes() == (source / file).read_bytes()
    policy = load_policy(str(made), "cpu")
    assert policy.model.get_output_embeddings().weight.shape[0] == 384


def test_a_model_that_is_small_already_does_not_grow(source: Path, tmp_path: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    make_stand_in(config, str(source), tmp_path / "made")
    assert shape_of(json.loads((tmp_path / "made" / "config.json").read_text())).layers == config["num_hidden_layers"]


def test_an_architecture_that_nobody_knows_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"policy.path: .*: this model cannot be built here"):
        make_stand_in({"model_type": "nonesuch"}, str(source), tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_tokenizer_that_cannot_be_fetched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from training.rollout import policy

    monkeypatch.setattr(policy, "hub_trouble", lambda _: "ConnectError: no route")
    config = shipped_config("Qwen/Qwen3-1.7B") or {}
    said = r"some-account/some-model is not a folder, the hub is out of reach \(ConnectError: no route\), and its cache"
    with pytest.raises(InputError, match=said):
        make_stand_in(config, "some-account/some-model", tmp_path / "made")


def test_weights_are_not_copied(source: Path, tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (source / name).touch()
    make_stand_in(json.loads((source / "config.json").read_text()), str(source), tmp_path / "made")
    made = {file.name for file in (tmp_path / "made").iterdir()}
    assert made == {"model.safetensors", *(file.name for file in source.iterdir() if not file.match("*model*"))}
    assert (tmp_path / "made" / "model.safetensors").read_bytes() != b""
