"""A run as a data set: read back with the library that people read it with, and refused where it must not leave."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commands import run_here
from support.made_run import first_tasks

from agents.settings import RolesSettings
from environments.base import InputError, MalformedCall, Observation, ObservationStatus, ToolCall
from environments.bfcl.benchmark import BFCL
from environments.checkout import ROOT
from environments.registry import packaged, packaged_names
from environments.verification.decontamination import HeldOut
from graph.export.cards import _decontamination, _licences, players
from graph.export.conversations import rollout_messages
from graph.export.dataset import COLUMNS, TASKS, TRAJECTORIES, RunContent, refuse_unpublishable
from graph.report.lineage import History
from graph.settings import load_recipe
from memory.jsonl import parse_yaml
from memory.records import Step, Task, Trajectory, TrajectoryTurn
from memory.run import RunDirectory, read_jsonl
from memory.tasks import load_tasks

COMMAND = "graph.export.__main__"


def read(table: Path, **chosen: Any) -> list[dict[str, Any]]:
    """The rows as another reader of Parquet has them, objects from their JSON text."""
    rows = pq.read_table(table, **chosen).to_pylist()
    for row in rows:
        for name in {"prompt", "completion", "tools", "messages"} & row.keys():
            row[name] = [json.loads(text) for text in row[name]]
    return rows


def export(run: RunDirectory, output: Path, *options: str):
    return run_here(COMMAND, str(run.root), "--output", str(output), *options)


@pytest.fixture(scope="module")
def exported(evolved: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("data") / "set"
    done = export(evolved, folder)
    assert done.returncode == 0, done.stderr
    _, front, card = (folder / "README.md").read_text().split("---\n", 2)
    tables = {name: read(folder / f"{name}.parquet") for name in COLUMNS}
    return SimpleNamespace(
        run=evolved, folder=folder, front=parse_yaml(front, "card"), card=card, printed=done, **tables
    )


def called(messages: list[dict[str, Any]]) -> list[ToolCall]:
    """The calls of messages."""
    calls = (call["function"] for message in messages for call in message.get("tool_calls", ()))
    return [ToolCall.model_validate(call) for call in calls]


@pytest.mark.slow
def test_every_task_and_rollout_is_a_row(exported: SimpleNamespace) -> None:
    tasks = load_tasks(exported.run)
    played = read_jsonl(exported.run.iteration(0).trajectories, Trajectory)
    assert [row["task_id"] for row in exported.tasks] == [task.id for task in tasks]
    assert [row["id"] for row in exported.trajectories] == [one.id for one in played]
    assert (
        exported.printed.stdout == f"{exported.folder}: {len(tasks)} tasks and {len(played)} trajectories with a card\n"
    )
    for row, task in zip(exported.tasks, tasks, strict=True):
        assert Task.model_validate_json(row["task"]) == task
        assert [one["content"] for one in row["prompt"] if one["role"] == "user"] == [task.turns[0]]
        assert called(row["completion"]) == list(task.reference[0])
        assert {tool["function"]["name"] for tool in row["tools"]} == set(task.tools)
        assert json.loads(row["start_state"]) == task.model_dump(mode="json", include={"initial_state", "setup"})
        assert row["environment"] == "bfcl"
    for row, one in zip(exported.trajectories, played, strict=True):
        assert (row["task_id"], row["step"], row["success"]) == (one.task_id, one.step, one.success)
        assert row["reward"] == one.reward


def test_the_lineage_of_an_admitted_task_is_in_its_row(exported: SimpleNamespace) -> None:
    history = History.read(exported.run)
    admitted = [row for row in exported.tasks if row["admitted_at"] is not None]
    assert admitted
    for row in admitted:
        chain = history.chain_of(row["task_id"])
        assert row["parent_task"] == chain.weak.id
        assert row["parent_rollout"] == chain.rollout.id
        assert row["signal_kind"] == chain.signal.kind
        assert row["cause"] == chain.context.cause
        lineage = json.loads(row["lineage"])
        assert lineage["context"]["how"] == chain.context.how
        assert lineage["draft"]["id"] in {one.draft.id for one in chain.outcomes}
        assert lineage["verification"]["accepted"] is True
    by_id = {row["id"]: row for row in exported.trajectories}
    assert {task for row in exported.trajectories for task in row["gave_rise_to"]} == {
        row["task_id"] for row in admitted
    }
    assert all(row["task_id"] in by_id[row["parent_rollout"]]["gave_rise_to"] for row in admitted)
    assert all(row["signal_kind"] in by_id[row["parent_rollout"]]["signals"] for row in admitted)
    seeds = [row for row in exported.tasks if row["admitted_at"] is None]
    assert all(row["parent_task"] is row["lineage"] is None and row["rollouts"] == 12 for row in seeds)


@pytest.mark.slow
def test_the_library_of_data_sets_loads_the_folder_offline(
    exported: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for name, rows in ((TASKS, exported.tasks), (TRAJECTORIES, exported.trajectories)):
        loaded = datasets.load_dataset(str(exported.folder), name, split="train", cache_dir=str(tmp_path))
        assert len(loaded) == len(rows)
        assert loaded.column_names == list(COLUMNS[name])
        assert list(loaded) == rows, "objects, not their text"
    default = datasets.load_dataset(str(exported.folder), split="train", cache_dir=str(tmp_path))
    assert default.column_names == list(COLUMNS[TASKS])
    assert loaded[0]["messages"][1]["role"] == "assistant"


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
    function = {"name": "ls", "arguments": {"a": True, "name": "\u00e9"}}
    assert rollout_messages(one) == [
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


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 1.7976931348623157e308, 5e-324])
def test_numbers_that_datasets_would_change_stay_text(number: float) -> None:
    call = ToolCall(name="add", arguments={"a": number})
    step = Step(action=call, observation=Observation(text="", status=ObservationStatus.OK))
    one = Trajectory(
        id="r", task_id="t", iteration=0, step=1, sample=0, turns=(TrajectoryTurn(text="", steps=(step,)),)
    )
    given = rollout_messages(one)[1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(given, str)
    assert json.loads(given) == {"a": number}


@pytest.fixture(scope="module")
def conversations(exported: SimpleNamespace) -> list[dict[str, Any]]:
    """Both tables as conversations."""
    tasks = [{"messages": row["prompt"] + row["completion"], "tools": row["tools"]} for row in exported.tasks]
    return [*tasks, *exported.trajectories]


def test_each_answer_of_a_tool_follows_its_call(conversations: list[dict[str, Any]]) -> None:
    for row in conversations:
        offered = {tool["function"]["name"] for tool in row["tools"]}
        for before, message in zip([None, *row["messages"]], row["messages"], strict=False):
            if message["role"] == "tool":
                (call,) = before["tool_calls"]
                assert call["id"] == message["tool_call_id"]
                assert call["function"]["name"] in offered
                assert isinstance(call["function"]["arguments"], dict)
    assert len(conversations) > 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3"])
def test_chat_templates_render_every_conversation(conversations: list[dict[str, Any]], name: str) -> None:
    import trl
    from transformers.utils.chat_template_utils import render_jinja_template

    text = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    for row in conversations:
        (rendered,), _ = render_jinja_template(
            conversations=[row["messages"]],
            tools=row["tools"],
            chat_template=text,
            bos_token="",
            eos_token="",
        )
        for message in row["messages"]:
            assert message["content"].strip() in rendered
        for call in (call for message in row["messages"] for call in message.get("tool_calls", ())):
            assert json.dumps(call["function"]["arguments"], ensure_ascii=False) in rendered


def test_the_card_says_what_the_records_say(exported: SimpleNamespace) -> None:
    front, card = exported.front, exported.card
    assert front["license"] == "apache-2.0"
    assert {one["config_name"]: one["data_files"][0]["path"] for one in front["configs"]} == {
        "tasks": "tasks.parquet",
        "trajectories": "trajectories.parquet",
    }
    evolved = sum(row["origin"] == "evolved" for row in exported.tasks)
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (datasets_requirement,) = (one for one in requirements if one.startswith("datasets"))
    for words in (
        f"| tasks by origin | {evolved} evolved, 5 seed |",
        "| seed | 3 |",
        "none equals a held-out task",
        "bfcl-eval",
        f"| accepted | {evolved} |",
        "those of the iterations are tasks; of D_0's, as many as it was asked for",
        f"`tasks` has {len(exported.tasks)} tasks, `trajectories` {len(exported.trajectories)} rollouts",
        "## Limits",
        "Rollouts are those of a policy in training, another one after each step",
        "training.steps: 3",
        f'`pip install "{datasets_requirement}"`',
    ):
        assert words in card
    assert str(exported.run.root) not in card, "no path of this machine"


def test_the_licence_of_a_model_of_the_hub_is_named(evolved: RunDirectory) -> None:
    def licences(policy: str) -> str:
        return _licences(RunContent(evolved, load_recipe(evolved.settings_path, [f"policy.path={policy}"])))

    said = "Rollouts were written by Qwen/Qwen3-4B in training, whose licence may cover what it writes."
    assert licences("Qwen/Qwen3-4B").endswith(said)
    assert "Rollouts were written" not in licences("recipes/starter")


@pytest.mark.parametrize(
    ("roles", "shown"),
    [
        ({}, {"chat models of the roles": "none (rules)"}),
        (
            {"explorer": {"kind": "local"}, "abstractor": {"kind": "chat", "model": "m"}},
            {"chat models of the roles": "abstractor: m", "roles of a small language model": "explorer"},
        ),
        (
            {"explorer": {"kind": "local"}, "abstractor": {"kind": "local"}},
            {"chat models of the roles": "none", "roles of a small language model": "explorer, abstractor"},
        ),
    ],
)
def test_what_plays_the_roles_is_named(roles: dict[str, Any], shown: dict[str, str]) -> None:
    assert players(RolesSettings.model_validate(roles)) == shown


def test_content_that_must_not_be_published_is_refused(
    evolved: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BFCL, "unpublishable", "its licence forbids it: keep it here")
    done = export(evolved, tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr == "error: this run cannot be exported: its licence forbids it: keep it here\n"
    assert not (tmp_path / "out").exists()


def test_which_environments_may_be_published() -> None:
    """Environments of users' own may, unless their benchmark says otherwise."""
    assert {name for name in packaged_names() if packaged(name).unpublishable is not None} == {"appworld"}
    settings = load_recipe(ROOT / "recipes" / "own-environment.yaml", ["environment.name=environments.example:depot"])
    refuse_unpublishable(settings)
    with pytest.raises(InputError, match="AppWorld's licence forbids"):
        refuse_unpublishable(load_recipe(ROOT / "recipes" / "appworld-quickstart.yaml"))


def test_a_task_of_such_an_environment_is_refused_whatever_the_run_says(copied: RunDirectory, tmp_path: Path) -> None:
    lines = copied.tasks_path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"environment": "appworld"})
    copied.tasks_path.write_text("\n".join(lines) + "\n")
    done = export(copied, tmp_path / "out")
    assert done.returncode == 2
    assert "AppWorld's licence forbids" in done.stderr


def test_tasks_of_held_out_sets_are_refused(
    evolved: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = load_tasks(evolved)[1]
    monkeypatch.setattr(HeldOut, "match", lambda self, task, form: "equal" if task == second else None)
    done = export(evolved, tmp_path / "out")
    assert done.returncode == 2
    assert f"1 tasks equal held-out ones, {second.id} first" in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_the_runs_own_held_out_file_is_compared(evolved: RunDirectory, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    given = [f"evaluation.tasks={path}", "evaluation.set=null"]
    content = RunContent(evolved, load_recipe(evolved.settings_path, given))
    assert "The run has a held-out file that was not there." in _decontamination(content)
    other = first_tasks()[0].model_copy(update={"turns": ("Something that nobody asked for so far.",)})
    path.write_text(other.model_dump_json() + "\n")
    content = RunContent(evolved, load_recipe(evolved.settings_path, given))
    assert "fingerprints, those of the run's own file own.jsonl among them)" in _decontamination(content)
    path.write_text(first_tasks()[1].model_dump_json() + "\n")
    content = RunContent(evolved, load_recipe(evolved.settings_path, given))
    assert first_tasks()[1].id in content.contaminated()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"reward": 1.0', '"reward": NaN', "the reward of"),
        ('"reward": 1.0', '"reward": 1e999', "the reward of"),
        ('"text": "', '"text": "\\ud83d', "trajectories.jsonl, line 1: "),
        ('"task_id": "', '"task_id": "no-', "does not have the task no-"),
        ('"turns": [', '"turns": [{', "trajectories.jsonl, line 1"),
    ],
    ids=["nan", "infinity", "half a surrogate pair", "unknown task", "no JSON"],
)
def test_what_no_file_can_hold_is_refused_in_one_sentence(
    copied: RunDirectory, tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = copied.iteration(0).trajectories
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))
    done = export(copied, tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["copy"]


def test_long_and_strange_text_is_exported_unchanged(copied: RunDirectory, tmp_path: Path) -> None:
    text = "<script>alert(1)</script>\x00\x1b[31m\u2028\ufeff|`---\n" + "x" * 2**20
    path = copied.iteration(0).trajectories
    first, rest = path.read_text().split("\n", 1)
    one = Trajectory.model_validate_json(first)
    turn = one.turns[0]
    steps = tuple(
        step.model_copy(update={"observation": step.observation.model_copy(update={"text": text})})
        for step in turn.steps
    )
    changed = one.model_copy(update={"turns": (turn.model_copy(update={"steps": steps}),)})
    path.write_text(changed.model_dump_json() + "\n" + rest)
    done = export(copied, tmp_path / "dataset")
    assert done.returncode == 0, done.stderr
    row = read(tmp_path / "dataset" / "trajectories.parquet")[0]
    assert [message["content"] for message in row["messages"] if message["role"] == "tool"] == [text] * len(steps)


def test_nothing_is_overwritten(evolved: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = export(evolved, tmp_path / "out")
    assert done.returncode == 2
    assert "exists: choose another --output" in done.stderr


def test_a_run_without_a_finished_round_has_nothing_to_export(copied: RunDirectory, tmp_path: Path) -> None:
    copied.iteration(0).round.unlink()
    done = export(copied, tmp_path / "out")
    assert done.returncode == 2
    assert "nothing to export yet" in done.stderr
