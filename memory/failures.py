"""The failure memory: which weaknesses were explored before, indexed in one Chroma collection.

No cosine threshold separates two failures ("401, token not passed" and "401, wrong password" are closer than most
paraphrases), so two contexts are compared only if their signatures are equal, by the cosine of their facts that vary.

``where`` selects the contexts of a signature that are eligible by age and admitted tasks; ``get`` reads them, and they
are compared exactly. Chroma's ``query`` runs the same filter and then searches its HNSW graph, which is approximate:
where one text recurs a hundred times or more, its copies link to each other only, and the search misses the nearest
eligible context or returns none, differently in every build (``benchmarks/deduplication.py`` counts it). Larger
parameters of the graph make that rarer, at several times the cost of a write, and guarantee nothing. Nothing searches
the graph, so its parameters are Chroma's defaults.

The filter takes time in proportion to the memory, and each eligible context adds a fraction of a millisecond. An
iteration takes tens of milliseconds of CPU for it at the few hundred contexts of the paper's recipe, a second at
30,000 contexts, seconds if thousands of one signature are eligible (``benchmarks/results.md``).
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from environments.base import Record
from environments.command import storage_refusal
from environments.terminal import say
from memory.processes import exclusive
from memory.records import FailureContext
from memory.settings import RECUR_AFTER, MemorySettings

__all__ = ["DeduplicationResult", "FailureMemory", "embedded_text", "use_memory"]

_DATABASE = "chroma.sqlite3"
_LOCK = "owner.lock"
_DECIMALS = 4  # float32 sums differ after this decimal; a recorded result must not depend on them.
_SAME = 1e-5  # a number of a vector; a model's differ by less with the texts that it embeds at a time

Item = TypeVar("Item")
Made = TypeVar("Made")
Vector = NDArray[np.float32]


class DeduplicationResult(Record):
    """Whether a context is explored (new) or was explored before (known).

    ``nearest`` is the id of the most similar eligible context (see ``FailureMemory``), None if there is none.
    ``cosine`` is its similarity, rounded to 4 decimals; the context is known if it is at least ``duplicate_above``.
    """

    context_id: str
    status: Literal["new", "known"]
    nearest: str | None = None
    cosine: float | None = None


def embedded_text(context: FailureContext) -> str:
    """Return the part of a context that is embedded: the values that vary and what went wrong."""
    # The sentences around them are templates: they alone put unrelated contexts at a cosine of 0.8 and more.
    return "\n".join((*context.facts, context.how))


class FailureMemory:
    """The contexts that were explored, and how many tasks each admitted. Close it after use.

    A remembered context is eligible for comparison (our choice, the paper does not deduplicate) if it has the same
    signature, was explored fewer than ``RECUR_AFTER`` iterations ago, and admitted a task. A weakness that recurs
    later, or whose exploration admitted nothing, is therefore new again.

    Chroma indexes, the JSON lines of the run remember: any index can be deleted. Opening sets one aside that cannot be
    read, with a warning, and deletes the collections of another embedder or of an earlier version. ``agrees`` compares
    the index with the JSON lines, and the caller restores it from them with ``rebuild``.

    One process owns the folder at a time. Raises InputError if the folder is in use or the embedder is missing.
    """

    def __init__(self, folder: Path, settings: MemorySettings) -> None:
        from memory.chroma import ChromaError
        from memory.embedding import open_embedder

        self._folder = folder
        self._settings = settings
        self._embedder = open_embedder(settings)
        self._found: dict[tuple[str, int], list[tuple[str, Vector]]] = {}
        if folder.exists() and not folder.is_dir():
            _set_aside(folder, [folder], "it is not a folder")
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
        """The id of every remembered context; this reads the whole index."""
        return frozenset(self._contexts.get(include=[])["ids"])

    def agrees(
        self,
        explored: Sequence[FailureContext],
        admitted: Mapping[str, int],
        contexts: Sequence[FailureContext],
        iteration: int,
    ) -> bool:
        """Return whether the index says the same as the records about all that ``compare`` would look at.

        ``explored`` and ``admitted`` are what the records say, as in ``rebuild``: contexts of earlier iterations than
        ``iteration``, at least those that are young enough to be eligible; ``contexts`` and ``iteration`` are what is
        to be compared. Which ids the index returns depends on its signatures, iterations and numbers of admitted tasks;
        the vectors are made again, for the signatures of ``contexts`` alone. If the two differ: ``rebuild``.
        """
        oldest = iteration - RECUR_AFTER
        expected: dict[str, dict[str, FailureContext]] = {}
        for one in explored:
            if one.iteration is not None and oldest < one.iteration < iteration and admitted.get(one.id, 0) > 0:
                expected.setdefault(one.signature(), {})[one.id] = one
        if self._ids(iteration) != {name for of_signature in expected.values() for name in of_signature}:
            return False
        return all(
            self._holds(expected.get(signature, {}), self._eligible(signature, iteration))
            for signature in sorted({one.signature() for one in contexts})
        )

    def _holds(self, expected: Mapping[str, FailureContext], found: Sequence[tuple[str, Vector]]) -> bool:
        vectors = dict(found)
        if vectors.keys() != expected.keys():
            return False
        if not expected:
            return True
        made = self._embedder.function([embedded_text(one) for one in expected.values()])
        rows = np.array([vectors[name] for name in expected], dtype=np.float32)
        return bool(np.allclose(rows, np.array(made, dtype=np.float32), rtol=0, atol=_SAME))

    def compare(self, contexts: Sequence[FailureContext], iteration: int) -> tuple[DeduplicationResult, ...]:
        """Separate new contexts from known ones, without writing; the results are in the order of ``contexts``.

        A context is compared with the eligible ones of iterations before ``iteration``, so that a resumed run that has
        already remembered this batch gives the same results, and with those of the batch that have a smaller id and are
        new.
        """
        if not contexts:
            return ()
        eligible: dict[str, list[tuple[str, Vector]]] = {}
        results: dict[str, DeduplicationResult] = {}
        ordered = sorted(contexts, key=lambda context: context.id)
        vectors = self._embedder.function([embedded_text(context) for context in ordered])
        for context, vector in zip(ordered, cast(list[Vector], vectors), strict=True):
            signature = context.signature()
            if signature not in eligible:
                eligible[signature] = [*self._eligible(signature, iteration)]
            result = self._compared(context.id, vector, eligible[signature])
            if result.status == "new":
                eligible[signature].append((context.id, vector))
            results[context.id] = result
        return tuple(results[context.id] for context in contexts)

    def remember(self, contexts: Sequence[FailureContext], admitted: Mapping[str, int], iteration: int) -> None:
        """Remember that ``contexts`` were explored in ``iteration``. Idempotent.

        ``admitted`` maps a context's id to the number of its admitted tasks; a missing id counts as 0. Do not pass
        known contexts: they were not explored. Raises ValueError if a context names another iteration, because a
        rebuilt memory would then give other results.
        """
        for context in contexts:
            if context.iteration != iteration:
                raise ValueError(f"context {context.id} is of iteration {context.iteration}, not {iteration}")
        self._write(contexts, admitted)

    def rebuild(self, contexts: Sequence[FailureContext], admitted: Mapping[str, int]) -> None:
        """Replace the index by one made from the records: every context that was explored, of all iterations.

        The memory compares afterwards as if each iteration had been remembered when it happened. An index that held
        anything is replaced with a warning. Raises ValueError for a context without an iteration: those of unguided
        exploration are not remembered.
        """
        for context in contexts:
            if context.iteration is None:
                raise ValueError(f"context {context.id} has no iteration: unguided exploration is not remembered")
        if self._contexts.count():
            say(f"warning: {self._folder} differs from the records of the run: it is rebuilt from them")
        self._client.delete_collection(self._contexts.name)
        self._open_collection()
        self._write(contexts, admitted)

    def _open(self, folder: Path) -> Any:  # noqa: ANN401 - Chroma's client has no type for its own close
        from memory.chroma import PersistentClient, Settings

        with ExitStack() as opening:
            self._client = PersistentClient(folder, settings=Settings(anonymized_telemetry=False))
            opening.callback(cast(Any, self._client).close)
            self._open_collection()
            opening.pop_all()
        return self._client

    def _open_collection(self) -> None:
        # Chroma opens a collection with any embedder and fails later, if the dimension differs: the name says both.
        name = f"contexts-{self._embedder.label}"
        for other in self._client.list_collections():
            if other.name != name:
                self._client.delete_collection(other.name)
        self._contexts = self._client.get_or_create_collection(
            name,
            embedding_function=cast(Any, self._embedder.function),  # typed for texts and images
            configuration={"hnsw": {"space": "cosine"}},
        )

    def _eligible(self, signature: str, iteration: int) -> list[tuple[str, Vector]]:
        """Return id and vector of each remembered context that can make one of this signature known."""
        if (signature, iteration) not in self._found:
            # No metadata: Chroma reads it by one SQL variable per record, and fails above 32,766 of them.
            found = self._contexts.get(
                where={"$and": [{"signature": signature}, *self._young(iteration)]}, include=["embeddings"]
            )
            rows = zip(found["ids"], cast(Any, found["embeddings"]), strict=True)
            self._found[signature, iteration] = list(rows)
        return self._found[signature, iteration]

    def _ids(self, iteration: int) -> set[str]:
        """Return the id of each remembered context that can make one known, of any signature."""
        return set(self._contexts.get(where={"$and": self._young(iteration)}, include=[])["ids"])

    def _young(self, iteration: int) -> list[Any]:
        return [
            {"iteration": {"$gt": iteration - RECUR_AFTER}},
            {"iteration": {"$lt": iteration}},
            {"admitted": {"$gt": 0}},
        ]

    def _compared(self, context_id: str, vector: Vector, eligible: Sequence[tuple[str, Vector]]) -> DeduplicationResult:
        if not eligible:
            return DeduplicationResult(context_id=context_id, status="new")
        rows = np.array([row for _, row in eligible], dtype=np.float32)
        # einsum sums each row on its own: a BLAS product rounds differently with the number of rows.
        distances = np.round(1.0 - np.einsum("ij,j->i", rows, vector).astype(np.float64), _DECIMALS)
        best = float(distances.min())
        nearest = min(eligible[index][0] for index in np.flatnonzero(distances == best).tolist())
        cosine = round(1.0 - best, _DECIMALS)
        known = cosine >= self._settings.duplicate_above
        return DeduplicationResult(
            context_id=context_id, status="known" if known else "new", nearest=nearest, cosine=cosine
        )

    def _write(self, contexts: Sequence[FailureContext], admitted: Mapping[str, int]) -> None:
        self._found.clear()
        for batch in self._batches(sorted(contexts, key=lambda context: context.id)):
            self._contexts.upsert(
                ids=[context.id for context in batch],
                documents=[embedded_text(context) for context in batch],
                metadatas=[
                    {
                        "signature": context.signature(),
                        "iteration": cast(int, context.iteration),
                        "admitted": admitted.get(context.id, 0),
                    }
                    for context in batch
                ],
            )

    def _batches(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        # Chroma refuses longer writes, and its SQL longer lists of ids.
        size = self._client.get_max_batch_size()
        for start in range(0, len(items), size):
            yield items[start : start + size]


def use_memory(folder: Path, settings: MemorySettings, use: Callable[[FailureMemory], Made]) -> Made:
    """Open the memory in ``folder``, pass it to ``use``, close it, and return the result of ``use``.

    If the index turns out to be damaged during ``use``, it is set aside, with a warning, and ``use`` is called again
    with an empty one: it has to check whether the memory ``agrees`` with the records. Raises like ``FailureMemory``.
    """
    from memory.chroma import ChromaError

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
    """Return what is wrong with the database file, None if nothing is: Chroma would panic or answer wrongly."""
    if not database.exists():
        return None
    if not database.is_file():
        return f"{database.name} is not a file"
    try:
        with closing(sqlite3.connect(database)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # locked, or the disk refuses: Chroma's own error says which
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else " ".join(str(found).split())


def _index(folder: Path) -> list[Path]:
    """Return the files of the folder that are Chroma's: all but the lock, which this process holds."""
    return [path for path in folder.iterdir() if not path.name.startswith(_LOCK)]


def _set_aside(folder: Path, parts: Sequence[Path], problem: str) -> None:
    """Move ``parts`` to a new folder beside ``folder``, and warn."""
    aside = next(
        place
        for number in itertools.count(1)
        if not (place := folder.with_name(f"{folder.name}-damaged-{number}")).exists()
    )
    aside.mkdir(parents=True)
    for path in parts:
        os.replace(path, aside / path.name)
    say(
        f"warning: {folder} cannot be read ({' '.join(problem.split())}): it was moved to {aside} and is rebuilt from "
        "the records",
    )
