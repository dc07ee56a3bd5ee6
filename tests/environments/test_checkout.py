"""Recipes and policies that ship with the project, found from any working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.checkout import INITIAL_POLICY, QUICKSTART, ROOT, shipped_policy
from memory.jsonl import find_recipe
from training.rollout.policy import policy_folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that holds a policy and a recipe under the names of shipped ones."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes" / "starter").mkdir(parents=True)
    (tmp_path / "recipes" / "quickstart.yaml").write_text("")
    return tmp_path


def test_a_default_does_not_depend_on_the_working_directory(elsewhere: Path) -> None:
    assert QUICKSTART == ROOT / "recipes" / "quickstart.yaml"
    assert policy_folder(INITIAL_POLICY) == str(ROOT / INITIAL_POLICY)
    assert policy_folder("./recipes/starter") == "./recipes/starter"


def test_in_the_checkout_records_keep_the_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert policy_folder(INITIAL_POLICY) == INITIAL_POLICY


def test_a_typed_recipe_is_the_working_directorys_where_it_has_one(elsewhere: Path) -> None:
    assert find_recipe(Path("recipes/quickstart.yaml")) == Path("recipes/quickstart.yaml")
    assert find_recipe(Path("recipes/study-world.yaml")) == ROOT / "recipes" / "study-world.yaml"
    assert find_recipe(Path("recipes/none.yaml")) == Path("recipes/none.yaml")


@pytest.mark.parametrize("path", ["recipes", "recipes/none", "recipes/seal-bfcl", "/recipes/starter", "runs/starter"])
def test_other_paths_name_no_shipped_policy(path: str) -> None:
    assert shipped_policy(path) is None
