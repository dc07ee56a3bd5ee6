"""Evaluation sets: held by their hash, labelled rightly, and of held-out indices only."""

import base64
import json
import lzma
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

import pytest
from support.templated_calls import FORBIDDEN, LONG_NAMES, TEMPLATED_CLASSES, words_outside_quotes

from environments.base import InputError
from environments.bfcl import evaluation_sets
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.evaluation_sets import (
    TEMPLATED_SETS,
    TemplatedSetTask,
    load_set,
)
from environments.bfcl.official import load_category, split_of
from environments.bfcl.templated.wordings import forced_calls
from environments.task_text import caused_errors
from environments.verification.canonical import PublishedSet, call_sequence, fingerprint, read_fixed
from environments.verification.decontamination import SUFFIX, sets_folder
from environments.verification.verify import verify

ENVIRONMENT = BFCLEnvironment(TEMPLATED_CLASSES)
SIZES = {
    "templated-dev": (100, 250),
    "templated-test": (400, 400),
    "longer-dev": (40, 200),
    "longer-test": (200, 200),
    "turns-dev": (35, 200),
    "turns-test": (200, 200),
    "world-dev": (250, 300),
    "world-test": (400, 500),
    "world-longer-dev": (100, 150),
    "world-longer-test": (200, 250),
    "world-turns-dev": (100, 150),
    "world-turns-test": (200, 250),
}
CLUSTERS = {
    "templated-dev": 7,
    "templated-test": 40,
    "longer-dev": 5,
    "longer-test": 30,
    "turns-dev": 6,
    "turns-test": 35,
    "world-dev": 14,
    "world-test": 90,
    "world-longer-dev": 14,
    "world-longer-test": 80,
    "world-turns-dev": 14,
    "world-turns-test": 80,
}
LENGTHS = {
    "templated": (1, 2, 3),
    "longer": (4, 5, 6),
    "turns": (2, 3, 4),
    "world": (1, 2, 3),
    "world-longer": (4, 5, 6),
    "world-turns": (2, 3, 4, 5, 6),
}
FUNCTIONS = {"world-dev": 118, "world-test": 120}
"""Functions of the 128 that a set's references call at least."""


@dataclass(frozen=True)
class Loaded:
    name: str
    tasks: tuple[TemplatedSetTask, ...]
    seconds: float


@cache
def load(name: str) -> Loaded:
    began = time.perf_counter()
    tasks = load_set(name)
    return Loaded(name, tasks, time.perf_counter() - began)


@pytest.fixture(scope="module", params=tuple(TEMPLATED_SETS))
def loaded(request) -> Loaded:
    return load(request.param)


@pytest.fixture
def copies(tmp_path, monkeypatch):
    for path in sets_folder("bfcl").glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(evaluation_sets, "sets_folder", lambda environment: tmp_path)
    return tmp_path


def altered(folder, change, name="templated-dev.json"):
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def test_a_evaluation_set_loads_quickly(loaded):
    assert loaded.seconds < 3


def test_a_evaluation_set_is_large_enough_and_of_held_out_indices(loaded):
    split = loaded.name.rpartition("-")[2]
    least, most = SIZES[loaded.name]
    assert least <= len(loaded.tasks) <= most
    for task in loaded.tasks:
        index = int(task.id.removeprefix(f"{loaded.name}-").split("-")[0])
        assert split_of(index) == task.spec.split == split
        assert loaded.name.startswith("world") or index % 50 < 40
    assert len({task.id for task in loaded.tasks}) == len(loaded.tasks)
    assert len({fingerprint(task.spec) for task in loaded.tasks}) == len(loaded.tasks)


def test_tasks_with_equal_starts_share_a_cluster_and_others_do_not(loaded):
    starts = {(task.cluster, json.dumps(task.spec.initial_state, sort_keys=True)) for task in loaded.tasks}
    assert len(starts) == len({start for _, start in starts}) == len({cluster for cluster, _ in starts})
    assert len(starts) >= CLUSTERS[loaded.name]


@pytest.mark.slow
def test_every_task_verifies_and_its_marks_are_those_of_a_replay(loaded):
    for task in loaded.tasks[:: 25 if loaded.name.startswith("world") else 4]:
        assert verify(task.spec, ENVIRONMENT, (), ()).accepted, task.id
        places = [(turn, c) for turn, calls in enumerate(task.spec.reference) for c in range(len(calls))]
        needed = any(caused_errors(ENVIRONMENT, task.spec, turn, c) for turn, c in places)
        forced = any(any(flags) for flags in forced_calls(ENVIRONMENT, task.spec))
        assert task.strata["precondition"] == ("forced" if forced else "said" if needed else "none"), task.id


def test_strata_of_length_and_rarity_are_right(loaded):
    train = load_category("base", ("train",))
    counts = Counter(call.name for task in train for turn in task.spec.reference for call in turn)
    for task in loaded.tasks:
        calls = [call for turn in task.spec.reference for call in turn]
        assert task.strata["length"] == str(len(calls))
        rarest = min(counts[call.name] for call in calls)
        assert task.strata["rarity"] == ("common" if rarest >= 5 else "rare" if rarest else "unseen")


def test_every_stratum_has_tasks(loaded):
    expected = {
        "precondition": {"forced", "said", "none"},
        "length": set(map(str, LENGTHS[loaded.name.rpartition("-")[0]])),
        "rarity": {"common", "rare", "unseen"},
    }
    if loaded.name.startswith("world"):
        expected["source"] = {"human", "explored"}
    for task in loaded.tasks:
        assert task.strata.keys() == expected.keys()
    for label, values in expected.items():
        assert {task.strata[label] for task in loaded.tasks} == values


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_set_of_the_world_covers_the_functions_evenly(name):
    tasks = load(name).tasks
    calling = Counter(c for task in tasks for c in {call.name for turn in task.spec.reference for call in turn})
    assert len(calling) >= FUNCTIONS[name]
    assert sum(count == 1 for count in calling.values()) < 10
    assert max(calling.values()) < 0.1 * len(tasks)
    assert len({call_sequence(task.spec) for task in tasks}) > 0.6 * len(tasks)


def test_the_order_is_mixed_so_that_a_prefix_is_a_sample(loaded):
    clusters = [task.cluster for task in loaded.tasks]
    sizes, n = Counter(clusters).values(), len(clusters)
    by_chance = sum(size * (size - 1) for size in sizes) / n
    assert sum(one == two for one, two in pairwise(clusters)) < by_chance + 1.5 * n**0.5 < n - len(sizes)


def test_texts_name_no_function_or_parameter(loaded):
    for task in loaded.tasks:
        names = LONG_NAMES - {"read_write"} if loaded.name.startswith("world") else FORBIDDEN
        for text in task.spec.turns:
            assert not words_outside_quotes(text) & names, task.id


def test_what_a_evaluation_set_publishes_is_what_it_holds(loaded):
    published = read_fixed(sets_folder("bfcl") / f"{loaded.name}{SUFFIX}", PublishedSet)
    assert published.panel == loaded.name
    assert set(published.fingerprints) == {fingerprint(task.spec) for task in loaded.tasks}
    assert set(published.call_sequences) == {call_sequence(task.spec) for task in loaded.tasks}


def test_the_file_of_an_evaluation_set_shows_no_task(loaded):
    content = json.loads((sets_folder("bfcl") / f"{loaded.name}.json").read_text())
    assert content["tasks"] == len(loaded.tasks)
    shown = json.dumps(content)
    assert not any(text in shown for task in loaded.tasks for text in task.spec.turns)


def test_the_evaluation_sets_share_no_task():
    """Those of one study: a slice of the first two classes may also be in a set of the world."""
    for of_the_world in (False, True):
        names = [name for name in tuple(TEMPLATED_SETS) if name.startswith("world") == of_the_world]
        found = Counter(fingerprint(task.spec) for name in names for task in load(name).tasks)
        assert set(found.values()) == {1}


def test_a_task_of_two_turns_ends_the_first_where_a_human_turn_ends():
    human = {task.index: [len(turn) for turn in task.spec.reference] for task in load_category("base", ("dev",))}
    tasks = load_set("turns-dev")
    assert len(tasks) > 30
    for task in tasks:
        index, start, _ = map(int, task.id.removeprefix("turns-dev-").split("-"))
        first, second = map(len, task.spec.reference)
        ends = list(accumulate(human[index]))
        assert start + first in ends
        assert not any(start < end < start + first + second for end in ends if end != start + first)
        assert len(task.spec.turns) == 2
        assert all(task.spec.turns)


def _other_stratum(content):
    text = lzma.decompress(base64.b85decode(content["packed"])).replace(b'"rare"', b'"unseen"')
    content["packed"] = base64.b85encode(lzma.compress(text)).decode()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_other_stratum, "hash"),
        (lambda content: content.update(packed=content["packed"][:-5]), "hash"),
        (lambda content: content.update(packed="not packed"), "hash"),
        (lambda content: content.update(tasks=1), "does not belong"),
        (lambda content: content.update(tasks=[]), "altered"),
        (lambda content: content.update(panel="templated-test"), "templated-test"),
        (lambda content: content.update(more=1), "altered"),
        (lambda content: content.update(sha256="0" * 64), "hash"),
    ],
)
def test_a_tampered_evaluation_set_is_refused(copies, change, told):
    assert load_set("templated-dev")
    altered(copies, change)
    with pytest.raises(InputError, match=told):
        load_set("templated-dev")


def test_a_evaluation_set_with_the_fingerprints_of_another_is_refused(copies):
    (copies / f"templated-dev{SUFFIX}").write_text((copies / f"templated-test{SUFFIX}").read_text())
    with pytest.raises(InputError, match="does not belong"):
        load_set("templated-dev")


def test_an_unknown_or_missing_evaluation_set_is_refused(copies):
    with pytest.raises(InputError, match="templated-dev, templated-test"):
        load_set("templated")
    (copies / "templated-dev.json").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        load_set("templated-dev")
