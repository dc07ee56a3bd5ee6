"""Every number of a recipe has an upper bound: one that is mistyped is refused at once, not waited for."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from annotated_types import Le, Lt
from pydantic import BaseModel

from environments.base import InputError
from environments.checkout import QUICKSTART
from evaluation.study.recipe import StudyRecipe
from graph.settings import RunSettings, load_recipe
from training.start_rows import StartSettings


def numbers(annotation: Any, metadata: list[Any], name: str) -> Iterator[tuple[str, bool]]:
    """Every int and float in an annotation, however deep, by dotted name, and whether it is bounded above."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for key, field in annotation.model_fields.items():
            yield from numbers(field.annotation, field.metadata, f"{name}.{key}" if name else key)
        return
    if annotation in (int, float):
        yield name, any(isinstance(one, Le | Lt) for one in metadata)
        return
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        # pydantic's Field holds its constraints in its own metadata
        own = [bound for one in inner[1:] for bound in getattr(one, "metadata", [one])]
        yield from numbers(inner[0], [*metadata, *own], name)
    elif origin in (Union, types.UnionType):
        for one in inner:
            yield from numbers(one, metadata, name)
    elif origin not in (None, Literal):
        for one in inner:
            yield from numbers(one, [], name)


@pytest.mark.parametrize(("settings", "least"), [(RunSettings, 60), (StudyRecipe, 3), (StartSettings, 6)])
def test_every_number_of_the_settings_has_an_upper_bound(settings: type[BaseModel], least: int) -> None:
    found = dict(numbers(settings, [], ""))
    assert len(found) >= least, found
    assert all(found.values()), found


def test_a_number_without_a_bound_is_found() -> None:
    class Open(BaseModel):
        plain: int = 1
        deep: dict[str, tuple[float, ...]] | None = None
        word: Literal["a", 3] = "a"

    assert dict(numbers(Open, [], "")) == {"plain": False, "deep": False}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("training.rollouts_per_task=100000000000", "rollouts_per_task: input should be less than or equal to 1024"),
        ("training.rollouts_per_task=1e11", "rollouts_per_task: input should be a valid integer"),
        ("training={tasks_per_step: 4000, rollouts_per_task: 1024}", "a step has 4096000 rollouts"),
        ("training.learning_rate=1e30", "learning_rate: input should be less than or equal to 1"),
        ("training.learning_rate=.nan", "learning_rate: input should be less than or equal to 1"),
        ("seed=9223372036854775808", "seed: input should be less than"),
        ("roles.branch_timeout=.inf", "branch_timeout: input should be less than or equal to 86400"),
        ("tasks.admissions=[1, 2, 3, 4, 99999999]", "tasks.admissions.4: input should be less than or equal to"),
    ],
)
def test_a_number_beyond_its_bound_is_refused(override: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        load_recipe(Path(QUICKSTART), [override])
    assert says in str(refused.value)
