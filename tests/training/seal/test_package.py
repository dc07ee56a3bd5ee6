"""The form of a cue is written in one place, so that nobody parses cues out of text."""

from __future__ import annotations

from support import ROOT

SOURCES = ("environments", "memory", "agents", "training", "graph", "evaluation")


def test_the_form_of_a_cue_is_written_in_one_place() -> None:
    writers = {
        str(path.relative_to(ROOT))
        for room in SOURCES
        for path in (ROOT / room).rglob("*.py")
        if any(form in path.read_text() for form in ("[guideline: ", "[hint: "))
    }
    assert writers == {"environments/base.py"}
