"""The failure memory: which weaknesses were explored before, indexed in Chroma by signature and then by cosine.

No cosine alone tells two failures apart ("401, token not passed" and "401, wrong password" stand closer than most
paraphrases), so two contexts are compared only when their signatures are equal. Two collections of Chroma: one keeps
the vectors, the other, by signature, the ids of the contexts that can make another known. Both are asked by id alone,
which takes a millisecond at any size, while a query that filters takes tens of them at 100,000 records. Those few
vectors are compared exactly: Chroma's nearest-neighbour search is approximate, and two equal runs could judge
differently.
"""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from environments.base import Record
from environments.command import storage_refusal
from memory.processes import exclusive
from memory.records import FailureContext
from memory.settings import MemorySettings

__all__ = ["FailureMemory", "Judgement", "embedded_text", "use_memory"]

_LISTED_AT_ONCE = 5000  # Chroma fails above 32,766, the variables of one SQL statement.
_WRITTEN_AT_ONCE = 1000  # Chroma refuses batches above about 5,000.
_READ_AT_ONCE = 250  # Chroma's time a vector quadruples when thousands of ids are asked for at once.
_DATABASE = "chroma.sqlite3"
_LOCK = "owner.lock"
_DECIMALS = 4  # float32 sums differ behind this; a stored judgement must not depend on them.

Item = TypeVar("Item")
Made = TypeVar("Made")
Vectors = NDArray[np.float32]


class Judgement(Record):
    """Whether a context is to be explored (new) or was explored before (known).

    ``nearest`` is the likest of the contexts that could have made this one known (see ``FailureMemory``), None when
    there is none; for a known context it is the one that did. ``cosine`` belongs to it, rounded to 4 decimals.
    """

    context_id: str
    status: Literal["new", "known"]
    nearest: str | None = None
    cosine: float | None = None


class _Pool(NamedTuple):
    """Contexts of one signature that make likes of theirs known: an id and a row of ``vectors`` each."""

    ids: tuple[str, ...]
    vectors: Vectors

    def adding(self, context_id: str, vector: Vectors) -> _Pool:
        """This pool and one context more."""
        return _Pool((*self.ids, context_id), np.vstack([self.vectors, vector]))


class _Match(NamedTuple):
    """A context that another was compared with, in order of likeness, then of id."""

    distance: float
    id: str

    @property
    def cosine(self) -> float:
        return round(1.0 - self.distance, _DECIMALS)


def embedded_text(context: FailureContext) -> str:
    """What is embedded of a context: the values that vary and what went wrong, not the sentences around them."""
    return "\n".join((*context.facts, context.how))


class FailureMemory:
    """The contexts that were explored, with what came of them. One instance at a time; close it after use.

    Which contexts make another known (our choice, the paper does not deduplicate): those of the same signature at
    a cosine of ``duplicate_above`` or more that were explored fewer than ``recur_after`` iterations ago and of which
    a task was admitted. A weakness that recurs later, or whose exploration admitted nothing, is new again.

    What is read does not grow with the memory: of the signatures that are judged, the vectors of those contexts, 4 kB
    each, which are kept until something is written. An index that cannot be opened is set aside, with a warning, and an
    empty one begun: see ``holds``. Raises InputError when the folder is in use, or the embedder cannot be had.
    """

    def __init__(self, folder: Path, settings: MemorySettings) -> None:
        from chromadb.errors import ChromaError

        from memory.embedding import open_embedder

        self._settings = settings
        self._embedder = open_embedder(settings)
        if folder.exists() and not folder.is_dir():
            _set_aside(folder, [folder], "it is no folder")
        with ExitStack() as opening:
            opening.enter_context(exclusive(folder / _LOCK, f"the failure memory {folder}"))
            if problem := _damage(folder / _DATABASE):
                _set_aside(folder, _index(folder), problem)
            try:
                client = self._open(folder)
            except ChromaError as error:
                if storage_refusal(error):
                    raise
                _set_aside(folder, _index(folder), str(error))
                client = self._open(folder)
            opening.callback(client.close)
            self._pools: dict[tuple[str, int], _Pool] = {}
            self._closing = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder. Idempotent."""
        self._closing.close()

    @property
    def ids(self) -> frozenset[str]:
        """Every remembered context; this reads the whole index."""
        pages = range(0, self._contexts.count(), _LISTED_AT_ONCE)
        listed = (self._contexts.get(limit=_LISTED_AT_ONCE, offset=start, include=[]) for start in pages)
        return frozenset(context_id for page in listed for context_id in page["ids"])

    def holds(self, ids: Sequence[str]) -> bool:
        """Whether all of these contexts are remembered: where those of the records are not, ``rebuild``."""
        parts = _parts(sorted(set(ids)), _READ_AT_ONCE)
        return all(len(self._contexts.get(ids=list(part), include=[])["ids"]) == len(part) for part in parts)

    def judge(self, contexts: Sequence[FailureContext], iteration: int) -> tuple[Judgement, ...]:
        """Tell new contexts from known ones, without writing; the answers stand in the order of ``contexts``.

        A context is compared with those remembered from iterations before ``iteration``, so that a resumed run which
        had remembered this batch already judges as before, and with those of the batch that come earlier by id and
        are new themselves.
        """
        remembered = self._remembered({context.signature() for context in contexts}, iteration)
        batch: dict[str, _Pool] = {}
        judgements: dict[str, Judgement] = {}
        ordered = sorted(contexts, key=lambda context: context.id)
        for context, vector in zip(ordered, self._embed(ordered), strict=True):
            signature = context.signature()
            earlier = batch.get(signature, _Pool((), vector[np.newaxis][:0]))
            judgement = self._judgement(context.id, vector, [remembered[signature], earlier])
            if judgement.status == "new":
                batch[signature] = earlier.adding(context.id, vector)
            judgements[context.id] = judgement
        return tuple(judgements[context.id] for context in contexts)

    def remember(self, contexts: Sequence[FailureContext], admitted: Mapping[str, int], iteration: int) -> None:
        """Remember that ``contexts`` were explored in ``iteration``; doing it again changes nothing.

        ``admitted`` counts the tasks that came of each context, by its id; none came of one that it lacks. Contexts
        that were known are not explored, and not to be passed here. Raises ValueError when a context names another
        iteration, because a rebuilt memory would then judge differently.
        """
        for context in contexts:
            if context.iteration != iteration:
                raise ValueError(f"context {context.id} is of iteration {context.iteration}, not {iteration}")
        self._write(contexts, admitted)

    def rebuild(self, contexts: Sequence[FailureContext], admitted: Mapping[str, int]) -> None:
        """Start the index afresh from the records: every context that was explored, of all iterations.

        The memory judges afterwards as if each iteration had been remembered when it happened. Raises ValueError for
        a context without an iteration: those of unguided exploration are not remembered.
        """
        for context in contexts:
            if context.iteration is None:
                raise ValueError(f"context {context.id} has no iteration: unguided exploration is not remembered")
        self._client.delete_collection(self._contexts.name)
        self._client.delete_collection(self._covering.name)
        self._open_collections()
        self._write(contexts, admitted)

    def _open(self, folder: Path) -> Any:  # noqa: ANN401 - Chroma's client has no type for its own close
        import chromadb
        from chromadb.config import Settings

        with ExitStack() as opening:
            self._client = chromadb.PersistentClient(folder, settings=Settings(anonymized_telemetry=False))
            opening.callback(cast(Any, self._client).close)
            self._open_collections()
            opening.pop_all()
        return self._client

    def _open_collections(self) -> None:
        self._contexts = self._client.get_or_create_collection(
            f"contexts-{self._embedder.label}",
            embedding_function=cast(Any, self._embedder),
            configuration={"hnsw": {"space": "cosine"}},
        )
        self._covering = self._client.get_or_create_collection(
            f"covering-{self._embedder.label}", embedding_function=None
        )

    def _embed(self, contexts: Sequence[FailureContext]) -> Vectors:
        if not contexts:
            return np.empty((0, 0), dtype=np.float32)
        return self._embedder.vectors([embedded_text(context) for context in contexts])

    def _judgement(self, context_id: str, vector: Vectors, pools: Sequence[_Pool]) -> Judgement:
        matches = [_nearest(pool, vector) for pool in pools if pool.ids]
        if not matches:
            return Judgement(context_id=context_id, status="new")
        nearest = min(matches)
        known = nearest.cosine >= self._settings.duplicate_above
        return Judgement(
            context_id=context_id, status="known" if known else "new", nearest=nearest.id, cosine=nearest.cosine
        )

    def _remembered(self, signatures: set[str], iteration: int) -> dict[str, _Pool]:
        """The contexts of each signature that make likes of theirs known in ``iteration``."""
        missing = sorted(one for one in signatures if (one, iteration) not in self._pools)
        if missing:
            self._pools |= self._read(missing, iteration)
        return {signature: self._pools[signature, iteration] for signature in signatures}

    def _read(self, signatures: Sequence[str], iteration: int) -> dict[tuple[str, int], _Pool]:
        window = range(iteration - self._settings.recur_after + 1, iteration)
        listed = [one for ids in self._listed(signatures).values() for one, at in ids.items() if at in window]
        found: dict[str, dict[str, Any]] = {signature: {} for signature in signatures}
        for part in _parts(listed, _READ_AT_ONCE):
            page = self._contexts.get(ids=list(part), include=["metadatas", "embeddings"])
            notes, rows = cast(Any, page["metadatas"]), cast(Any, page["embeddings"])
            for context_id, note, row in zip(page["ids"], notes, rows, strict=True):
                # What is listed may have been written anew since, with another signature or nothing admitted.
                if note["admitted"] and note["iteration"] in window and note["signature"] in found:
                    found[note["signature"]][context_id] = row
        return {
            (signature, iteration): _Pool(tuple(rows), np.array(list(rows.values()), dtype=np.float32))
            for signature, rows in found.items()
        }

    def _listed(self, signatures: Sequence[str]) -> dict[str, dict[str, int]]:
        """Contexts of each signature of which a task was admitted, with their iterations."""
        listed: dict[str, dict[str, int]] = {}
        for part in _parts(sorted(signatures), _READ_AT_ONCE):
            page = self._covering.get(ids=list(part), include=["metadatas"])
            for signature, note in zip(page["ids"], cast(Any, page["metadatas"]), strict=True):
                listed[signature] = json.loads(note["iterations"])
        return listed

    def _write(self, contexts: Sequence[FailureContext], admitted: Mapping[str, int]) -> None:
        self._pools.clear()
        self._list([context for context in contexts if admitted.get(context.id, 0)])
        for part in _parts(sorted(contexts, key=lambda context: context.id), _WRITTEN_AT_ONCE):
            self._contexts.upsert(
                ids=[context.id for context in part],
                embeddings=self._embed(part),
                documents=[embedded_text(context) for context in part],
                metadatas=[_note(context, admitted.get(context.id, 0)) for context in part],
            )

    def _list(self, contexts: Sequence[FailureContext]) -> None:
        """List contexts by signature, before they are written: one that is remembered is listed, whatever is killed."""
        listed = self._listed(sorted({context.signature() for context in contexts}))
        for context in contexts:
            listed.setdefault(context.signature(), {})[context.id] = cast(int, context.iteration)
        for part in _parts(sorted(listed), _WRITTEN_AT_ONCE):
            self._covering.upsert(
                ids=list(part),
                embeddings=np.ones((len(part), 1), dtype=np.float32),  # Chroma wants some; nothing is searched here
                metadatas=[{"iterations": json.dumps(listed[signature])} for signature in part],
            )


def use_memory(folder: Path, settings: MemorySettings, use: Callable[[FailureMemory], Made]) -> Made:
    """What ``use`` makes of the memory in ``folder``.

    An index that turns out to be damaged meanwhile is set aside, with a warning, and ``use`` gets an empty one: it
    has to look whether the memory holds what it needs. Raises like ``FailureMemory``.
    """
    from chromadb.errors import ChromaError

    try:
        with FailureMemory(folder, settings) as memory:
            return use(memory)
    except ChromaError as error:
        if storage_refusal(error):
            raise
        _set_aside(folder, _index(folder), str(error))
    with FailureMemory(folder, settings) as memory:
        return use(memory)


def _damage(database: Path) -> str | None:
    """What is wrong with the pages of the database, which Chroma itself would meet by a panic or a wrong answer."""
    if not database.exists():
        return None
    if not database.is_file():
        return f"{database.name} is no file"
    try:
        with closing(sqlite3.connect(database)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # locked, or a disk that refuses: Chroma tells which
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else " ".join(str(found).split())


def _index(folder: Path) -> list[Path]:
    """What Chroma keeps in the folder; the lock, which is held, is another's."""
    return [path for path in folder.iterdir() if not path.name.startswith(_LOCK)]


def _set_aside(folder: Path, parts: Sequence[Path], problem: str) -> None:
    """Move what cannot be read beside ``folder``, and warn."""
    aside = next(
        place
        for number in itertools.count(1)
        if not (place := folder.with_name(f"{folder.name}-damaged-{number}")).exists()
    )
    aside.mkdir(parents=True)
    for path in parts:
        os.replace(path, aside / path.name)
    print(
        f"warning: {folder} cannot be read ({' '.join(problem.split())}): it was moved to {aside} and is rebuilt from "
        "the records",
        file=sys.stderr,
        flush=True,
    )


def _note(context: FailureContext, admitted: int) -> dict[str, str | int]:
    return {"signature": context.signature(), "iteration": cast(int, context.iteration), "admitted": admitted}


def _cosines(rows: Vectors, vector: Vectors) -> Vectors:
    # einsum adds up each row by itself: a BLAS product rounds differently with the number of rows.
    cosines: Vectors = np.einsum("ij,j->i", rows, vector)
    return cosines


def _nearest(pool: _Pool, vector: Vectors) -> _Match:
    """The best of a pool that is not empty; equal ones (after rounding) by id."""
    distances = np.round(1.0 - _cosines(pool.vectors, vector).astype(np.float64), _DECIMALS)
    best = distances.min()
    return _Match(float(best), min(pool.ids[index] for index in np.flatnonzero(distances == best).tolist()))


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
