"""The recorded run of the language model: whole, small, of no machine, and readable as the notebook reads it."""

from __future__ import annotations

import tarfile

import pytest

from environments.base import InputError
from graph.report.lineage import History
from graph.report.story import chain_steps
from graph.walkthrough.language_model import (
    RECORDED,
    answers_table,
    changes_table,
    contexts_table,
    followed,
    language_model_run,
    rounds_table,
    signals_table,
)
from memory.records import SignalKind
from memory.run import RunDirectory


@pytest.fixture(scope="module")
def history() -> History:
    return History.read(language_model_run())


def test_the_archive_holds_records_alone() -> None:
    assert RECORDED.stat().st_size < 1_000_000
    with tarfile.open(RECORDED) as archive:
        for entry in archive.getmembers():
            assert entry.isfile()
            assert (entry.uid, entry.gid, entry.uname, entry.mtime) == (0, 0, "", 0)
            assert entry.name == "answers.jsonl" or entry.name.startswith("run/")
            assert entry.name.endswith((".json", ".jsonl", ".yaml"))
            held = archive.extractfile(entry)
            assert held is not None
            text = held.read()
            # BFCL's file systems have a folder /tmp, which an explorer may enter.
            folders = (b"/work/", b"/home/", b"/root/") + ((b"/tmp/",) if "interactions" not in entry.name else ())
            assert not any(path in text for path in folders)


def test_it_is_a_run_of_the_recipe_on_the_packaged_model(history: History) -> None:
    changed = {row[0] for row in changes_table(history).rows}
    assert "policy.path" not in changed
    assert not [key for key in changed if key.startswith(("tasks.", "roles."))]


def test_every_table_of_the_notebook_has_rows(history: History) -> None:
    assert len(rounds_table(history).rows) == len(history.iterations)
    assert [row[0] for row in signals_table(history).rows] == list(SignalKind)
    assert sum(int(row[2]) for row in signals_table(history).rows) == len(history.signals) > 0
    assert contexts_table(history).rows
    chain, task = followed(history)
    assert task in chain.admitted
    assert list(chain_steps(history, chain, task))


def test_each_turn_was_answered_before_and_after(history: History) -> None:
    rows = answers_table(history).rows
    assert [row[0] for row in rows] == ["user", "reference", "before", "after"] * (len(rows) // 4)
    assert {row[2] for row in rows if row[0] in ("before", "after")} <= {"done", "failed"}
    assert all(row[1] for row in rows if row[0] in ("user", "reference"))


def test_a_run_that_made_no_task_has_nothing_to_follow(history: History) -> None:
    class Barren:
        run = RunDirectory(history.run.root)
        chains: dict = {}

    with pytest.raises(InputError, match="led to a task: name another run"):
        followed(Barren())
