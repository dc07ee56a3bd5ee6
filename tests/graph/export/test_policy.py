"""A run's policy as a folder: what is in it, and what its card says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import run_here

from graph.recipe import load_recipe
from memory.run import PolicyDirectory, RunDirectory
from memory.strict_yaml import parse_yaml


def export(run: RunDirectory, output: Path, *options: str):
    return run_here("graph.export.__main__", str(run.root), "--output", str(output), "--policy", *options)


def card_of(folder: Path) -> tuple[dict, str]:
    _, front, card = (folder / "README.md").read_text().split("---\n", 2)
    return parse_yaml(front, "card"), card


@pytest.mark.slow
def test_the_folder_has_what_others_load_and_nothing_of_the_trainer(evolved: RunDirectory, tmp_path: Path) -> None:
    done = export(evolved, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json", "coevolve.json"} <= names
    assert not names & {"optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"}
    assert PolicyDirectory(tmp_path / "out").mark.name not in names
    front, card = card_of(tmp_path / "out")
    assert front["library_name"] == "transformers"
    assert front["model-index"][0]["results"][0]["metrics"] == [{"type": "success", "value": 0.35, "name": "success"}]
    for words in (
        "| before training | 0.250 | 0.140 to 0.400 | 0 |",
        "| after round 0 | 0.350 | 0.220 to 0.500 | 0 |",
        "templated-dev, n=40",
        "It is not a general language model",
        "coevolve evaluate --environment bfcl --evaluation-set templated-dev",
    ):
        assert words in card
    assert str(evolved.root) not in card


def test_an_adapter_gets_a_filled_card_in_place_of_the_librarys(copied: RunDirectory, tmp_path: Path) -> None:
    policy = copied.policy_path / "checkpoint-3"
    (policy / "model.safetensors").rename(policy / "adapter_model.safetensors")
    PolicyDirectory(policy).card.unlink()
    (policy / "README.md").write_text("base_model: x\n[More Information Needed]")
    (policy / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-4B"}))
    settings = load_recipe(copied.settings_path, ["policy.path=Qwen/Qwen3-4B"])
    copied.save_settings(settings)  # an edited file would be refused
    done = export(copied, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    front, card = card_of(tmp_path / "out")
    assert (front["base_model"], front["base_model_relation"]) == ("Qwen/Qwen3-4B", "adapter")
    assert front["library_name"] == "peft"
    assert "More Information Needed" not in card
    assert "AutoPeftModelForCausalLM" in card
    assert "general language model" not in card


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda policy: (policy / "model.safetensors").write_bytes(b"cut"), "is cut or damaged"),
        (lambda policy: (policy / "model.safetensors").unlink(), "holds no weights"),
        (lambda policy: policy.rename(policy.with_name("away")), "is gone"),
    ],
)
def test_a_policy_that_cannot_be_read_is_refused(copied: RunDirectory, tmp_path: Path, damage, words: str) -> None:
    damage(copied.policy_path / "checkpoint-3")
    done = export(copied, tmp_path / "out")
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_folder_loads_as_a_policy(evolved: RunDirectory, tmp_path: Path) -> None:
    from training.rollout.policy import load_policy

    assert export(evolved, tmp_path / "out").returncode == 0
    policy = load_policy(str(tmp_path / "out"), "cpu")
    assert policy.rendering.name == "compact"
