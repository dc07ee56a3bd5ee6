"""Check that user turns are plain requests: no markup, no invisible characters, and nothing copied from observations.

Who writes turns can be misled by what it reads: a text in the environment may ask it to repeat instructions or to close
a tag of its prompt. Turns become prompts and training text, so they are checked like arguments. The rules (ours):

- a turn has no control, format or private-use characters beside line ends, tabs and the joiners of scripts and emoji;
- it has no markup: nothing between angle brackets, no special token of a chat template, no call in the embedded
  policy's notation. What a call of the reference takes as its value may have angle or square brackets;
- it shares no run of ``COPIED`` words with the start state or an observation, unless a call takes them as its value or
  the documentation has them, too.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator

from environments.base import Environment, TaskSpec
from environments.verification.canonical import texts_in, words
from environments.verification.grounding import leaves

COPIED = 6
"""Words in a row that count as copied (our choice: turns that people and templates wrote share at most four)."""

_SPECIAL = re.compile(r"<\s*\|[^<>\n]*|\|\s*>|<<\s*/?\s*\w+\s*>>")
_MARKUP = re.compile(r"<\s*[A-Za-z_/!?][^<>\n]*>|\[\s*/?\s*[A-Z][A-Z_]+\s*\]")
_CALL = re.compile(r"(?<!\w)@(\w+)(=)?")
_PLAIN_WORD = re.compile(r"[a-z]+")
_PLAIN_CONTROLS = frozenset("\n\r\t\u200c\u200d")
_REFUSED_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))
_SHOWN = 60  # characters of a text that a phrase quotes


def foreign_text(environment: Environment, task: TaskSpec, observed: Iterable[str] = ()) -> str | None:
    """Return a phrase for the first thing in a user turn that is not a plain request; None if there is none.

    ``observed`` are the observations that the writer of the turns has read. Raises InputError for a tool that the
    environment does not have.
    """
    values = _values(task)
    for t, text in enumerate(task.turns, start=1):
        for character in text:
            if character not in _PLAIN_CONTROLS and unicodedata.category(character) in _REFUSED_CATEGORIES:
                return f"turn {t} has the invisible character U+{ord(character):04X}"
        tokens = _SPECIAL.search(text) or _MARKUP.search(_without(text, values))
        if tokens:
            return f"turn {t} has the markup {tokens.group()[:_SHOWN]!r}"
        for name, assigns in _CALL.findall(text):
            if assigns or (name in task.tools and not _PLAIN_WORD.fullmatch(name)):
                return f"turn {t} has the call notation '@{name[:_SHOWN]}{assigns}'"
    copied = _copied(environment, task, values, observed)
    return f"turn {copied[0]} repeats what the environment says: {copied[1][:_SHOWN]!r}" if copied else None


def _values(task: TaskSpec) -> list[str]:
    """Return the values that calls of the reference take, longest first, as they are and as JSON writes them."""
    calls = [call for turn in task.reference for call in turn]
    found = {str(leaf) for call in calls for value in call.arguments.values() for leaf in leaves(value)}
    return sorted({one for text in found if text for one in (text, json.dumps(text)[1:-1])}, key=len, reverse=True)


def _without(text: str, values: Iterable[str]) -> str:
    """Return ``text`` with a line end for each of the values in it."""
    for value in values:
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "\n", text, flags=re.IGNORECASE)
    return text


def _copied(
    environment: Environment, task: TaskSpec, values: list[str], observed: Iterable[str]
) -> tuple[int, str] | None:
    """Return the turn, from 1, and the first run of words that an observation or the start state has, too."""
    own: dict[tuple[str, ...], int] = {}
    for t, text in enumerate(task.turns, start=1):
        for piece in _without(text, values).split("\n"):
            own.update(dict.fromkeys(_runs(piece), t))
    if not own:
        return None
    for tool in environment.tools(task.tools):
        for text in (tool.description, *(parameter.description for parameter in tool.parameters)):
            for run in _runs(text):
                own.pop(run, None)
    for text in (*texts_in(task.initial_state), *observed):
        for run in _runs(text):
            if run in own:
                return own[run], " ".join(run)
    return None


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    found = words(text)
    return (found[k : k + COPIED] for k in range(len(found) - COPIED + 1))
