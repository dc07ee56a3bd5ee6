"""Keeps text from outside from becoming control tokens, whatever it spells and in whichever script (ours).

A chat template joins its own control tokens with texts of users, tools and documentation. Before it is rendered, each
control token that such a text spells is broken by a marker, a character that no text has; the rendered text is then
encoded in pieces that end at the markers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_TEXT = re.compile(r"[\w\s\u2581]+|<0x[0-9A-F]{2}>")
"""Added tokens that are text unless they are special: words, runs of white space or of its mark, bytes."""


class ControlTokens:
    """The control tokens of a tokenizer; ``more`` are spellings that are broken like them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, more: str) -> None:
        added = tokenizer.added_tokens_decoder.items()
        found = {number: one.content for number, one in added if one.special or not _TEXT.fullmatch(one.content)}
        self._tokenizer = tokenizer
        self._ids = frozenset(found) - {tokenizer.unk_token_id}
        spelled = [text for text in sorted({*found.values(), more}) if len(text) > 1]
        self._spelled = re.compile("|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in spelled))

    def broken(self, value: Any, marker: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return a copy of ``value`` with ``marker`` in every control token that its texts and its keys spell.

        It goes behind the first character. In a text of which the tokenizer still makes a control token, as one that
        normalizes may, it goes between all characters.
        """
        inert = _each_text(value, lambda text: self._spelled.sub(lambda found: found[0] + marker, text))
        if self._harmless("\n".join(_texts(inert)), marker):
            return inert
        return _each_text(inert, lambda text: text if self._harmless(text, marker) else marker.join(text))

    def _harmless(self, text: str, marker: str) -> bool:
        return self._ids.isdisjoint(self.encode(text, marker)[0])

    def encode(self, text: str, marker: str) -> tuple[list[int], str]:
        """Return the ids of rendered text, encoded in pieces that end at ``marker``, and the text without it."""
        pieces = re.split(f"{marker}|{re.escape(_escaped(marker))}", text)
        ids: list[int] = []
        for piece in pieces:
            ids += self._tokenizer.encode(piece, add_special_tokens=False)
        return ids, "".join(pieces)


def marker_for(values: object) -> str:
    """Return a private-use character that no text of ``values`` holds, neither itself nor as JSON escapes it."""
    used = set(json.dumps(values, ensure_ascii=False))
    escapes = "\n".join(_texts(values)).lower()
    return next(one for code in chain(*_PRIVATE_USE) if (one := chr(code)) not in used and _escaped(one) not in escapes)


def _escaped(marker: str) -> str:
    return json.dumps(marker)[1:-1]


def _each_text(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - any JSON value
    """Return a copy of a value with its texts, and its keys, changed."""
    if isinstance(value, dict):
        return {change(key): _each_text(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(one, change) for one in value]
    return change(value) if isinstance(value, str) else value


def _texts(value: object) -> Iterator[str]:
    """Yield the texts and the keys of a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in chain(value, value.values()) if isinstance(value, dict) else value:
            yield from _texts(one)
