"""Draw small samples of the records that JSON values hold: records that name one another, each as the value has them.

A user of a service knows a few of its records: an account, its orders, what was ordered. A sample has such records for
explorers and models that make tasks. Nothing of a particular server is known here (all rules are ours):

- A record is an object beside others that share most of their keys, as values of one object or as items of one list.
- Its name is its key there; in a list it is the first text that all items have, each another one.
- A record mentions another where the other's name is a text in it. A sample begins at a record that mentions some,
  follows mentions, and then goes to records that mention those it has.
- A long record is shortened: of its own collections of objects two entries are kept, those first whose name another
  record of the sample has, and texts of more than ``LONGEST_TEXT`` characters are left out.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from environments.verification.canonical import texts_in

LONGEST_SAMPLE = 3_000
"""Characters of a sample as JSON, at most (our choice: it goes into prompts, and into each task's record)."""

LONGEST_RECORD = 900
"""Characters of a record that is kept whole (our choice)."""

LONGEST_TEXT = 200
OF_ONE_COLLECTION = 2
"""Records of one collection that are taken before all others have had their turn (our choice)."""

_SHORTEST_NAME = 3
_MISSES = 20  # records in a row that do not fit into a sample, after which it is done
_ALIKE = 20  # objects that are compared
_MOST_LEVELS = 64

Path = tuple[str, ...]


class _Found(NamedTuple):
    """A record: where its collection is, whether that is a list, its name (empty without one), itself."""

    place: Path
    listed: bool
    name: str
    value: dict[str, JsonValue]


def samples(values: Mapping[str, JsonValue], most: int, seed: int) -> list[dict[str, JsonValue]]:
    """Return at most ``most`` samples of ``values``, which are named by where they come from; each begins elsewhere.

    Equal arguments give equal samples.
    """
    records = [one for name, value in values.items() for one in _records(value, (name,), 0)]
    links = _Links(records)
    rng = random.Random(seed)
    found = []
    for first in links.beginnings(rng)[:most]:
        sample = _sample(records, links, first, rng)
        if sample and sample not in found:
            found.append(sample)
    return found


def _records(value: JsonValue, place: Path, level: int) -> Iterator[_Found]:
    """Yield the outermost records in a value."""
    if level > _MOST_LEVELS or not isinstance(value, dict | list):
        return
    items = list(value.items()) if isinstance(value, dict) else [(str(n), one) for n, one in enumerate(value)]
    objects = [one for _, one in items if isinstance(one, dict)]
    if len(objects) < len(items) or len(items) < 2:
        groups = []
    elif isinstance(value, dict):
        groups = [objects] if _alike(objects) else []
    else:
        groups = [*_by_keys(objects).values()]
    if not groups:
        for key, one in items:
            yield from _records(one, (*place, key), level + 1)
    for group in groups:
        names = list(value) if isinstance(value, dict) else _names(group)
        for name, one in zip(names, group, strict=True):
            yield _Found(place, isinstance(value, list), name, one)


def _alike(objects: Sequence[dict[str, JsonValue]]) -> bool:
    first = objects[0].keys()
    return all(2 * len(first & one.keys()) >= len(first | one.keys()) > 0 for one in objects[1:_ALIKE])


def _by_keys(objects: Sequence[dict[str, JsonValue]]) -> dict[Path, list[dict[str, JsonValue]]]:
    """Return objects by the keys that they have: a list may hold records of several kinds."""
    found = defaultdict(list)
    for one in objects:
        found[tuple(sorted(one))].append(one)
    return found


def _names(group: Sequence[dict[str, JsonValue]]) -> list[str]:
    for key in group[0]:
        texts = [text for one in group if isinstance(text := one[key], str)]
        if len({*texts}) == len(group):
            return texts
    return [""] * len(group)


class _Links:
    """Which records mention which, by their positions."""

    def __init__(self, records: Sequence[_Found]) -> None:
        named = defaultdict(list)
        for at, one in enumerate(records):
            if len(one.name) >= _SHORTEST_NAME:
                named[one.name].append(at)
        self._all = range(len(records))
        self.mentioned: list[list[int]] = []
        self.mentioning: dict[int, list[int]] = defaultdict(list)
        for at, one in enumerate(records):
            to = dict.fromkeys(other for text in texts_in(one.value) for other in named.get(text, ()) if other != at)
            self.mentioned.append([*to])
            for other in to:
                self.mentioning[other].append(at)

    def beginnings(self, rng: random.Random) -> list[int]:
        """Return the records that mention others, in an order that is drawn; all where none does."""
        found = [at for at in self._all if self.mentioned[at]] or [*self._all]
        rng.shuffle(found)
        return found


def _sample(records: Sequence[_Found], links: _Links, first: int, rng: random.Random) -> dict[str, JsonValue]:
    """Return a sample that begins at a record."""
    tree: dict[str, JsonValue] = {}
    known: set[str] = set()
    taken: Counter[Path] = Counter()
    late: list[int] = []
    waiting, met, misses = deque([first]), {first}, 0
    while (waiting or late) and misses < _MISSES:
        at = waiting.popleft() if waiting else late.pop(0)
        one = records[at]
        if taken[one.place] >= OF_ONE_COLLECTION and waiting:
            late.append(at)
            continue
        kept = _shortened(one.value, known, rng)
        larger = _with(tree, one, kept)
        if len(json.dumps(larger, ensure_ascii=False)) > LONGEST_SAMPLE:
            if at == first:
                return {}
            misses += 1
            continue
        tree, misses = larger, 0
        taken[one.place] += 1
        known.update((one.name, *texts_in(kept)))
        back = links.mentioning.get(at, [])
        ways = dict.fromkeys((*links.mentioned[at], *rng.sample(back, min(len(back), OF_ONE_COLLECTION))))
        waiting.extend(other for other in ways if other not in met)
        met.update(ways)
    return tree


def _shortened(value: JsonValue, known: set[str], rng: random.Random) -> JsonValue:
    """Return a record as it is, or with two entries of each of its collections and without long texts."""
    if len(json.dumps(value, ensure_ascii=False)) <= LONGEST_RECORD:
        return value
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if not (isinstance(one, str) and len(one) > LONGEST_TEXT)}
        if len(kept) > OF_ONE_COLLECTION and all(isinstance(one, dict) for one in kept.values()):
            order = rng.sample([*kept], len(kept))
            chosen = sorted(order, key=lambda key: key not in known)[:OF_ONE_COLLECTION]
            kept = {key: kept[key] for key in kept if key in chosen}
        return {key: _shortened(one, known, rng) for key, one in kept.items()}
    if isinstance(value, list):
        return [_shortened(one, known, rng) for one in value[:OF_ONE_COLLECTION]]
    return value


def _with(tree: dict[str, JsonValue], record: _Found, kept: JsonValue) -> dict[str, JsonValue]:
    """Return a sample with one record more, at its place."""
    *way, last = record.place
    larger: dict[str, JsonValue] = json.loads(json.dumps(tree))
    holder = larger
    for key in way:
        inner = holder.setdefault(key, {})
        assert isinstance(inner, dict)
        holder = inner
    if record.listed:
        inner = holder.setdefault(last, [])
        assert isinstance(inner, list)
        inner.append(kept)
    else:
        inner = holder.setdefault(last, {})
        assert isinstance(inner, dict)
        inner[record.name] = kept
    return larger
