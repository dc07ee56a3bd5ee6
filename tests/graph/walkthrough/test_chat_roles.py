"""The scene of the notebook on chat roles: what it acts out fails, and hostile replies end where they should."""

from __future__ import annotations

import asyncio

from agents.chat.recorded import RecordedReply
from graph.walkthrough.chat_roles import (
    HOSTILE,
    RECORDED,
    failed_attempt,
    hostile_table,
    new_ledger,
    readable,
    spending_chart,
    spending_table,
)
from memory.jsonl import read_jsonl


def test_the_attempt_fails_as_the_signal_says() -> None:
    evidence = failed_attempt().evidence
    assert not evidence.trajectory.success
    assert evidence.signal.trajectory_id == evidence.trajectory.id
    assert [step.observation.failed for step in evidence.trajectory.turns[0].steps] == [True, False, True]


def test_every_hostile_reply_is_repaired_cut_or_refused_and_costs_something() -> None:
    ledger, path = new_ledger()
    shown = asyncio.run(hostile_table(failed_attempt(), ledger))
    became = {row[0]: row[4] for row in shown.rows}
    assert became["unknown tool, then repaired"].startswith("used after the repair turn")
    assert became["nested"].startswith("used after the repair turn")
    assert became["a book"] == "used, with a summary of 800 characters"
    assert became["prose twice"].startswith("refused: ")
    assert became["too long"].startswith("refused: ")
    assert len(spending_table(path).rows) == len(became)
    assert "together" in spending_chart(path, budget=10).words


def test_the_files_say_what_they_are_for() -> None:
    notes = (RECORDED.parent / "README.md").read_text()
    for path in RECORDED.parent.glob("*.jsonl"):
        assert f"`{path.name}`" in notes
        assert read_jsonl(path, RecordedReply)
    assert all(one.role for one in read_jsonl(HOSTILE, RecordedReply))


def test_long_lines_are_wrapped_and_keep_their_words() -> None:
    text = "one\n" + "word " * 60 + "end"
    lines = readable(text).splitlines()
    assert lines[0] == "one"
    assert max(map(len, lines)) <= 100
    assert " ".join(readable(text).split()) == " ".join(text.split())
