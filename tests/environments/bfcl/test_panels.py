"""Panels: rebuilt from ids, held by their hash, labelled rightly, and of held-out indices only."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest
from templated_calls import FORBIDDEN, words_outside_quotes

from environments.base import InputError
from environments.bfcl import panels
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.panels import PanelTask, Strata, load_panel, main, panel_names
from environments.bfcl.slices import TEMPLATED_CLASSES, base_tasks
from environments.bfcl.splits import indices, split_of
from environments.bfcl.text import caused_errors, forced_calls
from environments.fingerprints import call_sequence, fingerprint
from environments.sealed import SUFFIX, panels_folder, read_publication
from environments.verification import verify

ENVIRONMENT = BFCLEnvironment(TEMPLATED_CLASSES)


@dataclass(frozen=True)
class Loaded:
    name: str
    tasks: tuple[PanelTask, ...]
    seconds: float


@pytest.fixture(scope="module", params=panel_names())
def loaded(request) -> Loaded:
    began = time.perf_counter()
    tasks = load_panel(request.param)
    return Loaded(request.param, tasks, time.perf_counter() - began)


@pytest.fixture
def copies(tmp_path, monkeypatch):
    for path in panels_folder("bfcl").glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(panels, "panels_folder", lambda environment: tmp_path)
    return tmp_path


def altered(folder, change, name="templated-dev.json"):
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def test_a_panel_loads_quickly(loaded):
    assert loaded.seconds < 3


def test_a_panel_is_large_enough_and_of_held_out_indices(loaded):
    split = loaded.name.removeprefix("templated-")
    assert 100 <= len(loaded.tasks) <= {"dev": 250, "test": 400}[split]
    for task in loaded.tasks:
        index = int(task.id.removeprefix(f"{loaded.name}-").split("-")[0])
        assert split_of(index) == task.spec.split == split
        assert index % 50 < 40
    assert len({task.id for task in loaded.tasks}) == len(loaded.tasks)
    assert len({fingerprint(task.spec) for task in loaded.tasks}) == len(loaded.tasks)


def test_tasks_with_equal_starts_share_a_cluster_and_others_do_not(loaded):
    starts = {(task.cluster, json.dumps(task.spec.initial_state, sort_keys=True)) for task in loaded.tasks}
    assert len(starts) == len({start for _, start in starts}) == len({cluster for cluster, _ in starts})
    assert len(starts) >= {"templated-dev": 7, "templated-test": 40}[loaded.name]


def test_every_task_verifies_and_its_marks_are_those_of_a_replay(loaded):
    for task in loaded.tasks[::4]:
        assert verify(task.spec, ENVIRONMENT, (), ()).accepted, task.id
        needed = any(caused_errors(ENVIRONMENT, task.spec, 0, c) for c in range(len(task.spec.reference[0])))
        forced = any(forced_calls(ENVIRONMENT, task.spec)[0])
        assert task.strata.precondition == ("forced" if forced else "said" if needed else "none"), task.id


def test_strata_of_length_and_rarity_are_right(loaded):
    train = base_tasks(indices("train"))
    counts = Counter(call.name for task in train for turn in task.spec.reference for call in turn)
    for task in loaded.tasks:
        calls = task.spec.reference[0]
        assert task.strata.length == str(len(calls))
        rarest = min(counts[call.name] for call in calls)
        assert task.strata.rarity == ("common" if rarest >= 5 else "rare" if rarest else "unseen")


def test_every_stratum_has_tasks(loaded):
    expected = {
        "precondition": {"forced", "said", "none"},
        "length": {"1", "2", "3"},
        "rarity": {"common", "rare", "unseen"},
    }
    for label in Strata.model_fields:
        assert {getattr(task.strata, label) for task in loaded.tasks} == expected[label]


def test_the_order_is_mixed_so_that_a_prefix_is_a_sample(loaded):
    clusters = [task.cluster for task in loaded.tasks]
    assert sum(one == two for one, two in pairwise(clusters)) < len(clusters) / 3


def test_texts_name_no_function_or_parameter(loaded):
    for task in loaded.tasks:
        assert not words_outside_quotes(task.spec.turns[0]) & FORBIDDEN, task.id


def test_what_a_panel_publishes_is_what_it_holds(loaded):
    published = read_publication(panels_folder("bfcl") / f"{loaded.name}{SUFFIX}")
    assert published.panel == loaded.name
    assert set(published.fingerprints) == {fingerprint(task.spec) for task in loaded.tasks}
    assert set(published.call_sequences) == {call_sequence(task.spec) for task in loaded.tasks}


def test_a_panel_file_holds_ids_and_labels_only(loaded):
    content = json.loads((panels_folder("bfcl") / f"{loaded.name}.json").read_text())
    assert len(content["tasks"]) == len(loaded.tasks)
    for entry in content["tasks"]:
        assert set(entry) == {"index", "start", "length", "wording_seed", "forced", "strata"}
        assert all(isinstance(entry[key], int) for key in ("index", "start", "length", "wording_seed"))


def test_the_panels_share_no_task():
    one, two = ({fingerprint(task.spec) for task in load_panel(name)} for name in panel_names())
    assert not one & two


def _other_seed(content):
    content["tasks"][0]["wording_seed"] += 1


def _other_stratum(content):
    content["tasks"][0]["strata"]["rarity"] = (
        "unseen" if content["tasks"][0]["strata"]["rarity"] != "unseen" else "rare"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_other_seed, "hash"),
        (_other_stratum, "hash"),
        (lambda content: content["tasks"].pop(), "hash"),
        (lambda content: content["tasks"].reverse(), "hash"),
        (lambda content: content["tasks"][0].update(index=0), "index 0"),
        (lambda content: content["tasks"][0].update(index=45), "index 45"),
        (lambda content: content["tasks"][0].update(start=90), "slice"),
        (lambda content: content["tasks"][0].update(forced=[]), "altered"),
        (lambda content: content.update(panel="templated-test"), "templated-test"),
        (lambda content: content.update(more=1), "altered"),
        (lambda content: content.update(sha256="0" * 64), "hash"),
    ],
)
def test_a_tampered_panel_is_refused(copies, change, told):
    assert load_panel("templated-dev")
    altered(copies, change)
    with pytest.raises(InputError, match=told):
        load_panel("templated-dev")


def test_a_panel_with_the_fingerprints_of_another_is_refused(copies):
    (copies / f"templated-dev{SUFFIX}").write_text((copies / f"templated-test{SUFFIX}").read_text())
    with pytest.raises(InputError, match="does not belong"):
        load_panel("templated-dev")


def test_an_unknown_or_missing_panel_is_refused(copies):
    with pytest.raises(InputError, match="templated-dev, templated-test"):
        load_panel("templated")
    (copies / "templated-dev.json").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        load_panel("templated-dev")


def test_the_command_makes_panels_that_load_and_replaces_none(copies, monkeypatch, capsys):
    monkeypatch.setattr(panels, "_SPLITS", {"templated-dev": "dev"})
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["--folder", str(copies), "--seed", "5"])
    assert "--force" in capsys.readouterr().err
    before = load_panel("templated-dev")
    main(["--folder", str(copies), "--seed", "5", "--force"])
    told = capsys.readouterr().out
    assert str(copies / "templated-dev.json") in told
    after = load_panel("templated-dev")
    assert f"{len(after)} of {len(after)} slices" in told
    assert [task.id for task in after] != [task.id for task in before]


def test_a_limit_draws_a_sample_of_its_size(monkeypatch):
    monkeypatch.setattr(panels, "_LIMITS", {"templated-dev": 30})
    file, tasks = panels.make_panel("templated-dev", ENVIRONMENT)
    assert (len(tasks), len({task.id for task in tasks})) == (30, 30)
    assert file.available > 100
    assert len({task.cluster for task in tasks}) > 5
