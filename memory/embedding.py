"""Embedding functions of Chroma that work offline, for the failure memory.

This module imports chromadb, which takes a second: import it inside functions.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from environments.base import InputError
from memory.chroma import (
    Documents,
    EmbeddingFunction,
    Embeddings,
    SentenceTransformerEmbeddingFunction,
    Space,
    register_embedding_function,
)
from memory.settings import MemorySettings

__all__ = ["Embedder", "HashedNgrams", "open_embedder"]


class Embedder(NamedTuple):
    """An embedding function, which returns one L2-normalised float32 vector per text, and its label.

    ``label`` names the model and its dimension in a collection's name: vectors of two embedders are never compared.
    """

    label: str
    function: EmbeddingFunction[Documents]


@register_embedding_function
class HashedNgrams(EmbeddingFunction[Documents]):
    """Count character 3- to 5-grams, hashed with a sign into ``dimension`` buckets, L2-normalised (our choice).

    Case and runs of white space are ignored. A text's vector is the same in every process and on every machine.
    """

    def __init__(self, dimension: int = 1024) -> None:
        self.dimension = dimension

    def __call__(self, input: Documents) -> Embeddings:
        """Return one vector per text; the empty text has one too."""
        rows = np.zeros((len(input), self.dimension), dtype=np.float64)
        for row, text in zip(rows, input, strict=True):
            for gram, count in Counter(_ngrams(text)).items():
                # CRC-32 and not hash(), which differs between processes.
                digest = zlib.crc32(gram.encode())
                row[digest % self.dimension] += count if digest & 0x80000000 else -count
            if not row.any():
                # Only in very short texts can grams of one bucket and opposite signs cancel out.
                row[zlib.crc32(text.encode()) % self.dimension] = 1.0
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return cast(Embeddings, list(rows.astype(np.float32)))

    @staticmethod
    def name() -> str:
        return "coevolve-hashed-ngrams"

    def default_space(self) -> Space:
        return "cosine"

    def supported_spaces(self) -> list[Space]:
        return ["cosine"]

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


def open_embedder(settings: MemorySettings) -> Embedder:
    """Open the embedder that ``settings`` name: hashed n-grams, or Chroma's function for sentence-transformers.

    A model is read from its local folder, on the CPU; nothing is downloaded. Raises InputError if the folder or the
    package is missing.
    """
    if settings.embedder is None:
        hashed = HashedNgrams()
        return Embedder(f"hashed-ngrams-{hashed.dimension}", hashed)
    folder = Path(settings.embedder)
    if not folder.is_dir():
        raise InputError(f"memory.embedder: {folder} is not a folder: name the folder of a sentence-transformers model")
    try:
        # Chroma reports a package that is broken like one that is missing.
        importlib.import_module("sentence_transformers")
    except ModuleNotFoundError as error:
        if error.name != "sentence_transformers":
            raise
        raise InputError(
            "memory.embedder: the package sentence-transformers is not installed: "
            "run pip install sentence-transformers, or set memory.embedder=null"
        ) from None
    function = SentenceTransformerEmbeddingFunction(
        model_name=str(folder), device="cpu", normalize_embeddings=True, local_files_only=True
    )
    dimension = len(function(["dimension"])[0])
    return Embedder(f"{_collection_word(folder.name)}-{dimension}-{_fingerprint(folder)}", function)


def _collection_word(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-")[:80] or "model"


def _fingerprint(folder: Path) -> str:
    """Return eight hex digits of the names and sizes of a model's files: another model in its place has others."""
    files = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(repr(files).encode()).hexdigest()[:8]
