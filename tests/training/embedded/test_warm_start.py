"""The supervised start: it learns, it repeats itself, and it refuses what must not be learnt from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.late import Late
from support.made_policy import VEHICLE, call, environment, made_tasks, small_settings, task, trained_policy
from typer import Typer
from typer.testing import CliRunner

from environments.base import InputError
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.evaluation_sets import load_set
from memory.records import Measured, Task
from memory.run import write_jsonl
from training.embedded.compact import CompactRendering
from training.embedded.demonstrations import Example, demonstrate, example, read_tasks, refuse_held_out
from training.embedded.warm_start import (
    RECORD,
    WarmStartRecord,
    WarmStartSettings,
    batches,
    loss_of,
    main,
    make_model,
    warm_start,
)
from training.rollout.policy import load_policy

torch = Late("torch")


def tasks_file(folder: Path, tasks: Sequence[Task]) -> Path:
    path = folder / "tasks.jsonl"
    write_jsonl(path, tasks)
    return path


@pytest.mark.slow
def test_a_few_steps_lower_the_loss_and_equal_seeds_make_equal_weights(tmp_path: Path) -> None:
    tasks = tasks_file(tmp_path, made_tasks())
    one, again = (warm_start(tasks, tmp_path / name, small_settings(15)) for name in ("one", "again"))
    assert one.model_copy(update={"measured": Measured()}) == again.model_copy(update={"measured": Measured()})
    for name in ("model.safetensors", "tokenizer.json", "coevolve.json", "config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    other = warm_start(tasks, tmp_path / "other", small_settings(15, seed=1))
    assert other.weights_sha256 != one.weights_sha256
    assert one.first_loss > 5
    assert one.last_loss < one.first_loss
    assert one.held_out_loss < 4
    assert WarmStartRecord.model_validate_json((tmp_path / "one" / RECORD).read_text()) == one
    assert (one.tasks, one.held_out_tasks) == (50, 5)
    assert load_policy(str(tmp_path / "one"), device="cpu").model.num_parameters() == one.parameters


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    make_model(trained_policy().tokenizer, small_settings(1))
    assert torch.equal(torch.rand(3), expected)


def test_an_example_is_what_the_policy_would_read_and_write() -> None:
    rendering = trained_policy().rendering
    assert isinstance(rendering, CompactRendering)
    two = task((call("setHeadlights", mode="on"),), (call("get_current_speed"), call("fillFuelTank", fuelAmount=3)))
    shown = example(demonstrate(environment(), two), rendering)
    tokenizer = trained_policy().tokenizer
    written = tokenizer.decode([i for i, own in zip(shown.ids, shown.mask, strict=True) if own])
    assert written == (
        "A @setHeadlights @mode=on\nA end\nA @get_current_speed\nA @fillFuelTank @fuelAmount=$1\nA end\n"
    )
    assert [line[0] for line in tokenizer.decode(shown.ids).splitlines()] == list("UAOAUAOAOA")
    assert shown.tools == {"setHeadlights", "get_current_speed", "fillFuelTank"}


def test_lists_of_documented_choices_are_taught_in_the_order_of_the_documentation() -> None:
    doors = ["rear_right", "driver"]
    shown = demonstrate(environment(), task((call("lockDoors", unlock=True, door=doors),)))
    ((_, _, ((made, *_),)),) = shown.turns
    assert made.arguments == {"unlock": True, "door": ["driver", "rear_right"]}
    free = demonstrate(environment(), task((call("display_log", messages=["b", "a"]),)))
    assert free.turns[0][2][0][0].arguments == {"messages": ["b", "a"]}


def test_a_call_that_is_left_out_shows_the_errors_that_follow() -> None:
    doors = call("lockDoors", unlock=False, door=["driver", "passenger", "rear_left", "rear_right"])
    brake, engine = call("pressBrakePedal", pedalPosition=1.0), call("startEngine", ignitionMode="START")
    ((_, _, steps),) = demonstrate(environment(), task((doors, brake, engine))).turns
    assert "error" not in steps[-1][1].text
    ((_, _, steps),) = demonstrate(environment(), task((doors, engine)), verified=False).turns
    assert "Brake pedal needs to be pressed" in steps[-1][1].text


def test_rare_functions_are_drawn_more_often_than_they_occur() -> None:
    common = [Example([1], [1], frozenset({"a"})) for _ in range(99)]
    rare = Example([2], [1], frozenset({"a", "b"}))

    def share(balance: float) -> float:
        settings = WarmStartSettings(steps=500, batch=20, balance=balance)
        drawn = Counter(shown.ids[0] for batch in batches([*common, rare], settings) for shown in batch)
        return drawn[2] / drawn.total()

    assert share(0) == pytest.approx(0.01, abs=0.004)
    assert share(0.5) == pytest.approx(1 / (1 + 99 * 100**-0.5), abs=0.015)
    assert share(1) == pytest.approx(1 / (1 + 99 / 100), abs=0.03)


def test_the_loss_counts_only_what_the_policy_writes() -> None:
    policy = trained_policy()
    long = Example([5, 6, 7, 8, 9], [0, 0, 1, 0, 1], frozenset({"a"}))
    short = Example([5, 6, 7], [0, 1, 1], frozenset({"a"}))
    with torch.no_grad():
        loss = loss_of(policy.model, [long, short], 0).item()
        by_hand = []
        for shown in (long, short):
            logprobs = torch.log_softmax(policy.model(input_ids=torch.tensor([shown.ids])).logits[0], -1)
            by_hand += [-logprobs[i - 1, shown.ids[i]].item() for i, own in enumerate(shown.mask) if own]
    assert loss == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-5)


def test_refuses_tasks_that_must_not_be_learnt_from(tmp_path: Path) -> None:
    good = made_tasks()[:4]
    held_out = good[2].model_copy(update={"split": "dev"})
    with pytest.raises(InputError, match="line 3: task made-2 is of the dev split"):
        read_tasks(tasks_file(tmp_path, [*good[:2], held_out]))
    with pytest.raises(InputError, match="holds 1 tasks"):
        read_tasks(tasks_file(tmp_path, good[:1]))


@pytest.mark.parametrize("disguise", [{}, {"unused": 1}])
def test_refuses_a_held_out_task_also_in_disguise(tmp_path: Path, disguise: dict[str, int]) -> None:
    good = made_tasks()[0]
    spec = next(task.spec for task in load_set("templated-dev") if "VehicleControlAPI" in task.spec.initial_state)
    state = {**spec.initial_state, **disguise}
    disguised = Task(id="mine", origin="given", **{**dict(spec), "split": "train", "initial_state": state})
    learnt = read_tasks(tasks_file(tmp_path, [good, disguised]))
    with pytest.raises(InputError, match=r"tasks\.jsonl: task mine is held out: .*Remove it"):
        refuse_held_out(tmp_path / "tasks.jsonl", learnt, BFCLEnvironment())


def test_tasks_that_are_not_held_out_are_taken(tmp_path: Path) -> None:
    learnt = read_tasks(tasks_file(tmp_path, made_tasks()))
    assert learnt == list(made_tasks())
    refuse_held_out(tmp_path / "tasks.jsonl", learnt, BFCLEnvironment())


def test_a_reference_that_fails_is_refused() -> None:
    failing = task((call("startEngine", ignitionMode="START"),)).model_copy(update={"id": "bad"})
    with pytest.raises(InputError, match="task bad: its reference fails at startEngine"):
        demonstrate(environment(), failing)


def test_the_command(tmp_path: Path) -> None:
    app = Typer()
    app.command()(main)
    tasks = tasks_file(tmp_path, made_tasks()[:8])
    arguments = ["--tasks", str(tasks), "--out", str(tmp_path / "p"), "--steps", "2", "--hidden", "32", "--layers", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "8 tasks, loss " in done.output
    card = json.loads((tmp_path / "p" / "coevolve.json").read_text())
    assert (card["rendering"], card["compact"]["references"]) == ("compact", 9)
    policy = load_policy(str(tmp_path / "p"), device="cpu")
    assert isinstance(policy.rendering, CompactRendering)
    assert "$9" in policy.rendering.vocabulary
    assert "$10" not in policy.rendering.vocabulary
    assert not list(tmp_path.glob(".*"))
    for wrong, said in [
        ([], "exists: choose another --out"),
        (["--out", str(tmp_path / "q"), "--tasks", str(tmp_path / "none")], "none does not exist"),
        (["--out", str(tmp_path / "q"), "--hidden", "36"], "--hidden: Input should be a multiple of 8"),
        (["--out", str(tmp_path / "q"), "--vocabulary", "300"], "a vocabulary of 300 has no room"),
    ]:
        refused = CliRunner().invoke(app, [*arguments, *wrong])
        assert refused.exit_code == 2
        assert said in refused.output
    assert not (tmp_path / "q").exists()


def test_there_are_tasks_of_both_classes_and_of_two_turns() -> None:
    """What the other tests of this folder rely on."""
    assert {made.classes for made in made_tasks()} == {(VEHICLE,), ("GorillaFileSystem",)}
    assert any(len(made.turns) == 2 for made in made_tasks())
