"""The split of every index."""

import pytest

from environments.base import InputError
from environments.bfcl.official import TASKS, in_seal_test, indices, split_of

SPLITS = ("train", "dev", "test", "reserved")


def test_every_index_has_one_split():
    assert sorted(index for split in SPLITS for index in indices(split)) == list(range(TASKS))
    assert all(split_of(index) == split for split in SPLITS for index in indices(split))


def test_sizes():
    assert {split: len(indices(split)) for split in SPLITS} == {"train": 45, "dev": 17, "test": 118, "reserved": 20}


def test_reserved_indices():
    assert indices("reserved") == (*range(40, 50), *range(90, 100))


@pytest.mark.parametrize(("group", "split"), [((63, 83), "dev"), ((66, 70, 74), "test"), ((100, 104, 133), "train")])
def test_tasks_with_the_same_configuration_stay_together(group, split):
    assert {split_of(index) for index in group} == {split}


@pytest.mark.parametrize(
    ("index", "split"),
    [
        (0, "train"),
        (10, "train"),
        (11, "dev"),
        (14, "dev"),
        (15, "test"),
        (39, "test"),
        (60, "train"),
        (64, "dev"),
        (65, "test"),
        (149, "test"),
        (190, "test"),
    ],
)
def test_the_rule(index, split):
    assert split_of(index) == split


@pytest.mark.parametrize("index", [-1, 200])
def test_there_is_no_other_index(index):
    with pytest.raises(InputError, match=f"index {index}"):
        split_of(index)


def test_the_test_after_seals_protocol_has_100_test_indices_spread_evenly():
    chosen = [index for index in range(TASKS) if in_seal_test(index)]
    assert len(chosen) == 100
    assert set(chosen) <= set(indices("test"))
    assert [sum(index // 50 == block for index in chosen) for block in range(4)] == [25, 24, 25, 26]
    assert [sum(index // 50 == block for index in indices("train")) for block in range(4)] == [11, 11, 12, 11]
