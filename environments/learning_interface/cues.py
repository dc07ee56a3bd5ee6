"""Cues as text: guidelines in front of the first user turn, a hint behind an error, and both read back.

Each cue is a line of its own that begins with its name in brackets, so that a rendering can tell cues from what the
user and the tools said. Their words are ours; those of guidelines hold neither quotes nor digits, which other rooms
read as the user's values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from environments.learning_interface.profile import TurnLabel


class HintKind(StrEnum):
    """Kinds of errors that a hint is given for (SEAL's six, and what is no call)."""

    MISSING_ARGUMENT = "missing_argument"
    UNEXPECTED_ARGUMENT = "unexpected_argument"
    BAD_PATH = "bad_path"
    NOT_AUTHENTICATED = "not_authenticated"
    UNKNOWN_TOOL = "unknown_tool"
    WRONG_TYPE = "wrong_type"
    MALFORMED = "malformed"


GUIDELINES = {
    TurnLabel.SPURIOUS_TOOL_CALL: "When none of the tools can do what is asked, or something that they need was not "
    "said, call nothing and end the turn.",
    TurnLabel.EMPTY_TURN: "Do not end a turn with words alone when a tool can do what is asked: call it first.",
    TurnLabel.INSTANCE_MISMATCH: "Use the tools of every system that the request is about.",
    TurnLabel.STATE_MISMATCH: "Before ending the turn, check that every change that was asked for was made with the "
    "values that were asked for, and nothing else was changed.",
    TurnLabel.RESPONSE_MISMATCH: "Look up everything that was asked for with the tool that answers it, and do not end "
    "the turn before it has answered.",
}
"""The guideline of each label that has one: those that say the policy did something wrong."""

_GUIDELINE = re.compile(rf"\[guideline: ({'|'.join(GUIDELINES)})\] [^\n]*\n")
_HINT = re.compile(rf"\n\[hint: ({'|'.join(HintKind)})\] [^\n]*\Z")


def with_guidelines(text: str, labels: Sequence[TurnLabel]) -> str:
    """A user turn's text behind the guidelines of ``labels``, a line each; the text itself without any."""
    return "".join(f"[guideline: {label}] {GUIDELINES[label]}\n" for label in labels) + text


def split_guidelines(text: str) -> tuple[tuple[TurnLabel, ...], str]:
    """The labels of the guidelines in front of a user turn's text, and the text without them."""
    labels = []
    while found := _GUIDELINE.match(text):
        labels.append(TurnLabel(found.group(1)))
        text = text[found.end() :]
    return tuple(labels), text


def with_hint(text: str, kind: HintKind, sentence: str) -> str:
    """An observation's text and one more line. Raises ValueError for a ``sentence`` of several lines."""
    if "\n" in sentence:
        raise ValueError(f"a hint is one line: {sentence!r}")
    return f"{text}\n[hint: {kind}] {sentence}"


def split_hint(text: str) -> tuple[str, HintKind | None]:
    """An observation's text without its hint, and the hint's kind; None where it has none."""
    found = _HINT.search(text)
    return (text, None) if found is None else (text[: found.start()], HintKind(found.group(1)))
