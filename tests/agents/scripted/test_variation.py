"""Variations of BFCL's own training tasks and of the example environment: values change everywhere, words do not."""

from __future__ import annotations

import json
import random
import re

import pytest

from agents.scripted.variation import Values, vary
from environments.base import TaskSpec, ToolCall, recorded
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.official import load_category
from environments.example import depot
from environments.registry import benchmark_of
from environments.verification.fingerprints import fingerprint
from environments.verification.replay import bare_task, replay
from environments.verification.verify import OF_ITS_ORIGIN, Refusal, verify


@pytest.fixture(scope="module")
def environment() -> BFCLEnvironment:
    return recorded(BFCLEnvironment())


@pytest.fixture(scope="module")
def tasks() -> dict[str, TaskSpec]:
    return {task.id: task.spec for task in load_category("base", ("train",))}


@pytest.fixture(scope="module")
def values(environment, tasks) -> Values:
    return Values(tasks.values(), environment)


def test_a_variation_ends_every_call_as_the_original_does_and_succeeds(environment, tasks, values) -> None:
    made = 0
    for number, task in enumerate(tasks.values()):
        one = vary(task, environment, values, random.Random(number))
        if one is None:
            continue
        made += 1
        assert fingerprint(one) != fingerprint(task)
        assert vary(task, environment, values, random.Random(number)) == one, "equal arguments, equal variations"
        before, after = replay(environment, task), replay(environment, one)
        assert after.outcome.success
        for old, new in zip(before.turns, after.turns, strict=True):
            assert [call.name for call in old.calls] == [call.name for call in new.calls]
            assert [one.status for one in old.observations] == [one.status for one in new.observations]
    assert made >= 35, "of 45 tasks"


def test_a_name_changes_in_state_text_and_reference_with_its_stem(environment, tasks, values) -> None:
    task = tasks["base-0"]
    for seed in range(20):
        one = vary(task, environment, values, random.Random(seed))
        assert one is not None
        new = next(call for call in one.reference[0] if call.name == "mv").arguments["source"]
        if new == "final_report.pdf":
            continue
        assert re.fullmatch(r"[a-z]+_[a-z]+\.pdf", str(new)), "the form of the old name"
        everything = json.dumps(one.model_dump(mode="json")).lower()
        assert str(new) in json.dumps(one.initial_state)
        assert str(new).removesuffix(".pdf").replace("_", " ") in one.turns[3], "'having final report also there'"
        assert "final_report" not in everything
        assert "final report" not in everything
        return
    pytest.fail("the name was kept twenty times")


def test_what_an_earlier_answer_gives_is_read_from_the_new_answer(environment, tasks, values) -> None:
    task = tasks["base-150"]
    calls = {call.name: call for turn in task.reference for call in turn}
    assert calls["set_budget_limit"].arguments["budget_limit"] == 22000.0, "what 15400 GBP are in USD"
    for seed in range(20):
        one = vary(task, environment, values, random.Random(seed))
        assert one is not None
        new = {call.name: call for turn in one.reference for call in turn}
        amount = new["compute_exchange_rate"].arguments["value"]
        if amount != calls["compute_exchange_rate"].arguments["value"]:
            assert f"{amount:g}" in " ".join(one.turns)
            assert new["set_budget_limit"].arguments["budget_limit"] == round(float(str(amount)) / 0.7, 2)
            return
    pytest.fail("the amount was kept twenty times")


def test_documented_choices_identifiers_and_small_numbers_stay(environment, tasks, values) -> None:
    task = tasks["base-51"]
    for seed in range(10):
        one = vary(task, environment, values, random.Random(seed))
        assert one is not None
        for old, new in zip(task.reference, one.reference, strict=True):
            for before, after in zip(old, new, strict=True):
                for name, value in before.arguments.items():
                    if name.endswith("_id") or isinstance(value, bool | list) or name == "ignitionMode":
                        assert after.arguments[name] == value


def test_a_task_that_states_no_value_has_no_variation(environment, tasks, values) -> None:
    task = tasks["base-0"].model_copy(
        update={"turns": ("List everything here.",), "reference": ((ToolCall(name="ls"),),)}
    )
    assert vary(task, environment, values, random.Random(0)) is None


def test_an_environment_of_plain_classes_has_variations() -> None:
    environment = recorded(depot())
    start = next(one for one in environment.starts() if "lamp" in json.dumps(one.initial_state))
    other = next(one for one in environment.starts() if "vase" in json.dumps(one.initial_state))

    def weigh(place: object, label: str) -> TaskSpec:
        call = ToolCall(name="weigh_parcel", arguments={"label": label})
        update = {"turns": (f"How heavy is the parcel '{label}'?",), "reference": ((call,),)}
        return bare_task(place).model_copy(update=update)  # type: ignore[arg-type]

    values = Values([weigh(other, "vase")], environment)
    found = [vary(weigh(start, "lamp"), environment, values, random.Random(seed)) for seed in range(10)]
    made = [one for one in found if one is not None]
    assert made
    assert all(one.turns == ("How heavy is the parcel 'vase'?",) for one in made)
    assert all("lamp" not in json.dumps(one.initial_state) for one in made)


def test_verification_holds_a_variation_to_what_its_origin_fulfils(environment, tasks, values) -> None:
    held_out = benchmark_of(environment).held_out()
    alone, with_origin, reasons = 0, 0, set()
    for number, task in enumerate(tasks.values()):
        one = vary(task, environment, values, random.Random(number))
        if one is None:
            continue
        alone += verify(one, environment, (), held_out).accepted
        result = verify(one, environment, (), held_out, varies=task)
        with_origin += result.accepted
        reasons |= {result.reason} - {None}
    assert alone < 10, "people do not say every value that their reference has"
    assert with_origin > 25
    assert reasons <= OF_ITS_ORIGIN | {Refusal.HELD_OUT, Refusal.FOREIGN_TEXT}


def test_a_variation_that_lost_its_value_is_refused(environment, tasks, values) -> None:
    task = tasks["base-9"]
    assert verify(task, environment, (), ()).reason is not Refusal.UNGROUNDED_ARGUMENT
    wrong = ToolCall(name="cd", arguments={"folder": "Somewhere"})
    bad = task.model_copy(update={"reference": ((wrong,), *task.reference[1:])})
    assert verify(bad, environment, (), (), varies=task).reason is Refusal.ERROR_RESULT
