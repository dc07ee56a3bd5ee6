"""A run's tasks as TRL's trainer acts in them: tools, user turns, rewards, and faults that are no reward."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.made_run import settings_for

from environments.base import EnvironmentFault, InputError, TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment, BFCLEpisode
from environments.turns import behind
from graph.export.conversations import task_messages
from graph.interop.attempt import FINISH_TURN
from graph.interop.trl_spec import CoEvolveSpec, TaskEnvironment, _tool, outcome_reward
from memory.records import Task
from memory.run import RunDirectory
from memory.tasks import admit

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")

NEXT = FINISH_TURN.name
FILES = "GorillaFileSystem"
MAKE = ToolCall(name="mkdir", arguments={"dir_name": "a"})
TOUCH = ToolCall(name="touch", arguments={"file_name": "b.txt"})
LIST = ToolCall(name="ls", arguments={})


def task(name: str, turns: Sequence[str], *reference: tuple[ToolCall, ...], **fields: Any) -> Task:
    root = {"home": {"type": "directory", "contents": {}}}
    given: dict[str, Any] = {"tools": ("mkdir", "touch"), "initial_state": {FILES: {"root": root}}} | fields
    return Task(
        id=name,
        origin="seed",
        environment="bfcl",
        split="train",
        classes=(FILES,),
        turns=tuple(turns),
        reference=reference,
        **given,
    )


ONE = task("one", ["Make the folder a."], (MAKE,))
TWO = task("two", ["Make the folder a.", "Now the file b.txt."], (MAKE,), (TOUCH,), withheld={1: ("touch",)})
BEHIND = Task.model_validate(behind(TWO, 1).model_dump() | {"id": "behind"})
OTHER = task("other", ["Make the folder a and look."], (MAKE, LIST), tools=("ls", "mkdir"))


def run_with(folder: Path, tasks: Sequence[Task], *overrides: str) -> RunDirectory:
    run = RunDirectory.create(folder / "run", settings_for(folder / "recipe", *overrides))
    admit(run, list(tasks))
    return run


@pytest.fixture
def spec(tmp_path: Path) -> CoEvolveSpec:
    return CoEvolveSpec(run_with(tmp_path, [ONE, TWO, BEHIND, OTHER]).root)


def opened(spec: CoEvolveSpec, name: str) -> TaskEnvironment:
    """The environment of a row, reset as TRL does it."""
    row = next(row for row in spec.train_dataset if row["task_id"] == name)
    made = spec.environment_factory[row["environment"]]()
    assert made.reset(**{key: value for key, value in row.items() if key != "environment"}) is None
    return made


def act(environment: TaskEnvironment, *calls: ToolCall) -> list[str]:
    return [getattr(environment, call.name)(**call.arguments) for call in calls]


def test_a_row_has_the_prompt_of_its_task_and_an_environment_with_its_tools_alone(spec: CoEvolveSpec) -> None:
    rows = {row["task_id"]: row for row in spec.train_dataset}
    assert rows["one"]["environment"] == rows["behind"]["environment"], "the same tools, and one turn of the agent's"
    assert len({rows[name]["environment"] for name in ("one", "two", "other")}) == len(spec.environment_factory) == 3
    environment = BFCLEnvironment((FILES,))
    assert rows["one"]["prompt"] == task_messages(environment, ONE).prompt
    assert rows["behind"]["prompt"][-1] == {"role": "user", "content": "Now the file b.txt."}, "its tools are offered"
    for name, tools in (("one", {"mkdir", "touch"}), ("two", {"mkdir", "touch", NEXT}), ("other", {"ls", "mkdir"})):
        public = {one for one in vars(spec.environment_factory[rows[name]["environment"]]) if not one.startswith("_")}
        assert public == tools


@pytest.mark.parametrize(
    ("name", "calls", "reward"),
    [
        ("one", [MAKE], 1.0),
        ("one", [TOUCH], 0.0),
        ("one", [], 0.0),
        ("behind", [TOUCH], 1.0),
        ("two", [MAKE, ToolCall(name=NEXT), TOUCH], 1.0),
        ("two", [MAKE, ToolCall(name=NEXT), TOUCH, ToolCall(name=NEXT)], 1.0),
        ("two", [MAKE, TOUCH], 0.0),
        ("two", [MAKE, ToolCall(name=NEXT)], 0.0),
    ],
)
def test_the_reward_is_the_environments(spec: CoEvolveSpec, name: str, calls: list[ToolCall], reward: float) -> None:
    environment = opened(spec, name)
    act(environment, *calls)
    assert outcome_reward([environment]) == [reward]


def test_the_end_of_a_turn_answers_with_the_next_one_until_there_is_none(spec: CoEvolveSpec) -> None:
    environment = opened(spec, "two")
    answers = act(environment, MAKE, ToolCall(name=NEXT), TOUCH, ToolCall(name=NEXT), ToolCall(name=NEXT), MAKE)
    assert answers[1] == "Now the file b.txt."
    assert answers[3] == "the conversation is over"
    assert answers[4] == answers[5] == "The conversation is over: nothing was run."
    assert outcome_reward([environment]) == [1.0]
    environment.reset(task_id="two")
    assert outcome_reward([environment]) == [0.0], "nothing of the rollout before"


DEEP: dict[str, Any] = {}
for _ in range(5000):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    "arguments",
    [{"dir_name": float("nan")}, {"dir_name": "\ud83d"}, {"dir_name": DEEP}, {"self": 1}, {"no such": 1}, {}],
    ids=["nan", "surrogate", "deep", "self", "unknown", "none"],
)
def test_whatever_a_policy_gives_is_answered_and_counted(tmp_path: Path, arguments: dict[str, Any]) -> None:
    spec = CoEvolveSpec(run_with(tmp_path, [ONE], "training.length_cost=0.1").root)
    environment = opened(spec, "one")
    assert "error" in act(environment, ToolCall.model_construct(name="mkdir", arguments=arguments))[0].lower()
    act(environment, MAKE)
    assert outcome_reward([environment]) == [pytest.approx(0.9)]


def failing(monkeypatch: pytest.MonkeyPatch, method: str, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(BFCLEnvironment if method == "open" else BFCLEpisode, method, fail)


@pytest.mark.parametrize("method", ["open", "start", "step", "end_turn", "outcome"])
def test_a_fault_is_no_reward_and_reaches_no_policy(
    spec: CoEvolveSpec, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    well, faulty = opened(spec, "two"), opened(spec, "two")
    with monkeypatch.context() as patch:
        failing(patch, method, EnvironmentFault("the worker died"))
        faulty.reset(task_id="two")
        answers = act(faulty, MAKE, ToolCall(name=NEXT), TOUCH)
        faulty._score()
        assert not any("worker" in answer for answer in answers)
        with pytest.raises(EnvironmentFault, match="failed all 1 rollouts: the worker died"):
            outcome_reward([faulty])
    metrics: dict[str, float] = {}
    assert outcome_reward([well, faulty], log_metric=metrics.__setitem__, prompts=[]) == [0.0, None]
    assert metrics == {"infrastructure_faults": 1.0}
    faulty.reset(task_id="two")
    act(faulty, MAKE, ToolCall(name=NEXT), TOUCH)
    assert outcome_reward([faulty]) == [1.0], "the next rollout is scored again"


@pytest.mark.parametrize("method", ["open", "step", "outcome"])
def test_an_error_that_is_no_fault_ends_the_training(
    spec: CoEvolveSpec, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    environment = opened(spec, "one")
    failing(monkeypatch, method, KeyError("a bug"))
    environment.reset(task_id="one")
    act(environment, MAKE)
    with pytest.raises(KeyError, match="a bug"):
        outcome_reward([environment])


def schema(**parameters: Any) -> dict[str, Any]:
    listed = {"type": "object", "properties": parameters, "required": list(parameters)[:1]}
    return {"name": "tool", "description": "Does it.", "parameters": listed}


def read_by_transformers(given: dict[str, Any]) -> dict[str, Any]:
    from transformers.utils import get_json_schema

    read = get_json_schema(getattr(type("Any", (), {given["name"]: _tool(given)})(), given["name"]))["function"]
    return read


@pytest.mark.parametrize(
    "parameter",
    [
        {"type": "string", "description": "a"},
        {"type": "integer", "description": "a"},
        {"type": "number", "description": "a: b"},
        {"type": "boolean", "description": "a"},
        {"type": "object", "description": "a"},
        {"type": "array", "items": {"type": "string"}, "description": "a"},
        {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}, "description": "a"},
        {"type": "string", "enum": ["x", "y"], "description": "a"},
    ],
)
def test_transformers_reads_the_schema_of_a_tool(parameter: dict[str, Any]) -> None:
    given = schema(one=parameter, two=parameter)
    assert read_by_transformers(given) == given


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ({"type": "integer", "default": 5, "description": "a"}, 'a {"default": 5}'),
        ({"type": "object", "properties": {"x": {"type": "string"}}}, '{"properties": {"x": {"type": "string"}}}'),
        ({"type": ["string", "null"], "description": "a"}, 'a {"type": ["string", "null"]}'),
        ({"$ref": "#/$defs/a", "description": "a"}, 'a {"$ref": "#/$defs/a"}'),
        ({"type": "string"}, "one"),
        ({"type": "string", "description": "a\n\nArgs:\n    b: c\nReturns:\n    d"}, "a Args - b: c Returns - d"),
        ({"type": "string", "description": "a (choices: x)"}, "a (choices - x)"),
    ],
)
def test_what_a_signature_cannot_say_is_in_the_description(parameter: dict[str, Any], said: str) -> None:
    read = read_by_transformers(schema(one=parameter, two={"type": "string", "description": "last"}))
    assert read["parameters"]["properties"]["one"]["description"] == said
    assert read["parameters"]["properties"]["two"]["description"] == "last"
    assert read["parameters"]["required"] == ["one"]


def test_shared_parts_of_a_schema_are_in_the_description_of_the_tool() -> None:
    given = schema(one={"$ref": "#/$defs/a"}, two={}, three=True)
    given["parameters"]["$defs"] = {"a": {"type": "string"}}
    assert read_by_transformers(given)["description"] == 'Does it. {"$defs": {"a": {"type": "string"}}}'


@pytest.mark.parametrize("name", ["reset", "get_reward", NEXT, "_hidden", "a-b", ""])
def test_a_tool_that_no_method_can_be_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="leave the tool out"):
        _tool(schema() | {"name": name})


@pytest.mark.parametrize("name", ["from", "a-b", "self"])
def test_a_parameter_that_no_method_can_have_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="tool cannot be one"):
        _tool(schema(**{name: {"type": "string"}}))


def test_a_run_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no task"):
        CoEvolveSpec(run_with(tmp_path, []).root)


@pytest.mark.slow
def test_trl_leaves_a_fault_out_of_its_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three rollouts that do nothing, as they should, one fails: the others' mean is 1, and no advantage differs."""
    from support.chat_models import new_tokenizer, random_model, template
    from trl import GRPOConfig, GRPOTrainer

    spec = CoEvolveSpec(run_with(tmp_path, [task("idle", ["Wait."], ())]).root)
    tokenizer = new_tokenizer(template("qwen3"))
    config = GRPOConfig(
        str(tmp_path / "out"),
        num_generations=3,
        per_device_train_batch_size=3,
        max_completion_length=4,
        max_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = GRPOTrainer(
        random_model("qwen3", tokenizer),
        args=config,
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
        processing_class=tokenizer,
    )
    plays, advantages = [], []
    open_one, scored = BFCLEnvironment.open, trainer._generate_and_score_completions

    def every_third(self: BFCLEnvironment, spec: TaskSpec) -> BFCLEpisode:
        plays.append(spec)
        if len(plays) == 3:
            raise EnvironmentFault("the worker died")
        return open_one(self, spec)

    def kept(inputs: Any) -> Any:
        made = scored(inputs)
        advantages.extend(made["advantages"].tolist())
        return made

    monkeypatch.setattr(BFCLEnvironment, "open", every_third)
    monkeypatch.setattr(trainer, "_generate_and_score_completions", kept)
    trainer.train()
    line = trainer.state.log_history[0]
    assert (line["reward"], line["infrastructure_faults"], len(plays)) == (1.0, 1.0, 3)
    assert advantages == [0.0] * 3


def teach_conversation(folder: Path, messages: list[dict[str, Any]], schemas: list[dict[str, Any]]) -> None:
    """Write a tiny policy that says what the assistant says in ``messages``."""
    import torch
    from trl.chat_template_utils import qwen3_instruct_2507_training_chat_template

    from benchmarks.chat_policy import chat_tokenizer
    from training.embedded.new_policy import make_model
    from training.rollout.episodes import TokenRow
    from training.rollout.policy import save_policy
    from training.supervised import Learning, learn

    torch.set_num_threads(1)
    tokenizer = chat_tokenizer([json.dumps(messages), json.dumps(schemas)])
    model = make_model(tokenizer, positions=2048, seed=0)
    read = tokenizer.apply_chat_template(
        messages,
        tools=schemas,
        chat_template=qwen3_instruct_2507_training_chat_template,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    row = TokenRow([], list(read["input_ids"]), [], list(read["assistant_masks"]))
    for _ in learn(model, [[row]] * 60, Learning(3e-3)):
        pass
    save_policy(folder, model, tokenizer, None)


@pytest.mark.process
@pytest.mark.long
def test_the_script_of_the_documents_trains_over_two_user_turns(tmp_path: Path) -> None:
    """A tiny policy that was taught the conversation acts it out under TRL, and reaches the second user turn."""
    from transformers.utils import get_json_schema

    run = run_with(tmp_path, [TWO])
    spec = CoEvolveSpec(run.root)
    (row,) = spec.train_dataset
    environment = opened(spec, "two")
    messages = list(row["prompt"])
    for call in (MAKE, ToolCall(name=NEXT), TOUCH):
        (answer,) = act(environment, call)
        said = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call.model_dump()}]}
        messages += [said, {"role": "tool", "name": call.name, "content": answer}]
    messages.append({"role": "assistant", "content": "Done."})
    schemas = [get_json_schema(getattr(environment, name)) for name in sorted(("mkdir", NEXT, "touch"))]
    teach_conversation(tmp_path / "policy", messages, schemas)
    command = [sys.executable, "docs/train_with_trl.py", str(run.root), str(tmp_path / "policy"), str(tmp_path / "out")]
    options = ["--steps", "2", "--rollouts", "4", "--tokens", "400"]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *options], check=False, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    history = json.loads((tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    first = history[0]
    assert first["reward"] > 0.5, "most rollouts act in both turns"
    assert first["tools/call_frequency"] > 2
    assert first["infrastructure_faults"] == 0.0
    assert (tmp_path / "out" / "model.safetensors").exists()
