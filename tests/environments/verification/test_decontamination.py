"""Decontamination: the canonical form of tasks, records of held-out sets, and what each rule refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from environments.appworld.installation import Installation
from environments.base import InputError, TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.evaluation_sets import load_set
from environments.bfcl.official import load_category
from environments.example import depot
from environments.registry import benchmark_of
from environments.verification import decontamination
from environments.verification.canonical import canonical, canonical_call, fingerprint, read_fixed, state_words
from environments.verification.decontamination import HeldOut, HeldOutRecord, held_out, record_of, sets_folder
from environments.verification.verify import Refusal, can_train, verify

BFCL = BFCLEnvironment()
DEPOT = depot()


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def parcels(*reference: ToolCall, start: int = 0, **changes: object) -> TaskSpec:
    begins = DEPOT.starts()[start]
    return TaskSpec(
        **begins.model_dump(include={"environment", "split", "classes", "initial_state", "tools"}),
        turns=("Weigh it and load it",),
        reference=(reference,),
    ).model_copy(update=changes)


def first_label(start: int = 0) -> str:
    return next(iter(DEPOT.starts()[start].initial_state["Depot"]["parcels"]))


def cars(*reference: ToolCall, **changes: object) -> TaskSpec:
    start = next(start for start in BFCL.starts() if start.classes == ("VehicleControlAPI",))
    return TaskSpec(
        **start.model_dump(include={"environment", "split", "classes", "initial_state", "tools"}),
        turns=("Do it",),
        reference=(reference,),
    ).model_copy(update=changes)


LOCK = call("lockDoors", unlock=False, door=["driver", "passenger", "rear_left", "rear_right"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call("ls"), call("ls", a=False)),
        (call("fillFuelTank", fuelAmount=30), call("fillFuelTank", fuelAmount=30.0)),
        (LOCK, call("lockDoors", unlock=False, door=["rear_right", "rear_left", "passenger", "driver"])),
        (call("echo", content="a  b"), call("echo", content="a b", file_name=None)),
    ],
)
def test_one_call_has_one_form(one: ToolCall, other: ToolCall) -> None:
    assert canonical_call(BFCL, one) == canonical_call(BFCL, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call("ls"), call("ls", a=True)),
        (call("fillFuelTank", fuelAmount=30), call("fillFuelTank", fuelAmount=31)),
        (call("mkdir", dir_name="a"), call("mkdir", dir_name="b")),
    ],
)
def test_calls_that_ask_for_something_else_differ(one: ToolCall, other: ToolCall) -> None:
    assert canonical_call(BFCL, one) != canonical_call(BFCL, other)


def test_the_canonical_form_has_the_state_as_loaded_and_what_the_calls_do() -> None:
    fill = call("fillFuelTank", fuelAmount=1)
    plain, fuller = cars(fill), cars(fill)
    state = {**fuller.initial_state["VehicleControlAPI"], "nothing": {"reads": "this"}}
    fuller = fuller.model_copy(
        update={
            "initial_state": {"VehicleControlAPI": state},
            "setup": (call("check_tire_pressure"),),
            "long_context": True,
        }
    )
    one, other = canonical(BFCL, plain), canonical(BFCL, fuller)
    assert (one.parts, one.changes, one.reads) == (other.parts, other.changes, other.reads)
    looking = canonical(BFCL, cars(call("check_tire_pressure"), fill))
    assert looking.changes == one.changes
    assert len(looking.reads) == 1
    assert canonical(BFCL, cars(call("check_tire_pressure"))).changes == ""


def test_a_renamed_file_takes_its_own_words_and_no_more() -> None:
    state = {"root": {"a.txt": {"content": "to be or not", "size": 3}}}
    renamed = {"root": {"b.txt": {"content": "to be or not", "size": 3}}}
    assert set(state_words(state)) ^ set(state_words(renamed)) == {"a", "b"}
    assert "size=3" in set(state_words(state))


@pytest.fixture(scope="module")
def own() -> HeldOut:
    """What a run of the depot holds out: one task of a start of training, one of a start that training lacks."""
    label = first_label()
    shared = parcels(call("weigh_parcel", label=label), call("load_parcel", label=label, van="north"))
    other = parcels(
        call("load_parcel", label="harp", van="south"),
        initial_state={"Depot": {"parcels": {"harp": {"kilograms": 31}, "kite": {"kilograms": 1}}, "gate_open": True}},
    )
    sets = [("shared", shared), ("other", other)]
    return HeldOut().joined([fingerprint(task) for _, task in sets], record_of(DEPOT, sets))


def test_tasks_of_an_own_environment_are_compared_by_content(own: HeldOut) -> None:
    label = first_label()
    shared = (call("weigh_parcel", label=label), call("load_parcel", label=label, van="north"))
    same = [
        parcels(*shared),
        parcels(call("list_parcels"), *shared),
        parcels(*shared, setup=(call("list_parcels"),)),
        parcels(
            call("load_parcel", label="harp", van="south"),
            initial_state={
                "Depot": {
                    "parcels": {name: {"kilograms": kg} for name, kg in (("harp", 31), ("kite", 1), ("urn", 2))},
                    "gate_open": True,
                }
            },
        ),
    ]
    for task in same:
        assert verify(task, DEPOT, (), own).reason is Refusal.HELD_OUT, task
        assert can_train(task, DEPOT, (), own).reason is Refusal.HELD_OUT
    honest = [
        parcels(call("load_parcel", label=label, van="south")),
        parcels(call("weigh_parcel", label=first_label(1)), start=1),
        parcels(  # another task of a start that training lacks
            call("weigh_parcel", label="kite"),
            initial_state={
                "Depot": {"parcels": {"harp": {"kilograms": 31}, "kite": {"kilograms": 1}}, "gate_open": True}
            },
        ),
    ]
    for task in honest:
        result = can_train(task, DEPOT, (), own)
        assert result.accepted, result


def test_a_task_that_cannot_be_compared_is_refused(own: HeldOut) -> None:
    broken = parcels(call("list_parcels"), initial_state={"Depot": {"parcels": 3, "gate_open": True}})
    assert can_train(broken, DEPOT, (), own).reason is Refusal.CANNOT_OPEN


def test_a_turn_of_a_held_out_task_is_known_wherever_it_is_asked() -> None:
    held = next(task for task in load_category("base", ("test",)) if len(task.spec.turns[0].split()) > 15)
    told = f"  {held.spec.turns[0].upper()}!"
    result = verify(cars(LOCK, turns=(told,)), BFCL, (), held_out("bfcl"))
    assert result.reason is Refusal.HELD_OUT
    assert "user turn" in result.detail


def test_a_held_out_state_that_a_setup_makes_is_known() -> None:
    """From a start of training, with calls that write what a held-out start has."""
    start = next(start for start in BFCL.starts() if start.classes == ("GorillaFileSystem",))
    task = TaskSpec(
        **start.model_dump(include={"environment", "split", "classes", "initial_state", "tools"}),
        turns=("List what is here",),
        setup=tuple(
            one
            for name, content in (
                ("research_notes.txt", "Line 3: Experiment results Line 1: Introduction Line 2: Methodology"),
            )
            for one in (
                call("mkdir", dir_name="research"),
                call("mkdir", dir_name="archives"),
                call("touch", file_name=name),
                call("echo", content=content, file_name=name),
            )
        ),
        reference=((call("ls"),),),
    )
    result = verify(task, BFCL, (), held_out("bfcl"))
    assert result.reason is Refusal.HELD_OUT
    assert "setup" in result.detail


def test_worlds_of_appworlds_dev_split_are_held_out_whatever_the_label(installation: Installation) -> None:
    from environments.appworld.client import AppWorldEngine
    from environments.appworld.environment import AppWorldEnvironment
    from environments.appworld.installation import official_task
    from environments.appworld.records import Start

    environment = AppWorldEnvironment(engine=AppWorldEngine(installation))
    sets = HeldOut()
    dev, train = installation.task_ids("dev")[0], installation.task_ids("train")[0]
    task = official_task(installation, train, "train")
    assert sets.match(task, canonical(environment, task)) is None
    relabelled = official_task(installation, dev, "dev").model_copy(update={"split": "train"})
    moved = task.model_copy(update={"initial_state": Start(task=dev).initial_state()})
    for other in (relabelled, moved):
        assert "dev split" in str(sets.match(other, canonical(environment, other)))
    held = task.model_copy(update={"initial_state": Start(task=train).initial_state()})
    again = held.model_copy(update={"turns": ("Said in other words",)})
    sets = sets.joined((), record_of(environment, [("one", held)]))
    assert "held-out one" in str(sets.match(again, canonical(environment, again)))
    code = str(held.reference[0][0].arguments["code"])
    spaced = call("python", code=f"# a comment\n\n{code}\n")
    look = call("python", code="print(apis.supervisor.show_profile())")
    for reference in ((spaced,), (look, spaced)):
        changed = again.model_copy(update={"reference": (reference,)})
        assert "held-out one" in str(sets.match(changed, canonical(environment, changed)))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["tasks"].pop(),
        lambda content: content["held_out"].pop(),
        lambda content: content.update(sha256="0" * 64),
        lambda content: content.update(more=1),
    ],
)
def test_an_altered_or_missing_record_is_refused_rather_than_an_open_firewall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict], object]
) -> None:
    monkeypatch.setattr(decontamination, "sets_folder", lambda environment: tmp_path)
    with pytest.raises(InputError, match=r"held-out\.json cannot be read"):
        held_out("bfcl")
    content = record_of(depot(1), [("one", parcels(call("list_parcels"), start=1))]).model_dump(mode="json")
    change(content)
    (tmp_path / "held-out.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"held-out\.json was altered"):
        held_out("bfcl")


def test_the_committed_record_is_of_the_evaluation_sets_and_official_tasks() -> None:
    record = read_fixed(sets_folder("bfcl") / "held-out.json", HeldOutRecord)
    ids = {task.id for task in record.tasks}
    assert record.environment == "bfcl"
    assert {task.id for task in load_set("templated-dev")} <= ids
    assert {task.id for task in load_category("base", ("dev", "test"))} <= ids
    assert not any(f"base-{index}" in ids for index in (0, 50, 100, 150))


def test_an_environment_without_evaluation_sets_holds_nothing_out() -> None:
    sets = benchmark_of(depot()).held_out()
    with pytest.raises(InputError, match="depot"):  # asked by name, it is not silently open
        held_out("depot")
    assert sets.fingerprints == frozenset()
    assert can_train(parcels(call("list_parcels")), DEPOT, (), sets).accepted
