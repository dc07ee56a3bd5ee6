"""The failure memory: which weaknesses were explored before, indexed in one Chroma collection.

No cosine threshold separates two failures ("401, token not passed" and "401, wrong password" are closer than most
paraphrases), so two contexts are compared only if their signatures are equal, by the cosine of their facts that vary.
Chroma's ``where`` selects them, and they are compared exactly: its ``query`` is approximate, and where one text recurs
a hundred times it misses the nearest.
"""

from __future__ import annotations

import shutil
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from environments.base import Record
from environments.settings import Section, requires
from memory.records import DraftVerification, FailureContext
from memory.run import RunDirectory, read_jsonl

RECUR_AFTER = 3
"""Iterations after which a known weakness that recurs is explored again (ours)."""

_COLLECTION = "contexts"
_DECIMALS = 4  # float32 sums differ after this decimal; a recorded result must not depend on them.

Vector = NDArray[np.float32]


class MemorySettings(Section):
    """How failure contexts are compared (ours: exact signature first, cosine within it)."""

    duplicate_above: float = Field(
        0.9,
        ge=0.0,
        le=1.0,
        description="cosine at which a context counts as known",
        json_schema_extra=requires({"deduplicate": True}),
    )
    deduplicate: bool = Field(True, description="false: every context counts as new (ours, ablation)")


class DeduplicationResult(Record):
    """Whether a context is explored (new) or was explored before (known).

    ``nearest`` is the id of the most similar context of its signature (see ``explored_before``), None if there is none.
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
    """The contexts by which others are known (``explored_before``), in a Chroma collection.

    The JSON lines of the run remember, Chroma indexes: ``indexed`` makes the index anew of them for each iteration, so
    that nothing in a folder has to be believed.
    """

    def __init__(self, folder: Path, settings: MemorySettings) -> None:
        chroma = _chroma()
        self._settings = settings
        self._client = chroma.PersistentClient(folder, settings=chroma.config.Settings(anonymized_telemetry=False))
        self._contexts = self._client.get_or_create_collection(
            _COLLECTION, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )

    def close(self) -> None:
        """Release the folder."""
        cast(Any, self._client).close()

    def remember(self, contexts: Sequence[FailureContext]) -> None:
        """Add ``contexts`` to the index. Idempotent."""
        size = self._client.get_max_batch_size()  # Chroma refuses longer writes
        for start in range(0, len(contexts), size):
            batch = contexts[start : start + size]
            texts = [embedded_text(context) for context in batch]
            self._contexts.upsert(
                ids=[context.id for context in batch],
                embeddings=hashed_ngrams(texts),
                documents=texts,
                metadatas=[{"signature": context.signature()} for context in batch],
            )

    def compare(self, contexts: Sequence[FailureContext]) -> tuple[DeduplicationResult, ...]:
        """Separate new contexts from known ones, without writing; the results are in the order of ``contexts``.

        A context is compared with the remembered ones of its signature, and with those of the batch that have a smaller
        id and are new.
        """
        if not contexts:
            return ()
        ordered = sorted(contexts, key=lambda context: context.id)
        alike = defaultdict[str, list[tuple[str, Vector]]](list)
        where = {"signature": {"$in": sorted({context.signature() for context in ordered})}}
        found = cast(Any, self._contexts.get(where=where, include=["embeddings", "metadatas"]))
        for name, vector, metadata in zip(found["ids"], found["embeddings"], found["metadatas"], strict=True):
            alike[metadata["signature"]].append((name, vector))
        results: dict[str, DeduplicationResult] = {}
        vectors = hashed_ngrams([embedded_text(context) for context in ordered])
        for context, vector in zip(ordered, vectors, strict=True):
            like = alike[context.signature()]
            results[context.id] = self._compared(context.id, vector, like)
            if results[context.id].status == "new":
                like.append((context.id, vector))
        return tuple(results[context.id] for context in contexts)

    def _compared(self, context_id: str, vector: Vector, alike: Sequence[tuple[str, Vector]]) -> DeduplicationResult:
        if not alike:
            return DeduplicationResult(context_id=context_id, status="new")
        rows = np.array([row for _, row in alike], dtype=np.float32)
        # einsum sums each row on its own: a BLAS product rounds differently with the number of rows.
        distances = np.round(1.0 - np.einsum("ij,j->i", rows, vector).astype(np.float64), _DECIMALS)
        best = float(distances.min())
        nearest = min(alike[index][0] for index in np.flatnonzero(distances == best).tolist())
        cosine = round(1.0 - best, _DECIMALS)
        known = cosine >= self._settings.duplicate_above
        return DeduplicationResult(
            context_id=context_id, status="known" if known else "new", nearest=nearest, cosine=cosine
        )


@contextmanager
def indexed(folder: Path, settings: MemorySettings, explored: Sequence[FailureContext]) -> Iterator[FailureMemory]:
    """Give the memory of ``explored``, with its index made anew in ``folder``.

    Chroma has one client of a path in a process, so that one which is still open there, as in a notebook, would be
    given a folder that is gone. The index is therefore made under a name of its own, and moved once it is closed.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    made = Path(mkdtemp(dir=folder))
    with closing(FailureMemory(made, settings)) as memory:
        memory.remember(explored)
        yield memory
    for inside in made.iterdir():
        inside.rename(folder / inside.name)
    made.rmdir()


def explored_before(run: RunDirectory, iteration: int) -> list[FailureContext]:
    """Return the contexts by which those of ``iteration`` are known (our choice, the paper does not deduplicate).

    They were explored fewer than ``RECUR_AFTER`` iterations ago and admitted a task. A weakness that recurs later, or
    whose exploration admitted nothing, is therefore new again.
    """
    found = list[FailureContext]()
    for folder in map(run.iteration, range(max(0, iteration - RECUR_AFTER + 1), iteration)):
        explored = {one.context_id for one in read_jsonl(folder.judgements, DeduplicationResult) if one.status == "new"}
        explored &= {one.context_id for one in read_jsonl(folder.verdicts, DraftVerification) if one.accepted}
        contexts = read_jsonl(folder.contexts, FailureContext)
        found += [one for one in contexts if one.id in explored and one.comparable]
    return found


@lru_cache(maxsize=1)
def _chroma() -> Any:  # noqa: ANN401 - its import takes a second, so that it has no name before the first use
    """Import Chroma so that nothing in the working directory configures it.

    Chroma reads ``.env`` of the working directory when it is imported and whenever its settings are made. A value there
    can name a module, which Chroma imports and calls (``CHROMA_PRODUCT_TELEMETRY_IMPL``), or end in a traceback.
    """
    from pydantic_settings import BaseSettings

    sources = BaseSettings.__dict__["settings_customise_sources"]
    BaseSettings.settings_customise_sources = classmethod(_without_file)  # type: ignore[assignment]
    try:
        import chromadb
    finally:
        BaseSettings.settings_customise_sources = sources  # type: ignore[method-assign]
    chromadb.config.Settings.model_config["env_file"] = None
    return chromadb


def _without_file(_: type, /, settings_cls: type, **sources: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return tuple(source for name, source in sources.items() if name != "dotenv_settings")


DIMENSION = 1024
"""Length of a vector (ours)."""


def hashed_ngrams(texts: Sequence[str]) -> NDArray[np.float32]:
    """Count character 3- to 5-grams, hashed with a sign into ``DIMENSION`` buckets, L2-normalised (our choice).

    Returns one row per text, also for the empty text. Case and runs of white space are ignored. A text's vector is the
    same in every process and on every machine.
    """
    rows = np.zeros((len(texts), DIMENSION), dtype=np.float64)
    for row, text in zip(rows, texts, strict=True):
        for gram, count in Counter(_ngrams(text)).items():
            # CRC-32 and not hash(), which differs between processes.
            digest = zlib.crc32(gram.encode())
            row[digest % DIMENSION] += count if digest & 0x80000000 else -count
        if not row.any():
            # Only in very short texts can grams of one bucket and opposite signs cancel out.
            row[zlib.crc32(text.encode()) % DIMENSION] = 1.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


def _ngrams(text: str) -> list[str]:
    # The two marks make beginnings and ends count, and give a gram even to the empty text.
    marked = "\x02" + " ".join(text.casefold().split()) + "\x03"
    grams = [marked[start : start + n] for n in (3, 4, 5) for start in range(len(marked) - n + 1)]
    return grams or [marked]
