"""The folder in which the notebook adds an environment of one's own."""

from __future__ import annotations

import pytest

from graph.recipe import load_recipe
from graph.walkthrough.own_environment import RECIPE, workshop


def test_the_folder_has_a_class_and_a_recipe_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workshop()
    assert sorted(path.name for path in folder.iterdir()) == ["my_depot.py", "recipe.yaml"]
    assert (folder / "recipe.yaml").read_text() == RECIPE
    monkeypatch.syspath_prepend(str(folder))
    settings = load_recipe(folder / "recipe.yaml")
    assert settings.environment.name == "my_depot:depot"
    assert settings.evaluation.set is None
