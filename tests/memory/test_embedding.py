"""Texts as vectors: stable, normalised, the same in every process."""

import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.failures import hashed_ngrams


@given(texts=st.lists(st.text(), min_size=1, max_size=4))
def test_every_text_has_a_vector_of_length_one_that_its_neighbours_do_not_change(texts):
    rows = hashed_ngrams(texts)
    assert rows.dtype == np.float32
    assert rows.shape == (len(texts), 1024)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-6)
    for text, row in zip(texts, rows, strict=True):
        assert np.array_equal(hashed_ngrams([text])[0], row)


def test_a_text_counts_as_its_pieces_of_three_to_five_characters_between_two_marks():
    pieces = ("\x02Ab", "Ab\x03", "\x02Ab\x03")
    expected = np.zeros(1024)
    for piece in pieces:
        digest = zlib.crc32(piece.lower().encode())
        expected[digest % 1024] += 1 if digest >> 31 else -1
    (row,) = hashed_ngrams(["Ab"])
    assert np.allclose(row, expected / np.linalg.norm(expected))
    abcd = hashed_ngrams(["abcd"])[0]
    assert np.count_nonzero(abcd) == 4 + 3 + 2, "four of three characters, three of four, two of five; none of six"


def cosine(one, other):
    first, second = hashed_ngrams([one, other])
    return float(first @ second)


def test_likeness_follows_the_text():
    text = "dir_name='notes', cwd='/workspace'"
    assert cosine(text, "  DIR_NAME='notes',\n cwd='/workspace' ") == pytest.approx(1.0)
    near, far = cosine(text, "dir_name='notes', cwd='/archive'"), cosine(text, "fuelAmount=30")
    assert far < 0.2 < near < 0.9


VECTOR = """
from memory.failures import hashed_ngrams
print(hashed_ngrams(["a folder called notes"])[0].tobytes().hex())
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
    assert printed == hashed_ngrams(["a folder called notes"])[0].tobytes().hex()
