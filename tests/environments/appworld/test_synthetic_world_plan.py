"""The synthetic world's plan: the same for a seed, and enough in it for every scenario to have one right answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.appworld.synthetic_world.plan import CONTACTS, FIRST_NAMES, make_plan
from environments.appworld.synthetic_world.scenarios import SCENARIOS, VARIANTS

seeds = st.integers(min_value=0, max_value=10_000)


def test_there_are_ten_scenarios_of_five_apps_with_questions_and_changes() -> None:
    assert sorted(scenario.id for scenario in SCENARIOS) == [f"made{number:02d}" for number in range(1, 11)]
    assert {app for scenario in SCENARIOS for app in scenario.apps} == {
        *("phone", "simple_note", "spotify", "todoist", "venmo")
    }
    splits = [scenario.split for scenario in SCENARIOS]
    assert (splits.count("train"), splits.count("dev")) == (6, 4)
    plan = make_plan(1)
    questions = [s for s in SCENARIOS if s.variants(plan)[0].answer is not None]
    assert 3 <= len(questions) <= 7


@given(seeds)
def test_a_seed_gives_one_plan(seed: int) -> None:
    assert make_plan(seed) == make_plan(seed)


def test_another_seed_gives_another_plan() -> None:
    assert make_plan(1).people != make_plan(2).people


@given(seeds)
def test_everybody_can_be_told_apart_and_knows_others_only(seed: int) -> None:
    people = make_plan(seed).people
    assert len({p.email for p in people} | {p.phone_number for p in people}) == 2 * len(FIRST_NAMES)
    for index, person in enumerate(people):
        others = {contact.person for contact in person.contacts}
        assert len(others) == CONTACTS
        assert index not in others
        assert len({contact.relationship for contact in person.contacts}) == CONTACTS


@given(seeds)
def test_variants_differ_in_whose_they_are_and_in_values(seed: int) -> None:
    plan = make_plan(seed)
    for scenario in SCENARIOS:
        try:
            variants = scenario.variants(plan)
        except ValueError:  # said in words: another seed
            continue
        assert len(variants) == VARIANTS
        assert len({variant.person for variant in variants}) == VARIANTS
        assert len({variant.answer is None for variant in variants}) == 1


def test_too_few_variants_are_an_error_that_says_what_to_do() -> None:
    without = replace(SCENARIOS[0], found=lambda plan: iter([]))
    with pytest.raises(ValueError, match="use another seed"):
        without.variants(make_plan(1))
