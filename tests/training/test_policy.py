"""Policies on disk: what was saved is what is loaded, and what cannot be loaded is told in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chat_models import save_model, template, tokenizer
from made_policy import environment, made_tasks, trained_policy

from environments.base import InputError
from training.compact import CompactRendering
from training.compact_text import CompactSettings
from training.policy import CARD, PolicyCard, load_policy, save_policy
from training.rollout import EpisodeLimits, EpisodeRequest, run_episodes


def saved(folder: Path, card: PolicyCard | None) -> Path:
    policy = trained_policy()
    save_policy(folder, policy.model, policy.tokenizer, card)
    return folder


def _file(path: Path) -> Path:
    path.write_text("x")
    return path


def _without_weights(folder: Path) -> Path:
    made = saved(folder / "p", PolicyCard(rendering="compact"))
    (made / "model.safetensors").unlink()
    return made


def _with_larger_vocabulary(folder: Path) -> Path:
    made = save_model(folder / "p", "qwen3")
    known = tokenizer(template("qwen3"))
    larger = type(known)(tokenizer_object=known.backend_tokenizer, **known.special_tokens_map)
    larger.chat_template = known.chat_template
    larger.add_tokens([f"word{number}" for number in range(100)])
    larger.save_pretrained(made)
    return made


def _with_card(folder: Path, text: str) -> Path:
    made = saved(folder / "p", None)
    (made / CARD).write_text(text)
    return made


def test_a_saved_policy_is_the_same_policy(tmp_path: Path) -> None:
    caps = CompactSettings(observation_chars=77)
    again = load_policy(str(saved(tmp_path / "p", PolicyCard(rendering="compact", compact=caps))), device="cpu")
    assert isinstance(again.rendering, CompactRendering)
    assert again.rendering.settings == caps
    assert not again.model.training
    for name, weight in trained_policy().model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name])
    text = 'U fill in 5 gallons of "x", then\nA @pwd\nA @lockDoors @unlock=true @door=[driver]\nO on the front\n'
    ids = again.tokenizer.encode(text, add_special_tokens=False)
    assert ids == trained_policy().tokenizer.encode(text, add_special_tokens=False)
    assert again.tokenizer.decode(ids) == text


def test_bfloat16_rolls_out(tmp_path: Path) -> None:
    card = PolicyCard(rendering="compact", compact=CompactSettings())
    policy = load_policy(str(saved(tmp_path / "p", card)), device="cpu", dtype="bfloat16")
    assert policy.model.dtype == torch.bfloat16
    asked = [EpisodeRequest(task=made, seed=0) for made in made_tasks()[:10]]
    results = run_episodes(policy, environment(), asked, EpisodeLimits(), 0.0)
    assert sum(r.outcome is not None and r.outcome.success for r in results) >= 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "absent", "does not exist: name a folder or a hub id"),
        (lambda folder: folder / "absent" / "deeper", "does not exist: name a folder or a hub id"),
        (lambda folder: _file(folder / "file"), "is a file: name the policy's folder"),
        (lambda folder: folder, "holds no tokenizer"),
        (_without_weights, "holds no causal language model"),
        (lambda folder: saved(folder / "plain", None), r"neither a chat template nor coevolve\.json"),
        (lambda folder: _with_card(folder, '{"rendering": "other"}'), r"coevolve\.json: rendering: "),
        (lambda folder: _with_card(folder, '{"rendering": "compact", "caps": 3}'), r"coevolve\.json: caps: "),
        (_with_larger_vocabulary, r"tokenizer of .* has ids up to \d+, its model knows 320: they do not match"),
    ],
)
def test_what_cannot_be_loaded_is_the_users_mistake(tmp_path: Path, make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_policy(str(make(tmp_path)), device="cpu")


def test_a_mistyped_folder_is_not_asked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    with pytest.raises(InputError, match="the policy recipes/startre does not exist"):
        load_policy("recipes/startre")


def test_episodes_beyond_the_models_positions_are_refused(tmp_path: Path) -> None:
    policy = load_policy(str(save_model(tmp_path, "qwen2_5")), "cpu")
    asked = [EpisodeRequest(task=made_tasks()[0], seed=0)]
    with pytest.raises(InputError, match=r"max_tokens is 32769 and .* has 32768 positions: lower max_tokens"):
        run_episodes(policy, environment(), asked, EpisodeLimits(max_tokens=32769), 0.0)


def test_stop_ids_are_those_of_tokenizer_and_generation_config(tmp_path: Path) -> None:
    made = save_model(tmp_path, "qwen3")
    known = tokenizer(template("qwen3"))
    both = set(known.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert load_policy(str(made), "cpu").rendering.begin().stop_ids == both
    (made / "generation_config.json").unlink()
    assert load_policy(str(made), "cpu").rendering.begin().stop_ids == {known.eos_token_id}
