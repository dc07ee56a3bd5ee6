"""What a run would fail for is said before anything is written: each mistake in one sentence that names its key."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.chat_models import tokenizer
from support.made_run import first_tasks
from typer.testing import CliRunner

import graph.check_recipe
import graph.run_iteration
import graph.seed_tasks
from environments.base import InputError
from environments.bfcl.benchmark import BFCLEnvironment
from environments.checkout import QUICKSTART
from graph.check_recipe import check_run
from graph.settings import load_recipe
from memory.jsonl import write_jsonl
from training.rollout.policy import hub_trouble

STARTER = QUICKSTART.parent / "starter"
OWN = ("environment={name: 'environments.example:depot'}", "evaluation.set=null")


def told(folder: Path, *overrides: str) -> str:
    """What the preflight says of the quickstart's recipe with ``overrides``, in which {} is ``folder``."""
    with pytest.raises(InputError) as refused:
        check_run(load_recipe(QUICKSTART, [one.replace("{}", str(folder)) for one in overrides]))
    return str(refused.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Policies that cannot be trained, and files of tasks that cannot be scored."""
    folder = tmp_path_factory.mktemp("preflight")
    for name, missing in (("bare", "model.safetensors"), ("shapeless", "config.json"), ("mute", "tokenizer.json")):
        shutil.copytree(STARTER, folder / name, ignore=shutil.ignore_patterns(missing))
    shutil.copytree(STARTER, folder / "adapter")
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    (folder / "empty.jsonl").write_text("")
    (folder / "torn.jsonl").write_text('{"id": ')
    write_jsonl(folder / "bfcl.jsonl", first_tasks())
    shutil.copytree(STARTER, folder / "toolless", ignore=shutil.ignore_patterns("coevolve.json", "tokenizer*"))
    tokenizer("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}").save_pretrained(folder / "toolless")
    return folder


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("signals.contexts=unguided", "contexts: unguided"),
        ("signals.contexts=coverage", "contexts: coverage"),
    ],
)
def test_contexts_that_begin_in_start_states_need_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, key: str
) -> None:
    monkeypatch.setattr(BFCLEnvironment, "starts", lambda self: ())
    said = f"signals.{key} needs a start state, and starts() of the environment bfcl is empty: give it one"
    assert told(tmp_path, override) == said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["policy.path={}/none"], "the policy {}/none does not exist"),
        (["policy.path={}/bare"], "policy.path: {}/bare holds no weights"),
        (["policy.path={}/shapeless"], "policy.path: {}/shapeless holds no config.json"),
        (["policy.path={}/mute"], "policy.path: {}/mute holds no tokenizer.json"),
        (["policy.path={}/adapter"], "policy.path: {}/adapter is a LoRA adapter"),
        (["policy.path={}/toolless"], "does not document tools"),
        (["policy.thinking=true"], "policy.thinking: "),
        (["policy.documentation=lines"], "has no chat template, its rendering is compact: leave it null"),
        (["policy.tools_shown=5"], "policy.tools_shown: "),
        (["evaluation.max_tokens=1025"], "evaluation.max_tokens is 1025 and "),
        (["policy.device=cuda"], "policy.device: cuda was asked for"),
        (["training.max_tokens=5000"], "training.max_tokens is 5000 and "),
        (["evaluation.set=nope"], "evaluation.set: no evaluation set is called 'nope'"),
        (["evaluation.set=templated-test"], "evaluation.set: templated-test is held out"),
        (["evaluation={set: null, tasks: '{}/none.jsonl'}"], "{}/none.jsonl does not exist"),
        (["evaluation={set: null, tasks: '{}/torn.jsonl'}"], "{}/torn.jsonl, line 1: "),
        (["evaluation={set: null, tasks: '{}/empty.jsonl'}"], "evaluation.tasks: {}/empty.jsonl holds no task"),
        ([*OWN, "evaluation.tasks={}/bfcl.jsonl"], "is of bfcl, the run acts in depot"),
        ([*OWN, "environment.options={shelves: 3}"], "environment.options: environments.example:depot does not take"),
        (["environment={name: 'nowhere.at:all'}", "evaluation.set=null"], "there is no module 'nowhere'"),
        (["tasks={initial: '{}/none.jsonl'}"], "tasks.initial: {}/none.jsonl cannot be read"),
        (["roles.reflector={kind: chat, model: m}"], "the environment variable OPENAI_API_KEY is not set"),
        (["roles.explorer={kind: chat}"], "roles.explorer.kind is chat, but no model is given"),
    ],
)
def test_each_thing_that_is_missing_is_told_by_its_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], says: str
) -> None:
    for name in ("OPENAI_API_KEY", "COEVOLVE_CHAT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    if "cuda" in says and _has_cuda():
        pytest.skip("this machine has a GPU")
    sentence = told(folder, *overrides)
    assert says.replace("{}", str(folder)) in sentence
    assert "\n" not in sentence


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def test_a_hub_that_cannot_be_asked_is_said_to_be_that(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from httpx2 import ConnectError
    from huggingface_hub.errors import RepositoryNotFoundError

    def asked(error: Exception) -> str:
        def model_info(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        return told(folder, "policy.path=some-account/some-model")

    missing = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    assert "the hub has no model some-account/some-model" in asked(missing)
    assert "cannot be fetched from the hub (ConnectError: no route): name a folder" in asked(ConnectError("no route"))
    hub_trouble.cache_clear()


def test_the_quickstart_passes_and_what_needs_no_policy_does_not_look_at_it(folder: Path) -> None:
    check_run(load_recipe(QUICKSTART))
    check_run(load_recipe(QUICKSTART, [f"policy.path={folder}/none"]), trains=False)


def test_check_recipe_looks_at_what_the_machine_must_have(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"policy: {{path: {tmp_path}/none}}\n")
    result = CliRunner().invoke(graph.check_recipe.app, [str(recipe)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"error: {recipe}: the policy {tmp_path}/none does not exist")
    recipe.write_text("# nothing\n")
    result = CliRunner().invoke(graph.check_recipe.app, [str(recipe)])
    assert "is right (it sets nothing: every setting has its default)" in result.stdout


def test_an_environment_on_top_of_anothers_recipe_is_not_blamed_on_the_file() -> None:
    with pytest.raises(InputError, match=r"^environment.name: there is no module 'nowhere'"):
        load_recipe(QUICKSTART, ["environment.name=nowhere.at:all"])
    with pytest.raises(InputError, match=r"^--set environment.name=environments.example:depot on top of .*: evaluati"):
        load_recipe(QUICKSTART, ["environment.name=environments.example:depot"])
