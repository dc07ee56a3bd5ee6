"""TRL's own trainers, unchanged, take a step on exported tasks as they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.chat_models import new_tokenizer, random_model, template
from support.commands import run_here
from support.late import Late

from environments.base import TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.turns import behind
from graph.export.conversations import task_messages
from memory.run import RunDirectory
from training.rendering.base import ASKS_BACK, DONE

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

FILES = "GorillaFileSystem"
MAKE = ToolCall(name="mkdir", arguments={"dir_name": "a"})
TOUCH = ToolCall(name="touch", arguments={"file_name": "b.txt"})


def two_turns() -> TaskSpec:
    """``touch`` becomes available in the second turn."""
    return TaskSpec(
        environment="bfcl",
        split="train",
        classes=(FILES,),
        turns=("Make the folder a.", "Now the file b.txt."),
        initial_state={FILES: {"root": {"home": {"type": "directory", "contents": {}}}}},
        tools=("mkdir", "touch"),
        reference=((MAKE,), (TOUCH,)),
        withheld={1: ("touch",)},
    )


def test_a_turn_without_calls_ends_with_other_words_than_one_that_is_done() -> None:
    environment, task = BFCLEnvironment((FILES,)), two_turns().model_copy(update={"reference": ((), (TOUCH,))})
    whole, cut = task_messages(environment, task), task_messages(environment, behind(task, 1))
    said = [one["content"] for one in whole.completion if one["role"] == "assistant"]
    assert said == [ASKS_BACK, "", DONE]
    assert cut.prompt[1]["content"] == ASKS_BACK


def roles(messages: list[dict[str, Any]]) -> str:
    return " ".join(message["role"] for message in messages)


def test_a_task_of_two_turns_and_one_behind_its_first() -> None:
    environment, task = BFCLEnvironment((FILES,)), two_turns()
    whole, cut = task_messages(environment, task), task_messages(environment, behind(task, 1))
    assert (roles(whole.prompt), roles(cut.prompt)) == ("user", "user assistant tool assistant user")
    assert roles(whole.completion) == "assistant tool assistant user assistant tool assistant"
    assert whole.prompt + whole.completion == cut.prompt + cut.completion
    for one in (whole, cut):
        assert [tool["function"]["name"] for tool in one.tools] == ["mkdir"], "what the first turn documents"
    assert whole.prompt[0]["content"] == "Make the folder a."
    asked = cut.prompt[-1]["content"]
    assert asked.startswith('These tools are available from now on:\n{"type": "function"')
    assert asked.endswith("\n\nNow the file b.txt.")
    assert [m["tool_calls"][0]["id"] for m in [*cut.prompt, *cut.completion] if "tool_calls" in m] == [
        "call00000",
        "call00001",
    ]


@pytest.fixture(scope="module")
def loaded(evolved: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The tasks of the exported folder, as users load them, and a tiny Qwen3."""
    import datasets

    folder = tmp_path_factory.mktemp("trl")
    done = run_here("graph.export.__main__", str(evolved.root), "--output", str(folder / "set"))
    assert done.returncode == 0, done.stderr
    data = datasets.load_dataset(str(folder / "set"), "tasks", split="train", cache_dir=str(folder / "cache"))
    words = [json.dumps([row["prompt"], row["completion"], row["tools"]], ensure_ascii=False) for row in data]
    tokenizer = new_tokenizer(template("qwen3"), words, 1500)
    return SimpleNamespace(data=data, tokenizer=tokenizer, model=lambda: random_model("qwen3", tokenizer))


QUIET: dict[str, Any] = {"max_steps": 1, "report_to": [], "use_cpu": True, "bf16": False, "disable_tqdm": True}


@pytest.mark.slow
def test_the_trainer_of_demonstrations_learns_the_calls_and_no_answer(loaded: SimpleNamespace, tmp_path: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(str(tmp_path), assistant_only_loss=True, max_length=None, per_device_train_batch_size=2, **QUIET)
    trainer = SFTTrainer(loaded.model(), args=config, train_dataset=loaded.data, processing_class=loaded.tokenizer)
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    assert any(not torch.equal(before[name], value) for name, value in trainer.model.named_parameters())
    assert len(trainer.train_dataset) == len(loaded.data)
    for row, given in zip(trainer.train_dataset, loaded.data, strict=True):
        learnt = [label for label in row["labels"] if label != -100]
        text, shown = loaded.tokenizer.decode(learnt), loaded.tokenizer.decode(row["input_ids"])
        calls = [call["function"] for message in given["completion"] for call in message.get("tool_calls", ())]
        assert text.count("<tool_call>") == len(calls) > 0
        assert all(json.dumps(call["arguments"], ensure_ascii=False) in text for call in calls)
        assert "<tool_response>" not in text
        assert shown.count("<tool_response>") == len(calls)
        assert all(f'"name": "{tool["function"]["name"]}"' in shown for tool in given["tools"])


@pytest.mark.slow
def test_the_trainer_of_grpo_takes_a_step(loaded: SimpleNamespace, tmp_path: Path) -> None:
    from trl import GRPOConfig, GRPOTrainer

    seen: list[dict[str, Any]] = []

    def words(completions: list[Any], **columns: list[Any]) -> list[float]:
        seen.append(columns)
        return [float(len(one[0]["content"])) for one in completions]

    config = GRPOConfig(
        str(tmp_path), num_generations=2, max_completion_length=8, per_device_train_batch_size=2, **QUIET
    )
    trainer = GRPOTrainer(loaded.model(), words, config, train_dataset=loaded.data, processing_class=loaded.tokenizer)
    trainer.train()
    assert trainer.state.global_step == 1
    (columns,) = seen
    by_id = {row["task_id"]: row for row in loaded.data}
    for name in ("environment", "start_state", "task", "tools"):
        assert columns[name] == [by_id[one][name] for one in columns["task_id"]]
