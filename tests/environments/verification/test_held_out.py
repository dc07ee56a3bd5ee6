"""What evaluation sets publish: complete, disjoint from what training paths give, and refused when altered."""

import hashlib
import json
from itertools import product
from pathlib import Path

import pytest
from support.templated_calls import TEMPLATED_CLASSES

from environments.base import InputError
from environments.bfcl.evaluation_sets import TEMPLATED_SETS, load_set
from environments.bfcl.official import load_category, tool_names
from environments.example import depot
from environments.registry import benchmark_of, packaged, packaged_names
from environments.verification import decontamination
from environments.verification.canonical import PublishedSet, call_sequence, fingerprint
from environments.verification.decontamination import held_out_fingerprints, published_sets


def publication(name, own, sequences):
    content = {"fingerprints": sorted(own), "call_sequences": sorted(sequences)}
    sha256 = hashlib.sha256(json.dumps([*content.values()]).encode()).hexdigest()
    return PublishedSet.model_validate({"panel": name, "environment": "bfcl", "sha256": sha256, **content})


def sequences(environment):
    return {sequence for evaluation_set in published_sets(environment) for sequence in evaluation_set.call_sequences}


def sliced(whole, start, length):
    """Calls of a path as a set of two classes has them; None where the slice leaves them or the path."""
    own = tuple(name for name in whole.classes if name in TEMPLATED_CLASSES)
    tools, path = tool_names(own), [call for turn in whole.reference for call in turn]
    if start + length > len(path) or any(call.name not in tools for call in path[: start + length]):
        return None
    changed = {
        "classes": own,
        "initial_state": {name: state for name, state in whole.initial_state.items() if name in own},
        "tools": tools,
        "turns": ("",),
        "setup": tuple(path[:start]),
        "reference": (tuple(path[start : start + length]),),
    }
    return whole.model_copy(update=changed)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(decontamination, "sets_folder", lambda environment: tmp_path / environment)
    (tmp_path / "bfcl").mkdir()
    return tmp_path / "bfcl"


@pytest.mark.slow
def test_every_evaluation_set_task_is_held_out():
    tasks = [task for name in TEMPLATED_SETS for task in load_set(name)]
    assert held_out_fingerprints("bfcl") == {fingerprint(task.spec) for task in tasks}
    assert sequences("bfcl") == {call_sequence(task.spec) for task in tasks}
    assert {evaluation_set.panel for evaluation_set in published_sets("bfcl")} == set(TEMPLATED_SETS)


def test_no_slice_of_a_training_path_is_held_out_though_call_sequences_overlap():
    train = [
        specification
        for task in load_category("base", ("train",))
        for start, length in product(range(12), (1, 2, 3))
        if (specification := sliced(task.spec, start, length)) is not None
    ]
    assert len(train) > 150
    assert not {fingerprint(spec) for spec in train} & held_out_fingerprints("bfcl")
    assert {call_sequence(spec) for spec in train} & sequences("bfcl")


def test_reading_what_is_published_opens_no_evaluation_set():
    source = Path(decontamination.__file__).read_text()
    assert "from environments.base import" in source
    assert "environments.bfcl" not in source


def test_publications_of_a_folder_are_joined(folder):
    for name, own in (("one", "aa"), ("two", "bb")):
        evaluation_set = publication(name, {own}, {("cat", "cd")})
        (folder / f"{name}.fingerprints.json").write_text(evaluation_set.model_dump_json())
    assert held_out_fingerprints("bfcl") == {"aa", "bb"}
    assert sequences("bfcl") == {("cat", "cd")}


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["fingerprints"].pop(),
        lambda content: content["call_sequences"].append(["ls"]),
        lambda content: content.pop("sha256"),
        lambda content: content.update(more=1),
    ],
)
def test_an_altered_file_is_refused(folder, change):
    content = json.loads(publication("one", {"aa", "bb"}, {("cat",)}).model_dump_json())
    change(content)
    (folder / "one.fingerprints.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"one\.fingerprints\.json was altered"):
        held_out_fingerprints("bfcl")


def test_a_file_that_is_no_json_is_refused(folder):
    (folder / "one.fingerprints.json").write_text("{")
    with pytest.raises(InputError, match="altered"):
        published_sets("bfcl")


def test_missing_publications_are_refused_rather_than_an_open_firewall(folder):
    for read in (published_sets, held_out_fingerprints):
        with pytest.raises(InputError, match="bfcl"):
            read("bfcl")


def test_an_environment_of_ones_own_has_no_evaluation_set_and_nothing_held_out():
    assert benchmark_of(depot()).held_out().fingerprints == frozenset()
    with pytest.raises(InputError, match="depot"):
        published_sets("depot")


def test_every_folder_of_evaluation_sets_belongs_to_a_benchmark_that_publishes_them():
    rooms = Path(decontamination.__file__).parents[1]
    publishing = {name for name in packaged_names() if packaged(name).held_out().fingerprints}
    assert {folder.parent.name for folder in rooms.glob("*/panels")} == publishing
