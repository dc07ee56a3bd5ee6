"""Policies on disk: what was saved is what is loaded, and what cannot be loaded is told in one sentence."""

from __future__ import annotations

import pickle
import socket
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from support import ROOT as CHECKOUT
from support.bfcl_tasks import ENVIRONMENT
from support.chat_models import save_model, template, tokenizer
from support.late import Late
from support.made_policy import made_tasks, trained_policy

from environments.base import InputError
from environments.checkout import OURS
from memory.run import PolicyDirectory
from training.embedded.compact import CompactRendering, CompactSettings
from training.rollout.episodes import EpisodeLimits, EpisodeRequest, run_episodes
from training.rollout.policy import PolicyCard, hub_trouble, load_policy, save_policy
from training.settings import PolicySettings

torch = Late("torch")
in_process = Late("training.rollout.in_process")


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
    PolicyDirectory(made).card.write_text(text)
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
    results = run_episodes(policy, in_process.InProcessSampler(policy.model), ENVIRONMENT, asked, EpisodeLimits(), 0.0)
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


@pytest.mark.parametrize(
    "name", ["./none", "../none", "a/b.git", "a--b/c", "-a/b", "a/.b", "é/b", "a/b\n", "x" * 300, "\0"]
)
def test_what_is_no_id_of_the_hub_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(HfApi, "model_info", Mock(side_effect=AssertionError))
    with pytest.raises(InputError, match="does not exist"):
        load_policy(name, "cpu")


def test_a_mistyped_folder_is_not_asked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    with pytest.raises(InputError, match="the policy recipes/startre does not exist"):
        load_policy("recipes/startre")


@pytest.fixture
def unplugged(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """No socket connects and no name is looked up; what was tried."""
    tried: list[object] = []

    def refuse(*asked: object) -> None:
        tried.append(asked)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    hub_trouble.cache_clear()
    return tried


def test_names_of_our_own_are_never_asked_for_on_the_hub(tmp_path: Path, monkeypatch, unplugged) -> None:
    monkeypatch.chdir(tmp_path)
    starter = str(CHECKOUT / "recipes" / "starter")
    assert load_policy(PolicySettings().path, "cpu").path == starter
    for name in (*sorted(OURS), "recipes/startre", "runs/depot-starter", "build/starter"):
        with pytest.raises(InputError, match="does not exist"):
            load_policy(name if "/" in name else f"{name}/none", "cpu")
    assert unplugged == []


def test_every_folder_of_the_checkout_is_a_name_of_ours() -> None:
    made_by_make = {"runs", "build"}
    listed = {path.name for path in CHECKOUT.iterdir() if path.is_dir() and path.name[0].isalpha()}
    assert {name for name in listed if (CHECKOUT / name / "__init__.py").exists()} <= OURS
    assert {"recipes", "results", "notebooks", "benchmarks", "tests"} | made_by_make <= OURS


def test_a_hub_out_of_reach_is_asked_once_and_named(unplugged) -> None:
    with pytest.raises(InputError, match=r"the hub is out of reach \(ConnectError: .*\), and its cache here"):
        load_policy("nobody-of-this-name/nothing", "cpu")
    assert len(unplugged) <= 2, "one short question, not the libraries' retries"


def test_a_model_that_the_hub_does_not_have_is_told(monkeypatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RepositoryNotFoundError("404", response=Mock())

    monkeypatch.setattr(HfApi, "model_info", missing)
    hub_trouble.cache_clear()
    with pytest.raises(InputError, match="the hub has no model nobody-of-this-name/nothing that may be read"):
        load_policy("nobody-of-this-name/nothing", "cpu")


class _Trap:
    """Makes a file beside the pickle when it is read."""

    def __init__(self, folder: Path) -> None:
        self.sprung = folder / "sprung"

    def __reduce__(self) -> object:
        return Path.touch, (self.sprung,)


def _trapped(file: Path, as_zip: bool) -> None:
    file.unlink(missing_ok=True)
    if as_zip:
        torch.save({"weight": _Trap(file.parent)}, file)
    else:
        file.write_bytes(pickle.dumps({"weight": _Trap(file.parent)}))


SPOILT = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "cut in its header": lambda file: file.write_bytes(file.read_bytes()[:20]),
    "empty": lambda file: file.write_bytes(b""),
    "garbage": lambda file: file.write_bytes(b"no weights" * 100),
    "a pickle by another name": lambda file: _trapped(file, as_zip=False),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_weights_that_cannot_be_read_are_named(tmp_path: Path, spoil) -> None:
    made = saved(tmp_path / "p", PolicyCard(rendering="compact"))
    spoil(made / "model.safetensors")
    with pytest.raises(InputError, match=rf"{made}/model\.safetensors is cut or damaged \(.*\): restore it"):
        load_policy(str(made), device="cpu")
    assert not (made / "sprung").exists()


@pytest.mark.parametrize("as_zip", [True, False])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_pickled_weights_are_never_read(tmp_path: Path, name: str, as_zip: bool) -> None:
    made = _without_weights(tmp_path)
    _trapped(made / name, as_zip)
    with pytest.raises(InputError, match=rf"{made}/{name} holds pickled weights, .* never read: save the model as"):
        load_policy(str(made), device="cpu")
    assert not (made / "sprung").exists()


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
@pytest.mark.parametrize("spoil", [*SPOILT.values(), lambda file: _trapped(file, as_zip=True)], ids=[*SPOILT, "a trap"])
def test_the_trainers_state_is_looked_at_before_it_is_loaded(tmp_path: Path, name: str, spoil) -> None:
    from training.grpo.trl_run import check_state

    state = {"numbers": torch.ones(100), "numpy": np.random.RandomState(0).get_state(), "rate": 0.1}
    for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save(state, tmp_path / file)
    check_state(tmp_path)
    spoil(tmp_path / name)
    with pytest.raises(
        InputError, match=rf"{tmp_path}/{name} is cut or damaged, .*restore {tmp_path} from a copy"
    ) as told:
        check_state(tmp_path)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "sprung").exists()


def test_episodes_beyond_the_models_positions_are_refused(tmp_path: Path) -> None:
    policy = load_policy(str(save_model(tmp_path, "qwen2_5")), "cpu")
    asked = [EpisodeRequest(task=made_tasks()[0], seed=0)]
    with pytest.raises(InputError, match=r"max_tokens is 32769 and .* has 32768 positions: lower max_tokens"):
        run_episodes(
            policy,
            in_process.InProcessSampler(policy.model),
            ENVIRONMENT,
            asked,
            EpisodeLimits(max_tokens=32769),
            0.0,
        )


def test_stop_ids_are_those_of_tokenizer_and_generation_config(tmp_path: Path) -> None:
    made = save_model(tmp_path, "qwen3")
    known = tokenizer(template("qwen3"))
    both = set(known.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert load_policy(str(made), "cpu").rendering.begin().stop_ids == both
    (made / "generation_config.json").unlink()
    assert load_policy(str(made), "cpu").rendering.begin().stop_ids == {known.eos_token_id}
