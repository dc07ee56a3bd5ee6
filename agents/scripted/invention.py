"""Makes up names and short texts from words that were seen, where a tool wants something new."""

from __future__ import annotations

import random
import re

from agents.scripted.values import Sightings

_WORD = re.compile(r"[A-Za-z]{4,12}")
_ENDING = re.compile(r"^.+(\.[A-Za-z0-9]{1,5})$")
_PLAIN_WORDS = ("summary", "draft", "archive", "final", "copy", "record", "backup", "review")


def invented_name(sightings: Sightings, like: str, rng: random.Random) -> str:
    """A name of one or two seen words, with the ending (".txt") of the value that it shall be like."""
    pool = _words(sightings)
    parts = [rng.choice(pool).lower() for _ in range(rng.choice((1, 1, 2)))]
    ending = _ENDING.match(like)
    return "_".join(dict.fromkeys(parts)) + (ending.group(1) if ending else "")


def invented_text(sightings: Sightings, rng: random.Random) -> str:
    """A text of one to five seen words."""
    pool = _words(sightings)
    return " ".join(rng.choice(pool) for _ in range(rng.randint(1, 5)))


def _words(sightings: Sightings) -> list[str]:
    texts = (sighting.value for sighting in sightings if isinstance(sighting.value, str))
    found = dict.fromkeys(word for text in texts for word in _WORD.findall(text))
    return [*found, *_PLAIN_WORDS]
