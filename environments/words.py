"""Stems of content words, so that rules can compare names, documentation and texts without knowing any tool.

The splitting and the crude stemming are our choice; they only have to be consistent, because both sides of a comparison
go through them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import takewhile

from environments.base import ToolSpec

_SENTENCE_END = re.compile(r"(?<=[.;!?:]\s)")
_PIECES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

# Function words, and words that say nothing about a tool because most documentation has them.
_STOP_TEXT = (
    "a an the of to in on at by for with from is are be been was were it its this that these those and or not no any"
    " all as if will can cannot could must should may do does up out than then else when here there which who whose you"
    " your user provided based specified given return returns true false optional default defaults none other otherwise"
    " using use used"
)
_STOP = frozenset(_STOP_TEXT.split())


@lru_cache(maxsize=65536)
def words(text: str) -> tuple[str, ...]:
    """Stems of the content words of ``text`` in order; camelCase and snake_case names are split first."""
    return tuple(_stem(piece) for piece in (p.lower() for p in _PIECES.findall(text)) if piece not in _STOP)


def _stem(word: str) -> str:
    for suffix, replacement in (("ies", "y"), ("ing", ""), ("ed", ""), ("s", "")):
        if word.endswith(suffix) and not word.endswith("ss") and len(word) - len(suffix) >= 2:
            word = word[: -len(suffix)] + replacement
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def with_own_descriptions(tools: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools without the sentences that begin the descriptions of their whole group.

    "This tool belongs to the file system. Tool description: Copy a file." becomes "Copy a file.", where every other of
    the given tools of its group begins like that. A tool without another of its group is returned as it is.
    """
    given = tuple(tools)
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for tool in given:
        groups[tool.group].add(tool.description.strip())
    shared = {group: _shared_sentences(texts) for group, texts in groups.items()}
    return tuple(
        tool.model_copy(update={"description": "".join(_sentences(tool.description.strip())[shared[tool.group] :])})
        for tool in given
    )


def first_sentence(text: str) -> str:
    """Return the first sentence of ``text``, with its full stop."""
    return _sentences(text.strip())[0].strip()


def _shared_sentences(texts: Collection[str]) -> int:
    """Return how many sentences all of the different ``texts`` begin with; none for a single text."""
    parallel = zip(*map(_sentences, texts), strict=False)
    return sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, parallel)) if len(texts) > 1 else 0


def _sentences(text: str) -> list[str]:
    """Split ``text`` after each sentence; a colon ends one, too."""
    return _SENTENCE_END.split(text)
