"""The failure memory: which weaknesses were explored before, indexed in Chroma by signature and then by cosine.

No cosine alone tells two failures apart ("401, token not passed" and "401, wrong password" stand closer than most
paraphrases), so two contexts are compared only when their signatures are equal. Chroma keeps the vectors; which ids a
signature has is held in memory, because a query that Chroma filters by metadata takes 0.4 s at 100,000 records, and
because its nearest-neighbour search is approximate, which would let two equal runs judge differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from environments.base import Record
from memory.locks import exclusive
from memory.records import FailureContext
from memory.settings import MemorySettings

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

__all__ = ["FailureMemory", "Judgement", "embedded_text"]

_LISTED_AT_ONCE = 5000  # Chroma fails above 32,766, the variables of one SQL statement.
_WRITTEN_AT_ONCE = 1000  # Chroma refuses batches above about 5,000.
_READ_AT_ONCE = 250  # Chroma's time a vector quadruples when thousands of ids are asked for at once.
_DECIMALS = 4  # float32 sums differ behind this; a stored judgement must not depend on them.

Item = TypeVar("Item")
Flags = NDArray[np.bool_]
Vectors = NDArray[np.float32]


class Judgement(Record):
    """Whether a context is to be explored (new) or was explored before (known).

    For a known context ``nearest`` is the remembered or earlier context that makes it known; for a new one it is the
    nearest of its signature, and None when there is none. ``cosine`` belongs to ``nearest``, rounded to 4 decimals.
    """

    context_id: str
    status: Literal["new", "known"]
    nearest: str | None = None
    cosine: float | None = None


class _Remembered(NamedTuple):
    signature: str
    iteration: int
    admitted: int


class _Shelf(NamedTuple):
    """All that is remembered of one signature, a row a context."""

    ids: tuple[str, ...]
    vectors: Vectors
    iterations: NDArray[np.int64]
    admitted: NDArray[np.int64]


class _Pool(NamedTuple):
    """Contexts of one signature: an id and a row of ``vectors`` each, and whether likeness to it makes one known."""

    ids: tuple[str, ...]
    vectors: Vectors
    blocking: Flags

    def adding(self, context_id: str, vector: Vectors) -> _Pool:
        """This pool and one context more, which blocks."""
        return _Pool((*self.ids, context_id), np.vstack([self.vectors, vector]), np.append(self.blocking, np.True_))


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

    Vectors are read from Chroma when a signature is first judged, and kept: 4 kB a context of that signature.
    Raises InputError when the folder is in use, or the embedder cannot be had.
    """

    def __init__(self, folder: Path, settings: MemorySettings) -> None:
        import chromadb
        from chromadb.config import Settings

        from memory.embedding import open_embedder

        self._settings = settings
        self._embedder = open_embedder(settings)
        with ExitStack() as opening:
            opening.enter_context(exclusive(folder / "owner.lock", f"the failure memory {folder}"))
            self._client = chromadb.PersistentClient(folder, settings=Settings(anonymized_telemetry=False))
            opening.callback(cast(Any, self._client).close)
            self._collection = self._open_collection()
            self._load()
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
        """The remembered contexts: where they are not those of the records, ``rebuild``."""
        return frozenset(self._remembered)

    def judge(self, contexts: Sequence[FailureContext], iteration: int) -> tuple[Judgement, ...]:
        """Tell new contexts from known ones, without writing; the answers stand in the order of ``contexts``.

        A context is compared with those remembered from iterations before ``iteration``, so that a resumed run which
        had remembered this batch already judges as before, and with those of the batch that come earlier by id and
        are new themselves.
        """
        batch: dict[str, _Pool] = {}
        judgements: dict[str, Judgement] = {}
        ordered = sorted(contexts, key=lambda context: context.id)
        for context, vector in zip(ordered, self._embed(ordered), strict=True):
            signature = context.signature()
            earlier = batch.get(signature, _Pool((), vector[np.newaxis][:0], np.empty(0, dtype=np.bool_)))
            judgement = self._judgement(context.id, vector, [self._pool(signature, iteration), earlier])
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
        self._client.delete_collection(self._collection.name)
        self._collection = self._open_collection()
        self._load()
        self._write(contexts, admitted)

    def _open_collection(self) -> Collection:
        return self._client.get_or_create_collection(
            f"failures-{self._embedder.label}",
            embedding_function=cast(Any, self._embedder),
            configuration={"hnsw": {"space": "cosine"}},
        )

    def _load(self) -> None:
        self._remembered: dict[str, _Remembered] = {}
        self._by_signature: dict[str, list[str]] = {}
        self._shelves: dict[str, _Shelf] = {}
        for start in range(0, self._collection.count(), _LISTED_AT_ONCE):
            page = self._collection.get(limit=_LISTED_AT_ONCE, offset=start, include=["metadatas"])
            for context_id, metadata in zip(page["ids"], page["metadatas"] or [], strict=True):
                self._note(context_id, _Remembered(**cast(dict[str, Any], metadata)))

    def _note(self, context_id: str, remembered: _Remembered) -> None:
        before = self._remembered.get(context_id)
        if before is not None and before.signature != remembered.signature:
            self._by_signature[before.signature].remove(context_id)
            self._shelves.pop(before.signature, None)
        if before is None or before.signature != remembered.signature:
            self._by_signature.setdefault(remembered.signature, []).append(context_id)
        self._remembered[context_id] = remembered
        self._shelves.pop(remembered.signature, None)

    def _embed(self, contexts: Sequence[FailureContext]) -> Vectors:
        if not contexts:
            return np.empty((0, 0), dtype=np.float32)
        return self._embedder.vectors([embedded_text(context) for context in contexts])

    def _judgement(self, context_id: str, vector: Vectors, pools: Sequence[_Pool]) -> Judgement:
        compared = [(pool, _cosines(pool.vectors, vector)) for pool in pools if pool.ids]
        if not compared:
            return Judgement(context_id=context_id, status="new")
        blocking = [_nearest(pool.ids, cosines, pool.blocking) for pool, cosines in compared if pool.blocking.any()]
        if blocking and min(blocking).cosine >= self._settings.duplicate_above:
            known = min(blocking)
            return Judgement(context_id=context_id, status="known", nearest=known.id, cosine=known.cosine)
        nearest = min(_nearest(pool.ids, cosines, np.ones_like(pool.blocking)) for pool, cosines in compared)
        return Judgement(context_id=context_id, status="new", nearest=nearest.id, cosine=nearest.cosine)

    def _pool(self, signature: str, iteration: int) -> _Pool:
        """What is remembered of a signature from before ``iteration``."""
        shelf = self._shelf(signature)
        ages = iteration - shelf.iterations
        past = ages > 0
        blocking = (ages < self._settings.recur_after) & (shelf.admitted > 0)
        if past.all():
            return _Pool(shelf.ids, shelf.vectors, blocking)
        return _Pool(tuple(np.array(shelf.ids)[past].tolist()), shelf.vectors[past], blocking[past])

    def _shelf(self, signature: str) -> _Shelf:
        if signature not in self._shelves:
            ids: list[str] = []
            rows: list[Any] = []
            for part in _parts(self._by_signature.get(signature, []), _READ_AT_ONCE):
                found = self._collection.get(ids=list(part), include=["embeddings"])
                ids += found["ids"]
                rows += list(cast(Any, found["embeddings"]))
            notes = [self._remembered[context_id] for context_id in ids]
            self._shelves[signature] = _Shelf(
                tuple(ids),
                np.array(rows, dtype=np.float32),
                np.array([note.iteration for note in notes], dtype=np.int64),
                np.array([note.admitted for note in notes], dtype=np.int64),
            )
        return self._shelves[signature]

    def _write(self, contexts: Sequence[FailureContext], admitted: Mapping[str, int]) -> None:
        for part in _parts(sorted(contexts, key=lambda context: context.id), _WRITTEN_AT_ONCE):
            notes = [_Remembered(c.signature(), cast(int, c.iteration), admitted.get(c.id, 0)) for c in part]
            self._collection.upsert(
                ids=[context.id for context in part],
                embeddings=self._embed(part),
                documents=[embedded_text(context) for context in part],
                metadatas=[note._asdict() for note in notes],
            )
            for context, note in zip(part, notes, strict=True):
                self._note(context.id, note)


def _cosines(rows: Vectors, vector: Vectors) -> Vectors:
    # einsum adds up each row by itself: a BLAS product rounds differently with the number of rows.
    cosines: Vectors = np.einsum("ij,j->i", rows, vector)
    return cosines


def _nearest(ids: Sequence[str], cosines: Vectors, chosen: Flags) -> _Match:
    """The best of the chosen; equal ones (after rounding) by id. At least one must be chosen."""
    distances = np.where(chosen, np.round(1.0 - cosines.astype(np.float64), _DECIMALS), np.inf)
    best = distances.min()
    return _Match(float(best), min(ids[index] for index in np.flatnonzero(distances == best).tolist()))


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
