"""Trajectories for other programs: their rules, a chat template that renders them, and the packages where installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.commands import run_here

from environments.base import MalformedCall, Observation, ObservationStatus, ToolCall
from graph.export.messages import chat_messages
from memory.records import Step, Trajectory, TrajectoryTurn
from memory.run import RunDirectory


@pytest.fixture(scope="module")
def written(evolved: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("formats")
    made: dict[str, Any] = {"folder": folder}
    for name, options in (
        ("openai", ["--format", "openai"]),
        ("objects", ["--format", "openai", "--arguments", "objects"]),
        ("atif", ["--format", "atif", "--limit", "25"]),
        ("inspect", ["--format", "inspect", "--limit", "25"]),
    ):
        output = str(folder / name)
        done = run_here("graph.export.__main__", str(evolved.root), "--output", output, *options)
        assert done.returncode == 0, done.stderr
    for name in ("openai", "objects"):
        lines = (folder / name / "conversations.jsonl").read_text().split("\n")[:-1]
        made[name] = [json.loads(line) for line in lines]
    for name in ("atif", "inspect"):
        made[name] = [json.loads(path.read_text()) for path in sorted((folder / name).glob("*.json"))]
    return SimpleNamespace(**made)


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
    assert chat_messages(one, "objects")[1]["tool_calls"][0]["function"]["arguments"] == call.arguments
    assert chat_messages(one, longest=4)[0]["content"] == "What ... (13 characters)"


def test_each_answer_of_a_tool_follows_its_call(written: SimpleNamespace) -> None:
    for row in written.openai:
        offered = {tool["function"]["name"] for tool in row["tools"]}
        for before, message in zip([None, *row["messages"]], row["messages"], strict=False):
            if message["role"] == "tool":
                (call,) = before["tool_calls"]
                assert call["id"] == message["tool_call_id"]
                assert call["function"]["name"] in offered
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert len({row["metadata"]["id"] for row in written.openai}) == len(written.openai) == 60


@pytest.mark.slow
@pytest.mark.parametrize(("template", "form"), [("qwen3", "openai"), ("qwen2_5", "objects")])
def test_chat_templates_render_every_conversation(written: SimpleNamespace, template: str, form: str) -> None:
    import trl
    from transformers.utils.chat_template_utils import render_jinja_template

    text = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    rows = getattr(written, form)
    for row in rows:
        (rendered,), _ = render_jinja_template(
            conversations=[row["messages"]], tools=row["tools"], chat_template=text, bos_token="", eos_token=""
        )
        for message in row["messages"]:
            assert message["content"].strip() in rendered
        for call in (call for message in row["messages"] for call in message.get("tool_calls", ())):
            given = call["function"]["arguments"]
            given = given if isinstance(given, str) else json.dumps(given)
            assert given in rendered or json.dumps(json.loads(given), separators=(",", ":")) in rendered
            assert json.dumps(given) not in rendered, "the arguments are a text within a text"


def test_atif_documents_keep_the_formats_rules(written: SimpleNamespace) -> None:
    """Its rules as the specification has them; the package of its models reads them below where it is installed."""
    assert len(written.atif) == 25
    for document in written.atif:
        assert document["schema_version"] == "ATIF-v1.7"
        assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
        assert document["final_metrics"]["total_steps"] == len(document["steps"])
        for step in document["steps"]:
            assert step["source"] in ("user", "agent")
            assert step["source"] == "agent" or not {"tool_calls", "observation"} & step.keys()
            calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
            for result in step.get("observation", {}).get("results", ()):
                assert result.get("source_call_id") in calls or (not calls and "source_call_id" not in result)
        assert document["extra"]["task_id"].startswith("task-")


def test_the_limit_spreads_over_the_steps_of_an_iteration(written: SimpleNamespace) -> None:
    assert {document["extra"]["step"] for document in written.atif} == {1, 2, 3}


def test_the_log_of_inspect_has_its_head_before_its_samples(written: SimpleNamespace) -> None:
    (log,) = written.inspect
    assert list(log) == ["version", "status", "eval", "plan", "results", "stats", "samples"]
    solved = [sample["scores"]["success"]["value"] for sample in log["samples"]].count("C")
    assert log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == solved / 25
    assert 0 < solved < 25


def test_the_packages_of_the_formats_read_them(written: SimpleNamespace) -> None:
    atif = pytest.importorskip("atif")
    reader = pytest.importorskip("inspect_ai.log")
    for path in (written.folder / "atif").glob("*.json"):
        atif.Trajectory.model_validate_json(path.read_text())
    (info,) = reader.list_eval_logs(str(written.folder / "inspect"))
    assert len(reader.read_eval_log(info).samples) == 25
