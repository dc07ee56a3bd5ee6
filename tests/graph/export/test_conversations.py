"""Trajectories as conversations with tools: each answer follows its call, and a chat template renders them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_here

from environments.base import MalformedCall, Observation, ObservationStatus, ToolCall
from graph.export.messages import chat_messages
from memory.records import Step, Trajectory, TrajectoryTurn
from memory.run import RunDirectory


@pytest.fixture(scope="module")
def conversations(evolved: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    output = tmp_path_factory.mktemp("formats") / "openai"
    done = run_here("graph.export.__main__", str(evolved.root), "--output", str(output), "--format", "openai")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (output / "conversations.jsonl").read_text().split("\n")[:-1]]


def test_calls_and_answers_alternate_and_text_that_was_no_call_is_said() -> None:
    call = ToolCall(name="ls", arguments={"a": True, "name": "\u00e9"})
    seen = Observation(text="a.txt", status=ObservationStatus.OK)
    turns = (
        TrajectoryTurn(
            text="What is here?",
            steps=(
                Step(action=call, observation=seen),
                Step(
                    action=MalformedCall(text="ls(", reason="unclosed"),
                    observation=Observation(text="not a call", status=ObservationStatus.MALFORMED),
                ),
            ),
            ended=True,
        ),
        TrajectoryTurn(text="And now?"),
    )
    one = Trajectory(id="r", task_id="t", iteration=0, step=1, sample=0, turns=turns)
    function = {"name": "ls", "arguments": '{"a": true, "name": "\u00e9"}'}
    assert chat_messages(one) == [
        {"role": "user", "content": "What is here?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
        },
        {"role": "tool", "name": "ls", "tool_call_id": "call00000", "content": "a.txt"},
        {"role": "assistant", "content": "ls("},
        {"role": "user", "content": "not a call"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "And now?"},
    ]


def test_each_answer_of_a_tool_follows_its_call(conversations: list[dict[str, Any]]) -> None:
    for row in conversations:
        offered = {tool["function"]["name"] for tool in row["tools"]}
        for before, message in zip([None, *row["messages"]], row["messages"], strict=False):
            if message["role"] == "tool":
                (call,) = before["tool_calls"]
                assert call["id"] == message["tool_call_id"]
                assert call["function"]["name"] in offered
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert len({row["metadata"]["id"] for row in conversations}) == len(conversations) == 60


@pytest.mark.slow
def test_chat_templates_render_every_conversation(conversations: list[dict[str, Any]]) -> None:
    import trl
    from transformers.utils.chat_template_utils import render_jinja_template

    text = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    for row in conversations:
        (rendered,), _ = render_jinja_template(
            conversations=[row["messages"]], tools=row["tools"], chat_template=text, bos_token="", eos_token=""
        )
        for message in row["messages"]:
            assert message["content"].strip() in rendered
        for call in (call for message in row["messages"] for call in message.get("tool_calls", ())):
            given = call["function"]["arguments"]
            assert given in rendered or json.dumps(json.loads(given), separators=(",", ":")) in rendered
            assert json.dumps(given) not in rendered, "the arguments are a text within a text"
