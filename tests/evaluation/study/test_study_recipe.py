"""The hashes of studies: those of recorded results stay what they were, though defaults have changed since."""

import json
from pathlib import Path

import pytest
from support import ROOT

from evaluation.study.recipe import Study, StudyRecipe, load_study

SMALL_STUDY = StudyRecipe.model_validate(
    {
        "base": "recipes/quickstart.yaml",
        "panels": {"dev": ["templated-dev"], "test": ["templated-test"]},
        "arms": [{"name": "grpo", "description": "plain"}],
    }
)


@pytest.mark.parametrize(("recipe", "results"), [("study", "learning"), ("study-seal", "seal")])
def test_the_shipped_studies_are_those_of_the_recorded_results(recipe: str, results: str) -> None:
    """Their runs do what the recorded ones did: defaults that changed since are stated, and hashes leave them out."""
    study = load_study(Path("recipes") / f"{recipe}.yaml")
    recorded = json.loads((ROOT / "results" / results / "summary.json").read_text())["study"]["recipe"]
    assert study.sha256 == recorded
    assert study.shared["roles"] == {"exploration": {"independent": False, "order": "easy_first"}}


def test_a_recipe_that_takes_a_default_of_today_has_another_hash() -> None:
    recorded, today, stated = (
        Study(recipe=recipe, shared=shared, sha256="", starter="", starter_sha256="", panels={"templated-dev": "x"})
        for recipe, shared in [
            (SMALL_STUDY, {"roles": {"exploration": {"independent": False, "order": "easy_first"}}}),
            (SMALL_STUDY, {}),
            (SMALL_STUDY, {"roles": {"exploration": {"independent": True, "order": "easy_first"}}}),
        ]
    )
    hashes = {one.run_hash(SMALL_STUDY.arms[0], 0, "dev", None) for one in (recorded, today, stated)}
    assert len(hashes) == 3
