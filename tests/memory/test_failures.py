"""The failure memory on a real Chroma folder: known and new, recurrence, batches, repetition and rebuilding."""

import os
import shutil
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from support import ROOT
from support.late import Late
from support.sample_records import context

from memory.failures import FailureMemory, embedded_text, hashed_ngrams, use_memory
from memory.records import Cause
from memory.settings import MemorySettings

chromadb = Late("chromadb")

SETTINGS = MemorySettings()
NOTES = ("dir_name='notes'", "cwd='/workspace/documents'", "mkdir: cannot create 'notes': it exists")
NEARLY = ("dir_name='notes'", "cwd='/workspace/documents'", "mkdir: cannot create 'notes' : it exists.")
OTHER = ("fileName='budget.txt'", "cwd='/archive/2023'", "touch: no folder of this name")


@pytest.fixture
def memory(tmp_path):
    with closing(FailureMemory(tmp_path / "failures", SETTINGS)) as opened:
        yield opened


def statuses(results):
    return [result.status for result in results]


def test_an_empty_memory_knows_nothing(memory):
    (result,) = memory.compare([context("a")], 0)
    assert (result.context_id, result.status, result.nearest, result.cosine) == ("a", "new", None, None)
    assert memory.compare([], 0) == ()


def test_the_same_facts_are_known_and_others_are_new(memory):
    memory.remember([context("a", NOTES)], {"a": 2})
    same, nearly, other = memory.compare([context("b", NOTES, 1), context("c", NEARLY, 1), context("d", OTHER, 1)], 1)
    assert (same.status, same.nearest, same.cosine) == ("known", "a", 1.0)
    assert (nearly.status, nearly.nearest) == ("known", "a")
    assert 0.9 <= nearly.cosine < 1.0
    assert (other.status, other.nearest) == ("new", "a")
    assert other.cosine < 0.9


@pytest.mark.parametrize(
    "change",
    [{"tool": "touch"}, {"cause": Cause.MALFORMED}, {"error_class": "permission denied"}, {"environment": "other"}],
)
def test_equal_facts_under_another_signature_are_new(memory, change):
    memory.remember([context("a", NOTES)], {"a": 2})
    (result,) = memory.compare([context("b", NOTES, 1, **change)], 1)
    assert (result.status, result.nearest) == ("new", None)


def test_facts_and_how_are_embedded_and_nothing_else():
    plain = context("a", NOTES, how="it existed")
    assert embedded_text(plain) == "\n".join((*NOTES, "it existed"))
    assert embedded_text(plain) == embedded_text(context("b", NOTES, 3, how="it existed", why="template sentence"))


@pytest.mark.parametrize(
    ("explored", "admitted", "compared", "status"),
    [
        (0, 1, 1, "known"),
        (0, 1, 2, "known"),
        (0, 1, 3, "new"),
        (0, 1, 9, "new"),
        (2, 1, 4, "known"),
        (0, 0, 1, "new"),
        (0, 0, 2, "new"),
    ],
)
def test_a_weakness_that_recurs_or_admitted_nothing_is_new_again(memory, explored, admitted, compared, status):
    memory.remember([context("a", NOTES, explored)], {"a": admitted})
    (result,) = memory.compare([context("b", NOTES, compared)], compared)
    compared = ("a", 1.0) if status == "known" else (None, None)
    assert (result.status, result.nearest, result.cosine) == (status, *compared)


def test_duplicates_inside_a_batch_follow_the_order_of_ids(memory):
    batch = [context("c", NOTES), context("a", OTHER), context("b", NOTES), context("d", NOTES, tool="touch")]
    answers = {result.context_id: result for result in memory.compare(batch, 0)}
    assert [result.context_id for result in memory.compare(batch, 0)] == ["c", "a", "b", "d"]
    assert {one: answers[one].status for one in "abcd"} == {"a": "new", "b": "new", "c": "known", "d": "new"}
    assert answers["c"].nearest == "b"
    assert answers == {result.context_id: result for result in memory.compare(batch[::-1], 0)}


def test_a_context_that_is_known_makes_no_other_known(tmp_path):
    """Only what is explored covers a weakness: the third is like the second, but not like the explored first."""
    words = ("engine", "fuel", "budget", "archive", "display", "window", "parking", "mountain", "letter", "clock")
    contexts = [
        context(identifier, words[start : start + 8]) for identifier, start in zip("abc", range(3), strict=True)
    ]
    first, second, third = hashed_ngrams([embedded_text(one) for one in contexts])
    assert min(first @ second, second @ third) >= 0.8 > first @ third
    with closing(FailureMemory(tmp_path / "failures", MemorySettings(duplicate_above=0.8))) as memory:
        assert statuses(memory.compare(contexts, 0)) == ["new", "known", "new"]
        assert statuses(memory.compare(contexts[1:], 0)) == ["new", "known"]


def test_comparing_writes_nothing_and_ignores_the_iteration_itself(memory):
    batch = [context("a", NOTES), context("b", NEARLY), context("c", OTHER)]
    before = memory.compare(batch, 0)
    assert memory.ids == frozenset()
    assert memory.compare(batch, 0) == before
    memory.remember([batch[0], batch[2]], {"a": 1, "c": 1})
    assert memory.compare(batch, 0) == before
    assert statuses(memory.compare([context("d", NOTES, 1)], 1)) == ["known"]


def test_remembering_again_changes_nothing_but_what_it_says(tmp_path):
    later = [context("x", NEARLY, 1), context("y", OTHER, 1)]
    with (
        closing(FailureMemory(tmp_path / "once", SETTINGS)) as once,
        closing(FailureMemory(tmp_path / "twice", SETTINGS)) as twice,
    ):
        contexts = [context("a", NOTES), context("b", OTHER)]
        once.remember(contexts, {"a": 1, "b": 1})
        twice.remember(contexts[:1], {"a": 0})
        assert statuses(twice.compare(later, 1)) == ["new", "new"]
        for _ in range(2):
            twice.remember(contexts, {"a": 1, "b": 1})
        assert twice.ids == {"a", "b"}
        assert twice._contexts.count() == 2
        expected = once.compare(later, 1)
        assert twice.compare(later, 1) == expected
    with closing(FailureMemory(tmp_path / "twice", SETTINGS)) as reopened:
        assert reopened.compare(later, 1) == expected


def test_more_contexts_than_chroma_takes_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(chromadb.api.client.Client, "get_max_batch_size", lambda self: 4)
    written = []
    upsert = chromadb.Collection.upsert
    monkeypatch.setattr(
        chromadb.Collection, "upsert", lambda self, **rows: written.append(rows["ids"]) or upsert(self, **rows)
    )
    contexts = [context(f"a{number:02d}", (f"number {number * 7919}",)) for number in range(12)]
    with closing(FailureMemory(tmp_path / "failures", SETTINGS)) as memory:
        memory.remember(contexts, {one.id: 1 for one in contexts})
    assert [len(ids) for ids in written] == [4, 4, 4]
    with closing(FailureMemory(tmp_path / "failures", SETTINGS)) as memory:
        assert memory.ids == {one.id for one in contexts}
        assert memory.ids == {one.id for one in contexts}
        probes = [context(f"b{number:02d}", (f"number {number * 7919}",), 1) for number in range(12)]
        answers = memory.compare(probes, 1)
    assert [answer.nearest for answer in answers] == [one.id for one in contexts]
    assert {answer.cosine for answer in answers} == {1.0}


def _history(rng, iterations, per_iteration):
    """Contexts with values drawn from few, so that many are alike, and how many tasks each admitted."""
    words = ["notes", "budget", "report", "archive", "draft"]
    history = []
    for iteration in range(iterations):
        contexts = [
            context(
                f"context-{rng.integers(10**9):09d}",
                tuple(f"{key}={words[rng.integers(len(words))]!r}" for key in ("dir_name", "cwd")),
                iteration,
                tool=("mkdir", "touch")[rng.integers(2)],
            )
            for _ in range(per_iteration)
        ]
        history.append((contexts, {one.id: int(rng.integers(3)) for one in contexts}))
    return history


def _compared_by_hand(remembered, contexts, iteration):
    """The documented rule over everything that was remembered: (context, iteration, tasks admitted)."""

    def cosine(one, other):
        first, second = hashed_ngrams([embedded_text(one), embedded_text(other)])
        return round(float(first.astype(np.float64) @ second), 4)

    covering = [one for one, explored, admitted in remembered if 0 < iteration - explored < 3 and admitted]
    statuses, batch = {}, []
    for one in sorted(contexts, key=lambda context: context.id):
        likes = [cosine(one, other) for other in covering + batch if other.signature() == one.signature()]
        statuses[one.id] = "known" if max(likes, default=0.0) >= SETTINGS.duplicate_above else "new"
        if statuses[one.id] == "new":
            batch.append(one)
    return [statuses[context.id] for context in contexts]


def test_results_are_those_of_the_rule_applied_to_everything(memory):
    rng = np.random.default_rng(11)
    remembered = []
    seen = set()
    for iteration, (contexts, admitted) in enumerate(_history(rng, iterations=6, per_iteration=10)):
        compared = statuses(memory.compare(contexts, iteration))
        assert compared == _compared_by_hand(remembered, contexts, iteration)
        seen.update(compared)
        memory.remember(contexts, admitted)
        remembered += [(one, iteration, admitted[one.id]) for one in contexts]
    assert seen == {"new", "known"}


def test_what_is_killed_in_writing_is_remembered_by_the_next_attempt(memory, monkeypatch):
    def full(**_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(memory._contexts, "upsert", full)
        with pytest.raises(OSError, match="no space"):
            memory.remember([context("a", NOTES)], {"a": 1})
    assert memory.ids == frozenset()
    assert statuses(memory.compare([context("b", NOTES, 1)], 1)) == ["new"]
    memory.remember([context("a", NOTES)], {"a": 1})
    assert memory.ids == {"a"}
    assert statuses(memory.compare([context("b", NOTES, 1)], 1)) == ["known"]


EXPLORED = [
    context("a", NOTES, 1),
    context("b", OTHER, 1),
    context("c", NOTES, 2, tool="touch"),
    context("d", OTHER, 2),
]
ADMITTED = {"a": 2, "b": 1, "c": 1}  # d admitted nothing
COMING = [context("x", NOTES, 3), context("y", OTHER, 3)]


def metadata(one, **change):
    return {"signature": one.signature(), "iteration": one.iteration, "admitted": ADMITTED.get(one.id, 0)} | change


def poison(index, name, one, **change):
    """What another program writes into the index: an entry ``name`` as of ``one``, but for ``change``."""
    texts = [embedded_text(one)]
    index.upsert(ids=[name], embeddings=hashed_ngrams(texts), documents=texts, metadatas=[metadata(one, **change)])


FIRST = EXPLORED[0]
POISONS = {
    "an entry of a coming context": lambda index: poison(index, "z", COMING[1], iteration=2, admitted=5),
    "an entry of another signature": lambda index: poison(index, "z", context("z", NOTES, 2, tool="rm"), admitted=1),
    "an entry without a number": lambda index: poison(index, "z", FIRST, iteration=1.5),
    "an entry fewer": lambda index: index.delete(ids=["a"]),
    "an entry fewer, of another signature": lambda index: index.delete(ids=["c"]),
    "no entry": lambda index: index.delete(ids=["a", "b", "c", "d"]),
    "a signature": lambda index: index.update(ids=["a"], metadatas=[metadata(FIRST, signature="none")]),
    "the signature of a coming context": lambda index: poison(index, "c", EXPLORED[2], signature=COMING[0].signature()),
    "an iteration, too old": lambda index: index.update(ids=["a"], metadatas=[metadata(FIRST, iteration=-5)]),
    "an iteration, to come": lambda index: index.update(ids=["a"], metadatas=[metadata(FIRST, iteration=3)]),
    "tasks that it never admitted": lambda index: index.update(
        ids=["d"], metadatas=[metadata(EXPLORED[3], admitted=5)]
    ),
    "no tasks": lambda index: index.update(ids=["a"], metadatas=[metadata(FIRST, admitted=0)]),
}


@pytest.mark.parametrize("change", POISONS.values(), ids=POISONS)
def test_an_index_that_differs_from_the_records_is_told_and_rebuilt_with_a_warning(tmp_path, capsys, change):
    folder = tmp_path / "failures"
    with closing(FailureMemory(folder, SETTINGS)) as memory:
        memory.rebuild(EXPLORED, ADMITTED)
        assert memory.agrees(EXPLORED, ADMITTED, 3)
        expected = memory.compare(COMING, 3)
        change(memory._contexts)
    with closing(FailureMemory(folder, SETTINGS)) as memory:
        assert not memory.agrees(EXPLORED, ADMITTED, 3)
        emptied = memory.ids == frozenset()
        memory.rebuild(EXPLORED, ADMITTED)
        assert memory.agrees(EXPLORED, ADMITTED, 3)
        assert memory.compare(COMING, 3) == expected
    warning = f"warning: {folder} differs from the records of the run: it is rebuilt from them\n"
    assert capsys.readouterr().err == ("" if emptied else warning)


def test_what_changes_no_result_is_not_looked_at(memory):
    """Contexts that are too old, this iteration's own after a kill, and documents, which nothing reads."""
    memory.rebuild(EXPLORED, ADMITTED)
    poison(memory._contexts, "old", context("old", NOTES, 0))
    memory.remember([context("x", NOTES, 3)], {"x": 1})
    assert memory.agrees(EXPLORED, ADMITTED, 3)
    assert memory.agrees([*EXPLORED, context("older", NOTES, 0)], {**ADMITTED, "older": 1}, 3)
    assert memory.agrees([], {}, 0)
    assert not memory.agrees([], {}, 3)


def test_a_context_without_facts_is_compared_too(memory):
    memory.remember([context("a", ())], {"a": 1})
    assert statuses(memory.compare([context("b", (), 1), context("c", NOTES, 1)], 1)) == ["known", "new"]


def test_the_collection_measures_by_cosine(memory):
    assert memory._contexts.configuration["hnsw"]["space"] == "cosine"


def _torn_page(whole: bytes) -> bytes:
    return whole[: len(whole) - 8192] + b"x" * 4096 + whole[-4096:]


DAMAGED = {
    "garbage": lambda whole: b"no database" * 1000,
    "cut": lambda whole: whole[: len(whole) // 2],
    "cut in its header": lambda whole: whole[:50],
    "a page of something else": _torn_page,
    "nothing": lambda whole: b"",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("filled") / "failures"
    with closing(FailureMemory(folder, SETTINGS)) as memory:
        memory.remember([context("a", NOTES)], {"a": 1})
    return folder


def _compared_from_the_records(folder):
    """As ``deduplicate`` uses the memory: one that differs from the records is rebuilt."""

    def compare(memory):
        explored, coming = [context("a", NOTES)], [context("b", NOTES, 1)]
        if not memory.agrees(explored, {"a": 1}, 1):
            memory.rebuild(explored, {"a": 1})
        return memory.compare(coming, 1)

    return use_memory(folder, SETTINGS, compare)


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_index_is_deleted_and_rebuilt_with_a_warning(tmp_path, filled, capsys, damage):
    folder = tmp_path / "failures"
    shutil.copytree(filled, folder)
    database = folder / "chroma.sqlite3"
    broken = damage(database.read_bytes())
    database.write_bytes(broken)
    assert statuses(_compared_from_the_records(folder)) == ["known"]
    if broken:
        assert f"warning: {folder} cannot be read (" in capsys.readouterr().err
    with closing(FailureMemory(folder, SETTINGS)) as memory:
        assert memory.ids == {"a"}


def test_damage_that_shows_in_use_is_mended_once(tmp_path, filled, capsys):
    folder, asked = tmp_path / "failures", []
    shutil.copytree(filled, folder)

    def use(memory):
        asked.append(memory.ids == {"a"})
        if asked == [True]:
            raise chromadb.errors.InternalError("a page cannot be read")
        return memory.ids == {"a"}

    assert use_memory(folder, SETTINGS, use) is False
    assert asked == [True, False]
    assert "(a page cannot be read)" in capsys.readouterr().err


OFFLINE = """
import socket, sys
from contextlib import closing
from pathlib import Path

sys.path.insert(0, sys.argv[2])

def refuse(*arguments):
    print("network", arguments)
    raise OSError("no network in this test")

socket.socket.connect = refuse
socket.getaddrinfo = refuse
from memory.failures import FailureMemory
assert "chromadb" not in sys.modules
from memory.settings import MemorySettings
from support.sample_records import context

with closing(FailureMemory(Path(sys.argv[1]), MemorySettings())) as memory:
    memory.remember([context("a")], {"a": 1})
    print(memory.compare([context("b", iteration=1)], 1)[0].status)
assert "antigravity" not in sys.modules
"""
ENV = "ALLOW_RESET=perhaps\nCHROMA_PRODUCT_TELEMETRY_IMPL=antigravity.Nothing\n"


@pytest.mark.process
def test_chroma_is_imported_late_and_asks_nothing_of_the_network_and_of_the_working_directory(tmp_path):
    (tmp_path / ".env").write_text(ENV)
    folder = str(tmp_path / "failures")
    here = str(ROOT / "tests")
    ran = subprocess.run(
        [sys.executable, "-c", OFFLINE, folder, here],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ran.stdout, ran.returncode) == ("known\n", 0), ran.stderr
