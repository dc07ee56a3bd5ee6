"""The tiny policy that is made for given tasks: what its tokenizer is trained on, its weights, and that it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES, call
from support.late import Late
from support.made_policy import made_tasks, task, trained_policy
from typer.testing import CliRunner

from environments.bfcl.official import tool_specs
from memory.records import Measured
from memory.run import read_json, write_jsonl
from training.embedded.compact import CompactRendering, CompactSettings
from training.embedded.new_policy import EMBEDDED, make_model, new_policy, reference_lines, train_tokenizer
from training.rollout.policy import load_policy
from training.start_rows import StartSettings
from training.warm_start import RECORD, StartRecord, app, warm_start

torch = Late("torch")


@pytest.mark.slow
def test_it_learns_and_equal_seeds_make_equal_policies(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    write_jsonl(tasks, made_tasks())

    def start(name: str, **settings: int) -> StartRecord:
        given = StartSettings(passes=3, max_tokens=512, **settings)
        return warm_start(EMBEDDED, [tasks], tmp_path / name, given, report=lambda _: None)

    one, again = start("one"), start("again")
    assert one.model_copy(update={"measured": Measured()}) == again.model_copy(update={"measured": Measured()})
    for name in ("model.safetensors", "tokenizer.json", "coevolve.json", "config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert start("other", seed=1).weights_sha256 != one.weights_sha256
    assert one.first_loss > 5
    assert one.last_loss < 0.7 * one.first_loss
    assert one.settings.learning_rate == 3e-3
    assert read_json(tmp_path / "one" / RECORD, StartRecord) == one
    policy = load_policy(str(tmp_path / "one"), device="cpu")
    assert (policy.positions, policy.model.num_parameters()) == (512, one.parameters)
    assert isinstance(policy.rendering, CompactRendering)
    assert "$9" in policy.rendering.vocabulary
    assert "$10" not in policy.rendering.vocabulary


def test_the_command(tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "out"
    write_jsonl(tasks, made_tasks()[:8])
    done = CliRunner().invoke(app, ["--model", EMBEDDED, "--tasks", str(tasks), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "0 references left out" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"tasks.jsonl", "out"}


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    make_model(trained_policy(1).tokenizer, positions=64, seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_the_lines_of_a_reference_are_what_the_policy_reads_and_writes() -> None:
    two = task((call("setHeadlights", mode="on"),), (call("get_current_speed"), call("fillFuelTank", fuelAmount=3)))
    lines = list(reference_lines(ENVIRONMENT, two, CompactSettings()))
    assert [line[0] for line in lines] == list("UAOAUAOAOA")
    assert [line for line in lines if line[0] == "A"] == [
        "A @setHeadlights @mode=on\n",
        "A end\n",
        "A @get_current_speed\n",
        "A @fillFuelTank @fuelAmount=$1\n",
        "A end\n",
    ]


def test_errors_of_incomplete_references_are_among_them() -> None:
    doors = call("lockDoors", unlock=False, door=["driver", "passenger", "rear_left", "rear_right"])
    brake, engine = call("pressBrakePedal", pedalPosition=1.0), call("startEngine", ignitionMode="START")
    whole, cut = (
        "".join(reference_lines(ENVIRONMENT, task(calls), CompactSettings()))
        for calls in ((doors, brake, engine), (doors, engine))
    )
    assert "Brake pedal needs to be pressed" not in whole
    assert "Brake pedal needs to be pressed" in cut


def test_tools_that_fill_the_vocabulary_get_more_tokens() -> None:
    tools = (*tool_specs(FILES), *tool_specs(CAR))
    small, large = (train_tokenizer(["hello there"] * 9, tools, CompactSettings(), size) for size in (1, 640))
    assert len(small) < len(large) <= 640
    assert all(f"A @{tool.name}" in small.get_vocab() for tool in tools)


def test_tools_that_a_later_turn_brings_have_tokens() -> None:
    one = made_tasks()[0]
    late = one.model_copy(update={"tools": one.tools[1:], "withheld": {1: one.tools[:1]}})
    made = new_policy(ENVIRONMENT, [late], positions=64, seed=0, hidden=16, layers=1)
    assert f"A @{one.tools[0]}" in made.tokenizer.get_vocab()


def test_there_are_tasks_of_both_classes_and_of_two_turns() -> None:
    """What the other tests of this folder rely on."""
    assert {made.classes for made in made_tasks()} == {(CAR,), (FILES,)}
    assert any(len(made.turns) == 2 for made in made_tasks())
