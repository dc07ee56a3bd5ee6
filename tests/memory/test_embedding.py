"""The embedders: stable, normalised, offline, and what a user is told when one cannot be had."""

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.late import Late
from support.sample_records import context

from environments.base import InputError
from memory.failures import FailureMemory
from memory.settings import MemorySettings

embedding = Late("memory.embedding")


@given(texts=st.lists(st.text(), min_size=1, max_size=4))
def test_every_text_has_a_vector_of_length_one_that_its_neighbours_do_not_change(texts):
    rows = np.stack(embedding.HashedNgrams()(texts))
    assert rows.dtype == np.float32
    assert rows.shape == (len(texts), 1024)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-6)
    for text, row in zip(texts, rows, strict=True):
        assert np.array_equal(embedding.HashedNgrams()([text])[0], row)


def cosine(one, other):
    first, second = embedding.HashedNgrams()([one, other])
    return float(first @ second)


def test_likeness_follows_the_text():
    text = "dir_name='notes', cwd='/workspace'"
    assert cosine(text, "  DIR_NAME='notes',\n cwd='/workspace' ") == pytest.approx(1.0)
    near, far = cosine(text, "dir_name='notes', cwd='/archive'"), cosine(text, "fuelAmount=30")
    assert far < 0.2 < near < 0.9


VECTOR = """
from memory.embedding import HashedNgrams
print(HashedNgrams()(["a folder called notes"])[0].tobytes().hex())
"""


@pytest.mark.process
def test_another_process_computes_the_same_vector():
    printed = subprocess.run(
        [sys.executable, "-c", VECTOR],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={"PYTHONHASHSEED": "77"},
    ).stdout.strip()
    assert printed == embedding.HashedNgrams()(["a folder called notes"])[0].tobytes().hex()


def test_chroma_can_rebuild_it_from_its_configuration():
    embedder = embedding.HashedNgrams(dimension=64)
    from chromadb.utils.embedding_functions import known_embedding_functions

    rebuilt = known_embedding_functions[embedder.name()].build_from_config(embedder.get_config())
    assert isinstance(rebuilt, embedding.HashedNgrams)
    assert np.array_equal(rebuilt(["text"])[0], embedder(["text"])[0])
    assert not embedder.is_legacy()
    assert embedder.default_space() == "cosine"
    assert embedding.open_embedder(MemorySettings()).label == "hashed-ngrams-1024"


def test_a_folder_that_is_not_there_is_told():
    with pytest.raises(InputError, match="/no/folder is not a folder"):
        embedding.open_embedder(MemorySettings(embedder="/no/folder"))


def test_a_missing_package_is_told_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="run pip install sentence-transformers"):
        embedding.open_embedder(MemorySettings(embedder=str(tmp_path)))


def test_a_local_model_is_loaded_offline_and_normalised(tmp_path, monkeypatch):
    loaded = []

    class Model:
        """Stands for the package, which the project does not install: the calls are those of its documentation."""

        def __init__(self, model_name_or_path, device, local_files_only):
            loaded.append((model_name_or_path, device, local_files_only))

        def encode(self, texts, convert_to_numpy, normalize_embeddings):
            rows = np.array([[3.0, 4.0 * len(text)] for text in texts], dtype=np.float32)
            return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize_embeddings else rows

    package = ModuleType("sentence_transformers")
    package.SentenceTransformer = Model
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)
    folder = tmp_path / "all MiniLM_L6"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    settings = MemorySettings(embedder=str(folder))
    embedder = embedding.open_embedder(settings)
    assert loaded == [(str(folder), "cpu", True)]
    assert embedder.function(["a"])[0] == pytest.approx([0.6, 0.8])
    assert embedder.label.startswith("all-MiniLM-L6-2-")
    with FailureMemory(tmp_path / "failures", settings) as memory:
        memory.remember([context("a")], {"a": 1}, 0)
        assert [one.status for one in memory.compare([context("b", iteration=1)], 1)] == ["known"]
    (folder / "model.safetensors").write_bytes(b"another")
    assert embedding.open_embedder(settings).label != embedder.label
    with FailureMemory(tmp_path / "failures", settings) as memory:
        assert memory.ids == frozenset()
