"""Tasks that exploration finds for the evaluation sets: of held-out start states, in the form of their family."""

from __future__ import annotations

import pytest

from agents.scripted.bfcl import world_sets
from agents.scripted.bfcl.world_sets import found_tasks, held_out_starts, main
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.official import indices
from environments.bfcl.templated import evaluation_sets
from environments.bfcl.templated.evaluation_sets import FAMILIES, load_set, set_names

ENVIRONMENT = BFCLEnvironment()
FUNCTIONS = ("place_order", "lockDoors", "post_tweet")


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(world_sets, "tool_names", lambda classes: FUNCTIONS)
    monkeypatch.setattr(world_sets, "STARTS", {"dev": 1, "test": 1})
    monkeypatch.setattr(evaluation_sets, "human_slices", lambda *_, **__: ())
    monkeypatch.setattr(evaluation_sets, "human_pairs", lambda *_, **__: ())


def test_start_states_are_those_of_the_held_out_split() -> None:
    starts = held_out_starts("dev")
    assert {int(start.id.removeprefix("base-")) for start in starts} == set(indices("dev"))
    assert not {start.id for start in starts} & {start.id for start in ENVIRONMENT.starts()}


@pytest.mark.slow
def test_what_is_found_has_the_form_of_its_family_and_is_found_again(few) -> None:
    found = found_tasks(ENVIRONMENT, "dev")
    assert set(found) == {family for family, one in FAMILIES.items() if one.explored}
    assert all(found.values())
    for family, ones in found.items():
        for one in ones:
            assert one.base in indices("dev")
            assert len(one.reference) == 1 + FAMILIES[family].two_turns
            assert sum(map(len, one.reference)) in FAMILIES[family].lengths
            assert {call.name for turn in one.reference for call in turn} & set(FUNCTIONS)
    assert found_tasks(ENVIRONMENT, "dev") == found


@pytest.mark.slow
def test_the_command_makes_sets_that_load_and_replaces_none(few, tmp_path, monkeypatch, capsys) -> None:
    options = ["--folder", str(tmp_path), "--set", "world-dev", "--set", "world-turns-dev"]
    main(options)
    told = capsys.readouterr().out
    assert "world-dev: " in told
    assert "source: explored" in told
    monkeypatch.setattr(evaluation_sets, "sets_folder", lambda environment: tmp_path)
    for name in ("world-dev", "world-turns-dev"):
        tasks = load_set(name)
        assert tasks
        assert all(task.spec.split == "dev" and all(task.spec.turns) for task in tasks)
    with pytest.raises(SystemExit, match=r"^2$"):
        main(options)
    assert "--force" in capsys.readouterr().err


def test_the_first_families_are_not_made_here() -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["--set", "templated-dev"])
    assert "templated-dev" in set_names()
