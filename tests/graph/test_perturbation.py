"""Perturbed drafts: one change of a reference, of the share that is asked for, always the same."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.made_run import CAR, ENGINE, ENVIRONMENT, FILES, first_tasks

from environments.base import JsonValue, TaskSpec, ToolCall
from environments.verification.verify import verify
from graph.perturbation import Change, Perturbation, perturb, perturb_all, perturbed_of
from memory.records import Draft, DraftVerification

TASKS = {(task.classes[0], len(task.reference[0])): task for task in first_tasks()}


def draft(number: int = 0, like: tuple[str, int] = (CAR, 2), **changes: object) -> Draft:
    spec = {name: getattr(TASKS[like], name) for name in TaskSpec.model_fields}
    return Draft.model_validate(spec | {"id": f"draft-{number:016x}", "context_id": "context"} | changes)


references = st.lists(
    st.lists(
        st.sampled_from(
            [
                *ENGINE,
                ToolCall(name="fillFuelTank", arguments={"fuelAmount": 5}),
                ToolCall(name="fillFuelTank", arguments={"fuelAmount": 1e300}),
                ToolCall(name="setHeadlights", arguments={"mode": "on"}),
                ToolCall(name="check_tire_pressure"),
            ]
        ),
        max_size=3,
    ),
    min_size=1,
    max_size=2,
)


@settings(max_examples=150, deadline=None)
@given(
    reference=references, number=st.integers(0, 2**40), seed=st.integers(0, 2**40), share=st.sampled_from([0.3, 1.0])
)
def test_exactly_one_call_is_another_one_and_the_record_says_which(
    reference: list[list[ToolCall]], number: int, seed: int, share: float
) -> None:
    before = draft(number, turns=("do it",) * len(reference), reference=reference)
    after, record = perturb(before, share, seed, ENVIRONMENT)
    assert perturb(before, share, seed, ENVIRONMENT) == (after, record)
    if record is None:
        assert after is before
        assert share < 1.0 or not any(reference)
        return
    assert after.model_copy(update={"reference": before.reference}) == before
    turn, place = record.where
    assert record.before == before.reference[turn][place]
    assert record.draft_id == before.id
    changed = list(before.reference[turn])
    changed[place : place + 1] = [] if record.after is None else [record.after]
    assert after.reference == (*before.reference[:turn], tuple(changed), *before.reference[turn + 1 :])
    assert (record.change is Change.LEFT_OUT) == (record.after is None)
    if record.change is Change.ARGUMENT:
        assert record.after is not None
        assert record.after.name == record.before.name
        given_, got = record.before.arguments, record.after.arguments
        assert given_.keys() == got.keys()
        assert sum(given_[key] != got[key] for key in given_) == 1
    elif record.change is Change.REPLACED:
        assert record.after is not None
        assert record.after.name != record.before.name
        assert record.after.name in before.tools


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_is_that_of_the_drafts(share: float) -> None:
    drafts = [draft(number) for number in range(400)]
    changed, records = perturb_all(drafts, share, 7, ENVIRONMENT)
    assert [one.id for one in changed] == [one.id for one in drafts]
    assert {record.draft_id for record in records} == {
        one.id for one, two in zip(changed, drafts, strict=True) if one != two
    }
    assert abs(len(records) - 400 * share) <= 400 * 3 * (share * (1 - share) / 400) ** 0.5


def test_every_kind_of_change_happens_and_the_seed_decides() -> None:
    records = [perturb(draft(number), 1.0, 7, ENVIRONMENT)[1] for number in range(120)]
    kinds = Counter(record.change for record in records if record is not None)
    assert kinds.keys() == set(Change)
    assert kinds[Change.ARGUMENT] > 30
    assert min(kinds.values()) > 10
    others = [perturb(draft(number), 1.0, 8, ENVIRONMENT)[1] for number in range(120)]
    assert records != others


@pytest.mark.parametrize("value", [True, 3, 2.5, 1e300, "x", "", [], ["a"], {}, {"a": 1}, None], ids=repr)
def test_a_value_of_any_type_becomes_another_one(value: JsonValue) -> None:
    call = ToolCall(name="cd", arguments={"folder": value})
    records: list[Perturbation] = []
    for number in range(20):
        made = draft(number, (FILES, 2), reference=((call,),))
        _, record = perturb(made, 1.0, 1, ENVIRONMENT)
        assert record is not None
        records.append(record)
    values = [one.after.arguments["folder"] for one in records if one.after and one.change is Change.ARGUMENT]
    assert values
    assert all(other != value for other in values)


def test_a_draft_without_anything_to_change_stays() -> None:
    empty = draft(1, reference=((),))
    assert perturb(empty, 1.0, 1, ENVIRONMENT) == (empty, None)
    lonely = draft(1, reference=((ToolCall(name="pwd"),),), tools=("pwd",))
    assert perturb(lonely, 1.0, 1, ENVIRONMENT) == (lonely, None)


def test_verification_refuses_most_changed_references() -> None:
    """What is left out is found by the text: a value that no call takes, a tool that it names, a step too few."""
    tried, refused = Counter[Change](), Counter[Change]()
    for like in ((CAR, 1), (CAR, 2), (CAR, 3), (FILES, 1), (FILES, 2)):
        assert verify(draft(0, like), ENVIRONMENT, (), ()).accepted
        for number in range(20):
            changed, record = perturb(draft(number, like), 1.0, 3, ENVIRONMENT)
            assert record is not None
            tried[record.change] += 1
            refused[record.change] += not verify(changed, ENVIRONMENT, (), ()).accepted
    assert all(refused[change] > 0.6 * tried[change] > 0 for change in Change)


def verified(number: int, reason: str | None) -> DraftVerification:
    return DraftVerification(
        draft_id=f"draft-{number:016x}", context_id="context", accepted=reason is None, reason=reason
    )


def test_changed_drafts_are_counted_by_change_and_by_what_verification_says() -> None:
    changes = [
        Perturbation(
            draft_id=f"draft-{number:016x}",
            context_id="context",
            change=change,
            where=(0, 0),
            before=ENGINE[0],
            after=None if change is Change.LEFT_OUT else ENGINE[1],
        )
        for number, change in enumerate([Change.LEFT_OUT, Change.ARGUMENT, Change.ARGUMENT, Change.LEFT_OUT])
    ]
    results = [verified(0, None), verified(1, "ungrounded_argument"), verified(3, "over_quota"), verified(9, None)]
    found = perturbed_of(changes, results)
    assert found is not None
    assert found.made == {Change.ARGUMENT: 2, Change.LEFT_OUT: 2}
    assert found.accepted == {Change.LEFT_OUT: 2}
    assert found.words() == "2 of 4 accepted (argument 0 of 2, left_out 2 of 2)"
    assert perturbed_of([], results) is None
