"""References said in a policy's own format: ids, masks and results, in the compact and in chat renderings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.bfcl_tasks import ENVIRONMENT, FILES, call
from support.chat_models import CALL_FORMATS, save_model
from support.made_policy import made_tasks, task, trained_policy

from environments.base import EnvironmentFault, InputError
from memory.records import Task
from training.embedded.new_policy import reference_lines
from training.rendering.base import EndTurn
from training.rendering.chat_template import check_writing
from training.rollout.episodes import EpisodeLimits, in_order, play_references
from training.rollout.policy import Policy, load_policy
from training.settings import RenderingOptions

WIDE = EpisodeLimits(max_new_tokens=200, max_tokens=30000)


@pytest.fixture(scope="module", params=CALL_FORMATS)
def chat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(str(save_model(tmp_path_factory.mktemp(request.param), request.param)), "cpu")


def several_turns() -> Task:
    return task((call("mkdir", dir_name="box"), call("pwd")), (call("touch", file_name="a.txt"),), group=FILES)


def control_tokens() -> Task:
    """Values that spell what must stay text in every template."""
    text = '<|im_end|> <tool_response>"\\ <|eot_id|>\u00e9'
    return task((call("touch", file_name="a.txt"), call("echo", content=text, file_name="a.txt")), group=FILES)


def test_the_compact_reference_has_the_lines_that_the_tokenizer_was_trained_on() -> None:
    policy = trained_policy(1)
    tasks = made_tasks()[:15]
    assert any(len(one.turns) > 1 for one in tasks)
    results = play_references(policy, ENVIRONMENT, tasks, WIDE)
    for one, result in zip(tasks, results, strict=True):
        lines = list(reference_lines(ENVIRONMENT, one, policy.rendering.settings))
        assert policy.tokenizer.decode([*result.prompt_ids, *result.completion_ids]) == "".join(lines)
        written = [token for token, own in zip(result.completion_ids, result.mask, strict=True) if own]
        assert policy.tokenizer.decode(written) == "".join(line for line in lines if line[0] == "A")
        assert result.outcome.success
        assert [tuple(s.action for s in turn.steps) for turn in result.turns] == list(one.reference)
        assert all(turn.ended for turn in result.turns)


def test_lists_of_documented_choices_are_said_in_the_order_of_the_documentation() -> None:
    tools = ENVIRONMENT.tools(["lockDoors", "display_log"])
    doors = call("lockDoors", unlock=True, door=["rear_right", "driver"])
    free = call("display_log", messages=["b", "a"])
    made, same = in_order([doors, free], tools)
    assert made.arguments == {"unlock": True, "door": ["driver", "rear_right"]}
    assert same == free


def test_a_call_that_its_task_does_not_offer_is_refused_in_a_sentence() -> None:
    made = several_turns().model_copy(update={"tools": ("pwd",)})
    with pytest.raises(InputError, match="a reference calls mkdir, which its task does not offer"):
        play_references(trained_policy(1), ENVIRONMENT, [made], WIDE)


def test_a_reference_that_the_format_cannot_hold_fails(chat: Policy) -> None:
    """The tokenizer writes another name (NFC), which is not executed in the call's place."""
    (result,) = play_references(chat, ENVIRONMENT, [task((call("touch", file_name="e\u0301"),), group=FILES)], WIDE)
    assert result.outcome is None or not result.outcome.success
    assert not result.turns[-1].ended
    assert not any(result.mask)


@pytest.mark.parametrize("make", [several_turns, control_tokens])
def test_a_chat_template_says_every_call_and_every_end(chat: Policy, make) -> None:
    made = make()
    (result,) = play_references(chat, ENVIRONMENT, [made], WIDE)
    assert result.outcome.success, result.outcome
    assert [tuple(s.action for s in turn.steps) for turn in result.turns] == list(made.reference)
    assert len(result.mask) == len(result.completion_ids) == len(result.logprobs)
    said = [ids for ids, written in _runs(result.completion_ids, result.mask) if written]
    assert len(said) == sum(map(len, made.reference)) + len(made.turns)
    assert all(ids[-1] in chat.rendering.stop_ids for ids in said)


def _runs(ids, mask):
    """Stretches of ids with equal mask. No two messages touch: something is always readable between them."""
    stretches: list[tuple[list[int], int]] = []
    for token, written in zip(ids, mask, strict=True):
        if not stretches or stretches[-1][1] != written:
            stretches.append(([], written))
        stretches[-1][0].append(token)
    return stretches


def test_a_conversation_is_the_templates_own(tmp_path: Path) -> None:
    policy = load_policy(str(save_model(tmp_path / "qwen2_5", "qwen2_5")), "cpu")
    made = several_turns()
    (result,) = play_references(policy, ENVIRONMENT, [made], WIDE)
    messages = []
    for turn in result.turns:
        messages.append({"role": "user", "content": turn.text})
        for step in turn.steps:
            function = {"name": step.action.name, "arguments": step.action.arguments}
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
            )
            messages.append({"role": "tool", "content": step.observation.text})
        messages.append({"role": "assistant", "content": "Done."})
    at_once = policy.tokenizer.apply_chat_template(messages, tokenize=False)
    text = policy.tokenizer.decode([*result.prompt_ids, *result.completion_ids])
    documented = re.compile(r"<\|im_start\|>system.*?<\|im_end\|>\n", re.DOTALL)  # tools are documented there
    assert documented.sub("", text, count=1) == documented.sub("", at_once, count=1).rstrip("\n")


def test_thinking_is_empty_where_the_template_shows_it(tmp_path: Path) -> None:
    path = str(save_model(tmp_path / "qwen3", "qwen3"))
    made = several_turns()
    for thinking, begins in ((None, "<think>\n\n</think>\n\n<tool_call>"), (False, "<tool_call>")):
        policy = load_policy(path, "cpu", options=RenderingOptions(thinking=thinking))
        (result,) = play_references(policy, ENVIRONMENT, [made], WIDE)
        said = [policy.tokenizer.decode(ids) for ids, written in _runs(result.completion_ids, result.mask) if written]
        assert said[0].startswith(begins)
        assert json.loads(said[0].split("<tool_call>")[1].split("</tool_call>")[0])["name"] == "mkdir"
        assert result.outcome.success


def test_a_template_that_cannot_be_read_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy(str(save_model(tmp_path / "qwen2_5", "qwen2_5")), "cpu")
    check_writing(policy.rendering)
    monkeypatch.setattr(policy.rendering.reader, "read", lambda *_: EndTurn(text="something else"))
    with pytest.raises(InputError, match=r"training\.expert: the chat template of .* cannot be read back"):
        play_references(policy, ENVIRONMENT, [several_turns()], WIDE)


@pytest.mark.parametrize(
    "limits",
    [
        EpisodeLimits(max_new_tokens=2, max_tokens=500),
        EpisodeLimits(max_new_tokens=48, max_tokens=30),
        EpisodeLimits(max_new_tokens=48, max_tokens=500, max_actions=1),
    ],
)
def test_a_reference_beyond_the_limits_does_not_succeed(limits: EpisodeLimits) -> None:
    policy = trained_policy(1)
    made = task((call("mkdir", dir_name="box"), call("touch", file_name="a.txt")), (call("pwd"),), group=FILES)
    (result,) = play_references(policy, ENVIRONMENT, [made], limits)
    assert result.infrastructure_error is None
    assert not result.outcome.success
    assert len(result.prompt_ids) + len(result.completion_ids) <= limits.max_tokens


def test_a_fault_of_the_environment_is_of_its_own_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Task] = []
    made, real = several_turns(), ENVIRONMENT.open

    def open_or_fail(one):
        opened.append(one)
        if len(opened) == 1:
            raise EnvironmentFault("the worker died")
        return real(one)

    monkeypatch.setattr(ENVIRONMENT, "open", open_or_fail)
    first, second = play_references(trained_policy(1), ENVIRONMENT, [made] * 2, WIDE)
    assert "the worker died" in first.infrastructure_error
    assert first.outcome is None
    assert second.outcome.success
