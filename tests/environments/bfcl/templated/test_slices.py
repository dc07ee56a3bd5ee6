"""Slices of human paths: contiguous, restricted to the templated classes, verified, never of reserved indices."""

import pytest

from environments.base import InputError
from environments.bfcl.docs import tool_names
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.official import indices
from environments.bfcl.templated.slices import TEMPLATED_CLASSES, base_tasks, human_slices, slice_task
from environments.verification.fingerprints import fingerprint
from environments.verification.verify import verify

pytestmark = pytest.mark.slow

ENVIRONMENT = BFCLEnvironment(TEMPLATED_CLASSES)
SOME = (0, 3, 5, 51, 58, 60)


@pytest.fixture(scope="module")
def slices():
    return human_slices(ENVIRONMENT, SOME)


def test_slices_are_contiguous_with_everything_before_as_setup(slices):
    paths = {task.index: [call for turn in task.spec.reference for call in turn] for task in base_tasks(SOME)}
    assert {piece.index for piece in slices} == set(SOME)
    assert {piece.length for piece in slices} == {1, 2, 3}
    for piece in slices:
        end = piece.start + piece.length
        assert [*piece.spec.setup, *piece.spec.reference[0]] == paths[piece.index][:end]
        assert len(piece.spec.setup) == piece.start
        assert len(piece.forced) == piece.length
        assert not piece.forced[-1]


def test_slices_are_restricted_to_the_templated_classes(slices):
    official = {task.index: task.spec for task in base_tasks(SOME)}
    for piece in slices:
        spec = piece.spec
        assert spec.classes == tuple(name for name in official[piece.index].classes if name in TEMPLATED_CLASSES)
        assert set(spec.initial_state) <= set(spec.classes)
        assert spec.tools == tool_names(spec.classes)
        assert spec.split == "train"
    mixed = [piece for piece in slices if set(official[piece.index].classes) - set(TEMPLATED_CLASSES)]
    assert mixed, "none of the chosen indices is a mixed one: choose others"


def test_slices_verify_and_differ(slices):
    assert all(verify(piece.spec, ENVIRONMENT, (), ()).accepted for piece in slices)
    assert len({fingerprint(piece.spec) for piece in slices}) == len(slices)


def test_slices_are_deterministic_by_seed(slices):
    assert human_slices(ENVIRONMENT, SOME) == slices
    others = human_slices(ENVIRONMENT, SOME, seed=1)
    assert [piece.spec.reference for piece in others] == [piece.spec.reference for piece in slices]
    assert [piece.spec.turns for piece in others] != [piece.spec.turns for piece in slices]


def test_longer_slices_can_be_had():
    longer = human_slices(ENVIRONMENT, (51, 58), lengths=(4, 5, 6))
    assert {4, 5} <= {piece.length for piece in longer} <= {4, 5, 6}


def test_training_wordings_can_be_asked_for(slices):
    train = human_slices(ENVIRONMENT, SOME, wordings="train")
    assert len(train) == len(slices)
    assert not {piece.spec.turns for piece in train} & {piece.spec.turns for piece in slices if piece.length == 1}


@pytest.mark.parametrize("index", [40, 49, 90, 99])
def test_reserved_indices_are_never_opened(index):
    with pytest.raises(InputError, match=str(index)):
        human_slices(ENVIRONMENT, (index,))
    assert index not in {i for split in ("train", "dev", "test") for i in indices(split)}


def test_a_slice_past_the_path_or_outside_the_classes_is_refused():
    task = next(task for task in base_tasks(indices("train")) if task.spec.classes == ("TradingBot",))
    with pytest.raises(InputError, match=task.id):
        slice_task(task, 0, 1)
    (short,) = base_tasks((0,))
    with pytest.raises(InputError, match="base-0"):
        slice_task(short, 0, 99)
    with pytest.raises(InputError, match="base-0"):
        slice_task(short, 0, 0)
