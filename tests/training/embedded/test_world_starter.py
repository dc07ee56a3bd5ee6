"""The shipped initial policies that nothing here makes anew: what is recorded of them holds."""

from __future__ import annotations

import hashlib
import json

import pytest

from environments.bfcl.official import CLASSES, tool_names
from environments.checkout import ROOT
from memory.run import read_json
from training.embedded.compact import CALL, cue_words
from training.rollout.policy import PolicyCard
from training.warm_start import RECORD

FOLDER = ROOT / "recipes" / "starter-world"


@pytest.mark.parametrize("name", ["starter-seal", "starter-world"])
def test_weights_are_those_of_their_record_and_every_cue_is_a_token(name: str) -> None:
    folder = ROOT / "recipes" / name
    weights, record = (folder / "model.safetensors").read_bytes(), json.loads((folder / RECORD).read_text())
    assert hashlib.sha256(weights).hexdigest() == record["weights_sha256"]
    assert 4 * record["parameters"] <= len(weights) < 16_000_000
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    assert set(cue_words()) <= {token["content"] for token in vocabulary}


def test_it_names_every_function_and_more_values_than_the_starter_of_two_classes() -> None:
    tokens = {one["content"] for one in json.loads((FOLDER / "tokenizer.json").read_text())["added_tokens"]}
    names = tool_names(CLASSES)
    assert len(names) == 128
    assert {f"{CALL}{name}" for name in names} <= tokens
    card = read_json(FOLDER / "coevolve.json", PolicyCard)
    assert card.compact is not None
    assert (card.compact.references, "$16" in tokens, "$17" in tokens) == (16, True, False)
