"""Hashes of recorded results: a setting has one hash by its former name and by today's, wherever a recipe states it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.made_results import RECIPE, made_study

from environments.base import InputError
from evaluation.study.recipe import Study, load_study, put
from memory.former import FORMER_NAMES

VALUE = 3


def with_settings(folder: Path, stated: object) -> Study:
    return made_study(folder, RECIPE.replace("compare:", f"settings: {json.dumps(stated)}\ncompare:"))


def nested(key: str) -> dict[str, Any]:
    tree: Any = VALUE
    for name in reversed(key.split(".")):
        tree = {name: tree}
    return dict(tree)


def run_hash(study: Study, arm: str = "grpo") -> str:
    return study.run_hash(study.recipe.arm(arm), 100, "dev", None)


@pytest.mark.parametrize(("former", "today"), FORMER_NAMES.items())
def test_either_name_of_a_key_gives_the_hash_of_recorded_results(former: str, today: str, tmp_path: Path) -> None:
    runs, texts, shared = set(), set(), []
    for key in (former, today):
        study = with_settings(tmp_path, {key: VALUE})
        runs.add(run_hash(study))
        texts.add(study.sha256)
        shared.append(study.shared)
        sections = nested(key)
        runs.add(run_hash(with_settings(tmp_path, sections)))
        made_study(tmp_path)
        base = {"iterations": 2, "policy": {"path": "recipes/starter"}} | sections
        (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
        in_base = load_study(tmp_path / "study.yaml")
        runs.add(run_hash(in_base))
        shared.append(in_base.shared)
    assert len(runs) == 1
    assert len(texts) == 1
    assert all(one == shared[0] for one in shared), "a run gets the names of today"
    assert runs != {run_hash(with_settings(tmp_path, {key: VALUE + 1}))}


def arm(overrides: str) -> str:
    return RECIPE.replace("description: loop", f"description: loop, overrides: {{{overrides}}}")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("training.kl: 2", "overrides training.kl, which all"),
        ("evaluation.panel: null", "overrides evaluation.panel, which all arms share"),
    ],
)
def test_what_an_arm_may_not_state(overrides: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        made_study(tmp_path, arm(overrides))


def test_an_arm_varies_a_setting_by_either_name(tmp_path: Path) -> None:
    for varied, key in (("panel", "set"), ("set", "panel")):
        text = arm(f"evaluation.{key}: null").replace("compare:", f"varies: [evaluation.{varied}]\ncompare:")
        assert made_study(tmp_path, text).recipe.varies == (f"evaluation.{varied}",)


@pytest.mark.parametrize("key", ["environment.classes", "environment.options.classes"])
@pytest.mark.parametrize("spelling", ["former", "today"])
def test_an_option_replaces_that_of_the_base_in_either_spelling_of_both(key: str, spelling: str) -> None:
    def base(classes: list[str]) -> dict[str, Any]:
        options = {"classes": classes}
        return {"environment": {"name": "bfcl"} | (options if spelling == "former" else {"options": options})}

    tree = base(["MathAPI", "TicketAPI"])
    put(tree, key, ["MathAPI"])
    assert tree == base(["MathAPI"]), "a recorded hash is of the spelling that the base has"


def test_a_key_of_the_environment_itself_stays_where_it_is() -> None:
    tree: dict[str, Any] = {"environment": {"name": "bfcl", "options": {"classes": ["MathAPI"]}}}
    put(tree, "environment.name", "appworld")
    put(tree, "environment.options.name", "an option")
    assert tree["environment"] == {"name": "appworld", "options": {"classes": ["MathAPI"], "name": "an option"}}
