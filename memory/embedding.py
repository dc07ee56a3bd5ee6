"""Text to vectors for the failure memory, as Chroma embedding functions that work offline.

This module imports chromadb, which takes a second: import it inside functions.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
from chromadb.utils.embedding_functions import register_embedding_function
from numpy.typing import NDArray

from environments.base import InputError
from memory.settings import MemorySettings

__all__ = ["Embedder", "HashedNgrams", "SentenceTransformers", "open_embedder"]

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """What the failure memory needs of a Chroma embedding function.

    ``label`` names the embedder and its dimension in a collection's name: vectors of two embedders never meet.
    """

    @property
    def label(self) -> str: ...

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """One L2-normalised row of float32 a text."""
        ...


class _CosineEmbedding(EmbeddingFunction[Documents]):
    """What Chroma asks of an embedding function whose ``vectors`` are compared by cosine."""

    @abstractmethod
    def vectors(self, texts: Sequence[str]) -> Vectors:
        """One L2-normalised row of float32 a text."""

    def __call__(self, input: Documents) -> Embeddings:
        return cast(Embeddings, list(self.vectors(input)))

    def default_space(self) -> Space:
        return "cosine"

    def supported_spaces(self) -> list[Space]:
        return ["cosine"]


@register_embedding_function
class HashedNgrams(_CosineEmbedding):
    """Counts of character 3- to 5-grams, hashed with a sign into a fixed number of dimensions (our choice).

    Case and runs of white space do not count. CRC-32 is stable across processes, machines and Python versions.
    """

    def __init__(self, dimension: int = 1024) -> None:
        self.dimension = dimension

    @staticmethod
    def name() -> str:
        return "coevolve-hashed-ngrams"

    @property
    def label(self) -> str:
        return f"hashed-ngrams-{self.dimension}"

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """One L2-normalised row of float32 a text; the empty text has a vector too."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float64)
        for row, text in zip(rows, texts, strict=True):
            for gram, count in Counter(_ngrams(text)).items():
                digest = zlib.crc32(gram.encode())
                row[digest % self.dimension] += count if digest & 0x80000000 else -count
            if not row.any():
                # Grams of one dimension and opposite signs can cancel out in very short texts only.
                row[zlib.crc32(text.encode()) % self.dimension] = 1.0
        return _normalised(rows)

    def get_config(self) -> dict[str, Any]:
        return {"dimension": self.dimension}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> HashedNgrams:
        return HashedNgrams(dimension=config["dimension"])


def _ngrams(text: str) -> list[str]:
    # The two marks make beginnings and ends count, and give a gram even to the empty text.
    marked = "\x02" + " ".join(text.casefold().split()) + "\x03"
    grams = [marked[start : start + n] for n in (3, 4, 5) for start in range(len(marked) - n + 1)]
    return grams or [marked]


def _normalised(rows: NDArray[np.float64]) -> Vectors:
    unit: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit.astype(np.float32)


@register_embedding_function
class SentenceTransformers(_CosineEmbedding):
    """A sentence-transformers model from a local folder, on the CPU; nothing is downloaded.

    Raises InputError when the folder or the package is missing.
    """

    def __init__(self, path: str) -> None:
        folder = Path(path)
        if not folder.is_dir():
            raise InputError(
                f"memory.embedder_path: {path} is no folder: name the folder of a sentence-transformers model"
            )
        try:
            package = importlib.import_module("sentence_transformers")
        except ModuleNotFoundError as error:
            if error.name != "sentence_transformers":
                raise
            raise InputError(
                "memory.embedder: the package sentence-transformers is not installed: "
                "run pip install sentence-transformers, or set memory.embedder=hashed-ngrams"
            ) from None
        self.path = path
        self._model = package.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        dimension = len(self.vectors(["dimension"])[0])
        self._label = f"{_collection_word(folder.name)}-{dimension}-{_fingerprint(folder)}"

    @staticmethod
    def name() -> str:
        return "coevolve-sentence-transformers"

    @property
    def label(self) -> str:
        return self._label

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """One L2-normalised row of float32 a text."""
        rows = self._model.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)
        return _normalised(np.asarray(rows, dtype=np.float64))

    def get_config(self) -> dict[str, Any]:
        return {"path": self.path}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> SentenceTransformers:
        return SentenceTransformers(path=config["path"])


def _collection_word(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-")[:80] or "model"


def _fingerprint(folder: Path) -> str:
    """Eight hex digits from the names and sizes of a model's files: another model in the same place is told apart."""
    files = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(repr(files).encode()).hexdigest()[:8]


def open_embedder(settings: MemorySettings) -> Embedder:
    """The embedder that ``settings`` name. Raises InputError for a path that is no folder."""
    return HashedNgrams() if settings.embedder_path is None else SentenceTransformers(settings.embedder_path)
