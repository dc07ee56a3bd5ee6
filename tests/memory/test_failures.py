"""The failure memory on a real Chroma folder: known and new, recurrence, batches, repetition and rebuilding."""

import os
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from support import ROOT
from support.late import Late
from support.sample_records import context

from memory import failures
from memory.failures import (
    DeduplicationResult,
    FailureMemory,
    MemorySettings,
    embedded_text,
    explored_before,
    hashed_ngrams,
    indexed,
)
from memory.jsonl import write_jsonl
from memory.records import Cause, DraftVerification, Unsignalled
from memory.run import RunDirectory

chromadb = Late("chromadb")

SETTINGS = MemorySettings()
NOTES = ("dir_name='notes'", "cwd='/workspace/documents'", "mkdir: cannot create 'notes': it exists")
NEARLY = ("dir_name='notes'", "cwd='/workspace/documents'", "mkdir: cannot create 'notes' : it exists.")
OTHER = ("fileName='budget.txt'", "cwd='/archive/2023'", "touch: no folder of this name")


@pytest.fixture
def memory(tmp_path):
    with closing(FailureMemory(tmp_path / "failures", SETTINGS)) as opened:
        yield opened


def remembered(memory):
    return set(memory._contexts.get(include=[])["ids"])


def statuses(results):
    return [result.status for result in results]


def record(run, iteration, contexts, admitted, known=()):
    """Write what an iteration explored: each context's status, and its drafts, of which so many were accepted."""
    folder = run.iteration(iteration)
    folder.root.mkdir(parents=True)
    write_jsonl(folder.contexts, contexts)
    status = {one.id: "known" if one.id in known else "new" for one in contexts}
    write_jsonl(folder.judgements, [DeduplicationResult(context_id=one, status=status[one]) for one in status])
    drafts = [(one, place, place < admitted.get(one, 0)) for one in status for place in range(4)]
    verdicts = [
        DraftVerification(
            draft_id=f"{one}{place}", context_id=one, accepted=accepted, reason=None if accepted else "duplicate"
        )
        for one, place, accepted in drafts
    ]
    write_jsonl(folder.verdicts, verdicts)


def test_an_empty_memory_knows_nothing(memory):
    (result,) = memory.compare([context("a")])
    assert (result.context_id, result.status, result.nearest, result.cosine) == ("a", "new", None, None)
    assert memory.compare([]) == ()


def test_the_same_facts_are_known_and_others_are_new(memory):
    memory.remember([context("a", NOTES)])
    same, nearly, other = memory.compare([context("b", NOTES, 1), context("c", NEARLY, 1), context("d", OTHER, 1)])
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
    memory.remember([context("a", NOTES)])
    (result,) = memory.compare([context("b", NOTES, 1, **change)])
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
def test_a_weakness_that_recurs_or_admitted_nothing_is_new_again(tmp_path, explored, admitted, compared, status):
    run = RunDirectory(tmp_path)
    for number in range(compared):
        record(run, number, [context("a", NOTES, number)] if number == explored else [], {"a": admitted})
    with indexed(run.failures_path, SETTINGS, explored_before(run, compared)) as memory:
        (result,) = memory.compare([context("b", NOTES, compared)])
    compared = ("a", 1.0) if status == "known" else (None, None)
    assert (result.status, result.nearest, result.cosine) == (status, *compared)


def test_duplicates_inside_a_batch_follow_the_order_of_ids(memory):
    batch = [context("c", NOTES), context("a", OTHER), context("b", NOTES), context("d", NOTES, tool="touch")]
    answers = {result.context_id: result for result in memory.compare(batch)}
    assert [result.context_id for result in memory.compare(batch)] == ["c", "a", "b", "d"]
    assert {one: answers[one].status for one in "abcd"} == {"a": "new", "b": "new", "c": "known", "d": "new"}
    assert answers["c"].nearest == "b"
    assert answers == {result.context_id: result for result in memory.compare(batch[::-1])}


def test_a_context_that_is_known_makes_no_other_known(tmp_path):
    """Only what is explored covers a weakness: the third is like the second, but not like the explored first."""
    words = ("engine", "fuel", "budget", "archive", "display", "window", "parking", "mountain", "letter", "clock")
    contexts = [
        context(identifier, words[start : start + 8]) for identifier, start in zip("abc", range(3), strict=True)
    ]
    first, second, third = hashed_ngrams([embedded_text(one) for one in contexts])
    assert min(first @ second, second @ third) >= 0.8 > first @ third
    with closing(FailureMemory(tmp_path / "failures", MemorySettings(duplicate_above=0.8))) as memory:
        assert statuses(memory.compare(contexts)) == ["new", "known", "new"]
        assert statuses(memory.compare(contexts[1:])) == ["new", "known"]


def test_comparing_writes_nothing(memory):
    batch = [context("a", NOTES), context("b", NEARLY), context("c", OTHER)]
    before = memory.compare(batch)
    assert remembered(memory) == set()
    assert memory.compare(batch) == before
    memory.remember([batch[0], batch[2]])
    assert statuses(memory.compare([context("d", NOTES, 1)])) == ["known"]
    assert remembered(memory) == {"a", "c"}


def test_remembering_again_changes_nothing(tmp_path):
    later = [context("x", NEARLY, 1), context("y", OTHER, 1)]
    with (
        closing(FailureMemory(tmp_path / "once", SETTINGS)) as once,
        closing(FailureMemory(tmp_path / "twice", SETTINGS)) as twice,
    ):
        contexts = [context("a", NOTES), context("b", OTHER)]
        once.remember(contexts)
        twice.remember(contexts[:1])
        assert statuses(twice.compare(later)) == ["known", "new"]
        for _ in range(2):
            twice.remember(contexts)
        assert remembered(twice) == {"a", "b"}
        assert twice._contexts.count() == 2
        expected = once.compare(later)
        assert twice.compare(later) == expected
    with closing(FailureMemory(tmp_path / "twice", SETTINGS)) as reopened:
        assert reopened.compare(later) == expected


def test_more_contexts_than_chroma_takes_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(chromadb.api.client.Client, "get_max_batch_size", lambda self: 4)
    written = []
    upsert = chromadb.Collection.upsert
    monkeypatch.setattr(
        chromadb.Collection, "upsert", lambda self, **rows: written.append(rows["ids"]) or upsert(self, **rows)
    )
    contexts = [context(f"a{number:02d}", (f"number {number * 7919}",)) for number in range(12)]
    with closing(FailureMemory(tmp_path / "failures", SETTINGS)) as memory:
        memory.remember(contexts)
    assert [len(ids) for ids in written] == [4, 4, 4]
    with closing(FailureMemory(tmp_path / "failures", SETTINGS)) as memory:
        assert remembered(memory) == {one.id for one in contexts}
        assert remembered(memory) == {one.id for one in contexts}
        probes = [context(f"b{number:02d}", (f"number {number * 7919}",), 1) for number in range(12)]
        answers = memory.compare(probes)
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


def test_results_are_those_of_the_rule_applied_to_everything(tmp_path):
    rng, run = np.random.default_rng(11), RunDirectory(tmp_path)
    remembered = []
    seen = set()
    for iteration, (contexts, admitted) in enumerate(_history(rng, iterations=6, per_iteration=10)):
        with indexed(run.failures_path, SETTINGS, explored_before(run, iteration)) as memory:
            compared = statuses(memory.compare(contexts))
        assert compared == _compared_by_hand(remembered, contexts, iteration)
        seen.update(compared)
        record(run, iteration, contexts, admitted)
        remembered += [(one, iteration, admitted[one.id]) for one in contexts]
    assert seen == {"new", "known"}


def test_what_is_killed_in_writing_is_remembered_by_the_next_attempt(memory, monkeypatch):
    def full(**_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(memory._contexts, "upsert", full)
        with pytest.raises(OSError, match="no space"):
            memory.remember([context("a", NOTES)])
    assert remembered(memory) == set()
    assert statuses(memory.compare([context("b", NOTES, 1)])) == ["new"]
    memory.remember([context("a", NOTES)])
    assert remembered(memory) == {"a"}
    assert statuses(memory.compare([context("b", NOTES, 1)])) == ["known"]


def test_a_context_without_facts_is_compared_too(memory):
    memory.remember([context("a", ())])
    assert statuses(memory.compare([context("b", (), 1), context("c", NOTES, 1)])) == ["known", "new"]


def test_the_collection_measures_by_cosine(memory):
    assert memory._contexts.configuration["hnsw"]["space"] == "cosine"


DAMAGED = {
    "garbage": lambda whole: b"no database" * 1000,
    "cut": lambda whole: whole[: len(whole) // 2],
    "cut in its header": lambda whole: whole[:50],
    "a page of something else": lambda whole: whole[: len(whole) - 8192] + b"x" * 4096 + whole[-4096:],
    "nothing": lambda whole: b"",
    "whole, of other contexts": lambda whole: whole,
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_the_index_is_made_of_the_records_whatever_is_in_its_folder(tmp_path, damage):
    folder = tmp_path / "failures"
    for _ in range(2):
        with indexed(folder, SETTINGS, [context("z", OTHER)]) as memory:
            assert statuses(memory.compare([context("b", NOTES, 1)])) == ["new"]
        database = folder / "chroma.sqlite3"
        database.write_bytes(damage(database.read_bytes()))
        with indexed(folder, SETTINGS, [context("a", NOTES)]) as memory:
            assert remembered(memory) == {"a"}
            assert statuses(memory.compare([context("b", NOTES, 1), context("c", OTHER, 1)])) == ["known", "new"]


def test_what_iterations_explored_is_read_from_their_records(tmp_path):
    """New contexts with facts, of the two iterations before one, of which a draft was accepted."""
    run = RunDirectory(tmp_path)
    for number, (first, second, third) in enumerate(("abc", "def", "ghi")):
        contexts = [context(first, NOTES, number), context(second, OTHER, number), context(third, OTHER, number)]
        record(run, number, contexts, {first: 2, second: 1}, known=[second])

    def explored(iteration):
        return [one.id for one in explored_before(run, iteration)]

    assert [explored(iteration) for iteration in range(4)] == [[], ["a"], ["a", "d"], ["d", "g"]]
    coverage = context("x", (), 0, kind=Unsignalled.COVERAGE)
    record(RunDirectory(tmp_path / "other"), 0, [coverage], {"x": 1})
    assert explored_before(RunDirectory(tmp_path / "other"), 1) == []


def test_a_context_at_the_limit_of_likeness_is_known(tmp_path):
    settings = SETTINGS.model_copy(update={"duplicate_above": 1.0})
    with indexed(tmp_path / "failures", settings, [context("a", NOTES)]) as memory:
        assert statuses(memory.compare([context("b", NOTES, 1)])) == ["known"]


def test_chroma_reports_nothing_and_reads_no_file_of_the_working_directory(memory):
    """A child process shows both below; this is why."""
    assert memory._client.get_settings().anonymized_telemetry is False
    assert failures._without_file(object, object, init_settings=1, dotenv_settings=2, env_settings=3) == (1, 3)


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
from memory.failures import FailureMemory, MemorySettings
assert "chromadb" not in sys.modules
from support.sample_records import context

with closing(FailureMemory(Path(sys.argv[1]), MemorySettings())) as memory:
    memory.remember([context("a")])
    print(memory.compare([context("b", iteration=1)])[0].status)
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


def as_a_notebook(folder):
    return chromadb.PersistentClient(folder)


def as_a_run(folder):
    return FailureMemory(folder, SETTINGS)


@pytest.mark.parametrize("look", [as_a_notebook, as_a_run])
def test_the_index_is_made_anew_while_this_process_has_it_open(tmp_path, look):
    folder, left_open = tmp_path / "failures", []
    for contexts in ([context("a", NOTES)], [context("a", NOTES), context("b", OTHER)], []):
        with indexed(folder, SETTINGS, contexts) as memory:
            found = memory.compare([context("c", NOTES, 1), context("d", OTHER, 1)])
        assert [one.nearest for one in found if one.status == "known"] == [one.id for one in contexts]
        assert [path.name for path in folder.glob("tmp*")] == []
        left_open.append(look(folder))
    for one in left_open:
        one.close()
    with closing(FailureMemory(folder, SETTINGS)) as opened:
        assert remembered(opened) == set()
